"""The table of published faults is whole, and what it names is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import pytest

from epochal.chaos.mutants.planting import bugs
from tests.planted.scenarios import KINDS, MOST_NOT_SHOWABLE, PAGE, ROOT, Red, Scenario, load, page

IDS, SCENARIOS = load()
SHOWN = [scenario for scenario in SCENARIOS if not scenario.not_showable]
BUGS = {bug.name: bug for bug in bugs(ROOT)}
REDS = [
    pytest.param(scenario, red, id=f"{scenario.id}: {red.bug or red.example}")
    for scenario in SHOWN
    for red in scenario.red
]


CONTRACTS = ("chaos/contract/sinks.py", "chaos/contract/logs.py")
"""Whose classes the test classes of other files inherit their tests from."""


@cache
def functions(path: str) -> frozenset[str]:
    """The tests of a file as pytest names them, without parameters."""
    classes = {node.name: node for file in (*CONTRACTS, path) for node in tree(file) if isinstance(node, ast.ClassDef)}
    own = [node.name for node in tree(path) if isinstance(node, ast.ClassDef)]
    methods = (f"{name}::{test}" for name in own for test in _inherited(name, classes))
    return frozenset((*_tests(tree(path)), *methods))


@cache
def tree(path: str) -> Sequence[ast.stmt]:
    return ast.parse((ROOT / path).read_text(encoding="utf-8")).body


def _tests(body: Sequence[ast.stmt]) -> list[str]:
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def _inherited(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    if name in classes:
        yield from _tests(classes[name].body)
        for base in classes[name].bases:
            yield from _inherited(base.id if isinstance(base, ast.Name) else "", classes)


def test_the_page_is_what_the_data_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.planted.scenarios`"


def test_every_fault_is_there_once_and_in_order() -> None:
    assert [scenario.id for scenario in SCENARIOS] == IDS
    assert len(set(IDS)) == len(IDS)


def test_few_cannot_be_shown_and_each_says_why() -> None:
    assert len(SCENARIOS) - len(SHOWN) <= MOST_NOT_SHOWABLE
    assert not [s.id for s in SCENARIOS if bool(s.red) == bool(s.not_showable)]


@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.id) for scenario in SCENARIOS])
def test_a_fault_is_told_and_its_tests_are_there(scenario: Scenario) -> None:
    assert scenario.source
    assert scenario.what.endswith(".")
    assert scenario.kind
    assert set(scenario.kind) <= set(KINDS)
    assert scenario.green
    for test in (*scenario.green, *(red.test for red in scenario.red)):
        path, _, name = test.partition("::")
        assert name.partition("[")[0] in functions(path), test


@pytest.mark.parametrize(("scenario", "red"), REDS)
def test_what_is_red_is_planted_or_an_example(scenario: Scenario, red: Red) -> None:
    if red.bug:
        assert red.test in BUGS[red.bug].first, "the mutants run it"
        assert red.test in scenario.green, "without the bug it is green"
    else:
        assert (ROOT / "examples" / "chaos" / f"{red.example}.py").is_file()
        text = (ROOT / red.test.partition("::")[0]).read_text(encoding="utf-8")
        assert red.example in text
        assert red.strike in text
