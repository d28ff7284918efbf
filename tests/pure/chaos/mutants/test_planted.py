"""The planted bugs stand in the code as it is now; whether the suite catches them is `epochal chaos mutants`."""

from __future__ import annotations

import ast
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from epochal.chaos.mutants.planting import Bug, bugs, plant

ROOT = Path(__file__).parents[4]
BUGS = bugs(ROOT)
SINKS = [bug for bug in BUGS if bug.file.startswith("sinks/")]


@pytest.mark.slow
@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug.name) for bug in BUGS])
def test_a_bug_can_be_planted(bug: Bug, tmp_path: Path) -> None:
    copy = tmp_path / bug.file
    copy.parent.mkdir(parents=True)
    shutil.copy(ROOT / bug.file, copy)
    before = copy.read_text(encoding="utf-8")
    assert plant(bug, tmp_path) is None
    assert ast.dump(ast.parse(copy.read_text(encoding="utf-8"))) != ast.dump(ast.parse(before))


def test_a_patch_that_does_not_fit_is_told(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("a = 1\na = 1\n")
    for old, times in (("a = 1", 2), ("b = 1", 0)):
        told = plant(Bug("bug", "guard", "code.py", old, "c = 1", ()), tmp_path)
        assert told == f"the old text occurs {times} times in code.py"
    assert (tmp_path / "code.py").read_text() == "a = 1\na = 1\n"
    assert plant(Bug("bug", "guard", "gone.py", "a", "b", ()), tmp_path) == "there is no file gone.py"


def test_names_are_unique_and_suites_are_there() -> None:
    assert not [name for name, times in Counter(bug.name for bug in BUGS).items() if times > 1]
    assert not [path for bug in BUGS for path in bug.suite + bug.first if not (ROOT / path.partition("::")[0]).exists()]
    assert not [test for bug in BUGS for test in bug.first if not test.startswith(bug.suite)]


def test_there_are_enough_in_the_real_sinks_and_of_many_kinds() -> None:
    assert len(BUGS) >= 40
    assert len(SINKS) >= 12
    assert {bug.file.split("/")[1] for bug in SINKS} >= {"postgres", "kafka", "delta"}
    assert max(Counter(bug.guard for bug in BUGS).values()) <= 3


def test_no_test_and_no_checker_names_a_planted_bug() -> None:
    judges = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "chaos").rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in judges}
    assert not [(bug.name, path.name) for bug in BUGS for path, text in texts.items() if bug.name in text]


def test_the_tests_that_run_first_are_there() -> None:
    """Each part of a node id is defined in its file, or inherited from a contract suite."""
    contracts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "chaos" / "contract").glob("*.py"))
    missing = []
    for bug in BUGS:
        for test in bug.first:
            path, *names = test.split("[")[0].split("::")
            known = (ROOT / path).read_text(encoding="utf-8") + contracts if names else ""
            missing += [test for name in names if not re.search(rf"^\s*(?:def|class) {name}\b", known, re.MULTILINE)]
    assert not missing
