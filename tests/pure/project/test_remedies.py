"""Each remedy is followed by a test or stands in the list of those that are not; and none leads back to another."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from docs import generate
from epochal.coordinator.model.errors import Misconfigured
from tests import remedies
from tests.remedies import ROOT, Followed, Remedy

KNOWN = remedies.known()
MARKS = remedies.followed()

PASSED_ON = {
    ("sinks/conditions.py", "refusing"),
    ("sinks/kafka/again.py", "commit"),
    ("sinks/kafka/committing.py", "definite"),
    ("sinks/kafka/objections.py", "refusal"),
    ("sinks/postgres/core.py", "reading"),
    ("sinks/postgres/cures.py", "raise_with_cure"),
    ("sinks/postgres/judging.py", "answers"),
    ("sinks/postgres/preparing.py", "raise_refusals"),
    ("sinks/spark/executors.py", "error_of_a_worker"),
}
"""Functions that make an error of another one's words: these words are listed where they are written."""


def test_every_place_that_makes_an_error_is_read() -> None:
    unread = {(maker.path, maker.function) for maker in generate.makers() if not maker.messages}
    assert unread == PASSED_ON


def test_a_marker_says_what_the_code_says() -> None:
    stale = [mark for mark in MARKS if not any(mark.is_of(remedy) for remedy in KNOWN)]
    assert not stale, "the message or its help has other words now: read the test again, then correct its marker"


def test_a_remedy_is_followed_or_listed() -> None:
    """A new message needs a test that follows its help; the list of those without one only shrinks."""
    left = [remedy for remedy in KNOWN if not any(mark.is_of(remedy) for mark in MARKS)]
    reasons, count = remedies.open_ones()
    assert {remedy.what for remedy in left} - set(reasons) == set(), "no test follows these"
    assert set(reasons) - {remedy.what for remedy in left} == set(), "take these out of tests/remedies_open.toml"
    assert len(left) == count, "`remedies` in tests/remedies_open.toml is the number of remedies that are open"
    assert all(len(reason) > 20 for reason in reasons.values())


def test_no_two_remedies_point_at_each_other() -> None:
    ways: dict[str, set[str]] = defaultdict(set)
    for mark in MARKS:
        ways[mark.what].update(mark.over)
    assert {over for met in ways.values() for over in met} <= {mark.what for mark in MARKS}, "these lead out by a test"
    TopologicalSorter(ways).prepare()


@pytest.mark.parametrize("ways", [{"a": {"a"}}, {"a": {"b"}, "b": {"a"}}, {"a": {"b"}, "b": {"c"}, "c": {"a"}}])
def test_a_way_that_leads_back_is_noticed(ways: Mapping[str, set[str]]) -> None:
    with pytest.raises(CycleError):
        TopologicalSorter(ways).prepare()


def test_a_marked_test_goes_on_after_the_error() -> None:
    """What is called behind its last ``pytest.raises``: a test that ends with the error has followed nothing."""
    marked = {mark.where.rpartition(":")[0] for mark in MARKS}
    ends = [
        f"{path}::{function.name}"
        for path in sorted(marked)
        for function in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(function, ast.FunctionDef) and _is_marked(function) and not _goes_on(function)
    ]
    assert not ends


def _is_marked(function: ast.FunctionDef) -> bool:
    return any("mark.remedy(" in ast.unparse(decorator) for decorator in function.decorator_list)


def _goes_on(function: ast.FunctionDef) -> bool:
    refusals = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.With) and any("raises(" in ast.unparse(item.context_expr) for item in node.items)
    ]
    last = max((node.end_lineno or node.lineno for node in refusals), default=function.lineno)
    return any(isinstance(node, ast.Call) and node.lineno > last for node in ast.walk(function))


def test_an_error_is_met_only_with_its_own_words() -> None:
    error = Misconfigured("two sinks are named 'a'", help="give each a name= of its own")
    assert _mark("two sinks are named …", "give each a name=").was_met([error])
    assert not _mark("two sinks are named …", "give none a name=").was_met([error])
    assert not _mark("two sinks", "give each a name=").was_met([error])
    assert not _mark("two sinks are named …", "give each a name=").was_met([])
    assert _mark("two sinks are named …", "").is_of(Remedy("two sinks are named …", "any"))


def test_errors_are_collected_also_if_they_are_caught() -> None:
    with remedies.errors_made() as made, pytest.raises(Misconfigured):
        raise Misconfigured("a", help="b")
    Misconfigured("made after the scope", help="b")
    assert [error.what for error in made] == ["a"]


def _mark(what: str, help: str) -> Followed:
    return remedies.of_marker([what, help], {}, "here")
