"""The tool that plants bugs and mutants, on a checkout of three lines; and what it finds in this one."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.chaos.mutants import NoCheckout, checkout
from epochal.chaos.mutants.guards import guards, registry
from epochal.chaos.mutants.mutator import MechanicalRun, Tried, choose, explained, judge, mechanical
from epochal.chaos.mutants.operators import Mutant, mutants
from epochal.chaos.mutants.planting import PlantedRun, Result, planted
from epochal.chaos.mutants.runner import Answer
from epochal.chaos.mutants.zygote import HUNG
from epochal.chaos.servers import guard
from epochal.chaos.servers.process import wait_until

ROOT = Path(__file__).parents[4]

FILES = {
    "pyproject.toml": """
        [tool.pytest.ini_options]
        pythonpath = ["."]
        addopts = "--import-mode=importlib"
        """,
    ".gitignore": ".cache/\n__pycache__/\n",
    "src/epochal/__init__.py": "",
    "coordinator/__init__.py": "",
    "coordinator/model/errors.py": "class Empty(Exception): pass\n",
    "coordinator/account.py": '''
        from epochal.coordinator.model.errors import Empty

        class Account:
            """Holds what was paid in."""

            def __init__(self) -> None:
                self.held = 0
                self.calls = 0

            def take(self, amount: int) -> int:
                """Never more than there is."""
                self.calls = 1
                if amount > self.held:
                    raise Empty(f"only {self.held + 0}")
                self.held -= amount
                self.last = amount
                return amount

        def unused() -> bool:
            return True

        def beside(lock) -> None:
            lock.release()

        def until(n: int) -> int:
            while n < 3:
                n = n + 1
            return n
        ''',
    "tests/pure/test_account.py": """
        import _thread

        import pytest

        from epochal.coordinator.account import Account, beside, until
        from epochal.coordinator.model.errors import Empty

        def test_more_than_there_is_is_refused() -> None:
            with pytest.raises(Empty):
                Account().take(1)

        def test_all_can_be_taken() -> None:
            account = Account()
            account.held = 2
            assert (account.take(2), account.held) == (2, 0)

        def test_it_ends() -> None:
            assert until(0) == 3

        def test_a_thread_of_its_own() -> None:
            lock = _thread.allocate_lock()
            lock.acquire()
            _thread.start_new_thread(beside, (lock,))
            assert lock.acquire(timeout=1)
        """,
    "tests/red/test_red.py": "def test_red() -> None:\n    assert False\n",
}


def bug(name: str, old: str, new: str, suite: str = "tests/pure", first: str = "") -> str:
    quoted = {"name": name, "guard": "g", "file": "coordinator/account.py", "old": old, "new": new}
    lines = [f"{key} = {json.dumps(value)}" for key, value in quoted.items()]
    return "\n".join(["[[bug]]", *lines, f"suite = [{suite!r}]", f"first = [{first!r}]" if first else "", ""])


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one guard and its tests, whose recordings are kept in it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("EPOCHAL_CACHE", str(tmp_path / ".cache"))
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip())
    (tmp_path / "src/epochal/coordinator").symlink_to("../../coordinator")
    (tmp_path / "tests/planted").mkdir()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def told(run: PlantedRun) -> dict[str, tuple[str, str]]:
    return {result.name: (result.verdict, result.by) for result in run.bugs}


# --- planted bugs -------------------------------------------------------------------------------

NOT_REFUSED = ("if amount > self.held:", "if False:")
REFUSED = "tests/pure/test_account.py::test_more_than_there_is_is_refused"


@pytest.mark.slow
def test_a_planted_bug_is_caught_or_survives_or_says_nothing(small: Path) -> None:
    bugs = [
        bug("caught", *NOT_REFUSED),
        bug("caught-first", *NOT_REFUSED, first=REFUSED),
        bug("survives", "self.calls = 1", "self.calls = 2", first=REFUSED),
        bug("does-not-apply", "never there", ""),
        bug("is-no-python", "def unused", "def def"),
        bug("does-not-end", "while n < 3:", "while True:"),
    ]
    (small / "tests/planted/bugs.toml").write_text("\n".join(bugs))
    before = (small / "coordinator/account.py").read_bytes()
    lines: list[str] = []
    run = planted(root=small, seconds=10, tell=lines.append)
    found = told(run)
    assert found["caught"] == found["caught-first"] == ("caught", REFUSED)
    assert found["survives"] == ("survived", "")
    assert found["does-not-apply"] == ("invalid", "the old text occurs 0 times in coordinator/account.py")
    assert found["is-no-python"][0] == found["does-not-end"][0] == "invalid"
    assert "did not end within 10 s" in found["does-not-end"][1]
    assert [control.verdict for control in run.controls] == ["survived"]
    assert run.code == 1
    assert (small / "coordinator/account.py").read_bytes() == before
    assert lines[-1] == "2 of 6 planted bugs caught, 1 of 1 controls green (with nothing planted)"
    ran = {result.name: result.ran for result in run.bugs}
    assert ran["caught-first"] == (REFUSED,)
    assert ran["survives"] == (REFUSED, "tests/pure")


def test_a_bug_that_is_caught_by_a_test_that_is_always_red_proves_nothing(small: Path) -> None:
    (small / "tests/planted/bugs.toml").write_text(bug("caught", *NOT_REFUSED, suite="tests/red"))
    run = planted(root=small, tell=lambda _: None)
    assert told(run)["caught"][0] == "caught"
    assert [control.verdict for control in run.controls] == ["caught"]
    assert run.code == 1


@pytest.mark.slow
def test_only_some_are_planted(small: Path) -> None:
    (small / "tests/planted/bugs.toml").write_text(bug("one", *NOT_REFUSED) + bug("two", "never there", ""))
    run = planted(root=small, only=["on"], tell=lambda _: None)
    assert list(told(run)) == ["one"]
    assert run.code == 0
    lines: list[str] = []
    assert planted(root=small, only=["three"], tell=lines.append).code == 3
    assert lines[0] == "no planted bug has a name with 'three' in it"


LEFT_OUT = ("--deselect", REFUSED)


def test_what_is_left_out_catches_no_planted_bug(small: Path) -> None:
    (small / "tests/planted/bugs.toml").write_text(bug("one", *NOT_REFUSED))
    run = planted(root=small, options=LEFT_OUT, tell=lambda _: None)
    assert told(run)["one"] == ("survived", "")


def result(name: str, verdict: str, by: str = "") -> Result:
    return Result(name, "guard", "file.py", verdict, by, 1.5, ("tests/pure",))


@pytest.mark.parametrize(
    ("verdicts", "control", "code"),
    [
        (["caught", "caught"], "survived", 0),
        (["caught", "survived"], "survived", 1),
        (["caught"], "caught", 1),
        (["invalid", "caught"], "survived", 3),
        (["invalid", "survived"], "survived", 1),
        (["caught"], "invalid", 3),
        ([], "survived", 3),
    ],
)
def test_the_exit_code_says_what_is_known(verdicts: Sequence[str], control: str, code: int) -> None:
    results = [result(f"bug-{n}", verdict) for n, verdict in enumerate(verdicts)]
    assert PlantedRun((*results, result("nothing planted: x", control))).code == code


def test_planted_bugs_as_json() -> None:
    run = PlantedRun((result("a", "caught", "t::x"), result("b", "invalid", "why"), result("nothing planted: c", "")))
    assert [(o["name"], o["caught"], o["by"], o["seconds"]) for o in run.to_json()] == [
        ("a", True, "t::x", 1.5),
        ("b", False, "", 1.5),
    ]


def test_away_from_a_checkout_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(NoCheckout, match="is in no checkout of Epochal"):
        planted(root=tmp_path)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(NoCheckout, match="has no folder tests/planted"):
        checkout.find(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "epochal.chaos.mutants"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr.count("\n  Help: ") == 1


@pytest.mark.slow
def test_who_is_asked_to_end_leaves_no_run_behind(small: Path) -> None:
    began = small / "began"
    long = f"import pathlib, time\n\ndef test_it():\n    pathlib.Path({str(began)!r}).touch()\n    time.sleep(600)\n"
    (small / "tests/pure/test_a_long.py").write_text(long)
    (small / "tests/planted/coordinator.toml").write_text(bug("refuses-nothing", *NOT_REFUSED))
    run = subprocess.Popen([sys.executable, "-m", "epochal.chaos.mutants", "--jobs", "1"], cwd=small)
    assert wait_until(lambda: began.exists() or None, 60)
    started = guard.descendants(run.pid)
    run.terminate()
    assert run.wait(60) == 128 + signal.SIGTERM
    assert started
    assert not any(map(guard.alive, started))


# --- mechanical mutants -------------------------------------------------------------------------


def mutate(small: Path, **options: object) -> tuple[MechanicalRun, list[str]]:
    lines: list[str] = []
    run = mechanical(root=small, suite=("tests/pure",), jobs=1, grace=5, tell=lines.append, **options)  # type: ignore[arg-type]
    return run, lines


def by_key(run: MechanicalRun) -> dict[str, Tried]:
    return {tried.mutant.key.partition(" ")[2]: tried for tried in run.tried}


@pytest.mark.slow
def test_mutants_are_caught_survive_or_do_not_end(small: Path) -> None:
    before = (small / "coordinator/account.py").read_bytes()
    (small / "tests/planted/README.md").write_text(
        "- ``coordinator/account.py Account.take drop-set: self.calls = 1``: nobody reads it\n"
    )
    run, lines = mutate(small)
    found = by_key(run)
    assert found['Account.take drop-raise: raise Empty(f"only {self.held + 0}")'].by == REFUSED
    assert found["Account.take compare: amount > self.held"].by.endswith("test_all_can_be_taken")
    assert found["Account.take drop-set: self.calls = 1"].verdict == "explained"
    assert found["Account.take drop-set: self.calls = 1"].by == "nobody reads it"
    assert (found["unused negate: True"].verdict, found["unused negate: True"].by) == ("not run", "no test reaches it")
    assert (found["Account.take drop-set: self.last = amount"].verdict, run.code) == ("survived", 1)
    assert found["until arithmetic: n + 1"].verdict == "caught"
    assert found["beside drop-call: lock.release()"].by.endswith("test_a_thread_of_its_own")
    assert {tried.verdict for tried in run.tried} == {"caught", "explained", "survived", "not run"}
    assert [line for line in lines if "self.last" in line and line.startswith("survived")]
    assert (small / "coordinator/account.py").read_bytes() == before
    assert run.to_json()["counts"]["survived"] == 1


@pytest.mark.slow
def test_what_is_left_out_catches_no_mutant(small: Path) -> None:
    run, _ = mutate(small, options=LEFT_OUT, only_guards=True)
    assert {tried.mutant.takes_a_guard for tried in run.tried} == {True}
    assert by_key(run)['Account.take drop-raise: raise Empty(f"only {self.held + 0}")'].by == "no test reaches it"


@pytest.mark.slow
def test_what_the_budget_does_not_reach_is_not_run(small: Path) -> None:
    run, _ = mutate(small, budget=0)
    assert {tried.verdict for tried in run.tried} == {"not run"}
    assert run.code == 3
    assert "caught" not in str(run)


def test_a_test_that_is_red_with_nothing_planted_ends_it(small: Path) -> None:
    (small / "tests/pure/test_red.py").write_text(FILES["tests/red/test_red.py"])
    run, lines = mutate(small)
    assert run.red == ["tests/pure/test_red.py::test_red"]
    assert {tried.verdict for tried in run.tried} == {"not run"}
    assert run.code == 1
    assert "RED with nothing planted: tests/pure/test_red.py::test_red" in lines[-1]


RED = ("t.py::test", "call", "assert")


@pytest.mark.parametrize(
    ("answer", "slow", "verdict", "by"),
    [
        (Answer(0, 1.0, 3), False, "survived", ""),
        (Answer(1, 1.0, 3, RED), False, "caught", "t.py::test"),
        (Answer(1, 1.0, 3, ("t.py::test", "setup", "no")), False, "caught", "setup of t.py::test"),
        (Answer(1, 1.0, 3, ("t.py::test", "setup", "no")), True, "invalid", "t.py::test could not be set up: no"),
        (Answer(2, 1.0, 0, ("t.py", "collect", "no")), False, "caught", "collect of t.py"),
        (Answer(HUNG, 1.0, 0), False, "caught", "the tests did not end"),
        (Answer(99, 1.0, 3, trouble="a thread died"), False, "caught", "pytest broke off: a thread died"),
        (Answer(99, 1.0, 3, trouble="a thread died"), True, "invalid", "pytest ended with 99 a thread died"),
        (Answer(3, 1.0, 3), False, "caught", "pytest broke off: 3"),
        (Answer(99, 1.0, 0, trouble="no pytest"), False, "invalid", "pytest ended with 99 no pytest"),
        (Answer(5, 1.0, 0), False, "invalid", "pytest ended with 5"),
        (Answer(0, 1.0, 3, outside=["epochal.x"]), False, "invalid", "pytest ended with 0  epochal.x"),
    ],
)
def test_what_a_run_says_of_a_mutant(answer: Answer, slow: bool, verdict: str, by: str) -> None:
    assert judge(answer, slow) == (verdict, by)


SOURCE = '''
class C:
    """Doc."""

    size: int = 3

    def f(self, a: int, on: bool = True) -> bool:
        """Doc."""
        log.info("%d", a + 1)
        hit(Point.X, a - 1)
        assert a > 0, f"{a + 1}"
        self._conditions.check_owner(a)
        if a is None or not self.g(a):
            raise Empty(f"{a + 1}", state=a - 1)
        try:
            self.h(lock=True)
        except OSError:
            self.x = a
        return a in self.seen

    def __repr__(self) -> str:
        return "a" if self.x > 1 else "b"

    def words(self, a: int) -> Empty:
        what = "less" if a < 1 else "more"
        return Empty(what)
'''


def test_each_operator_changes_what_the_protocol_does_and_not_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "coordinator/model").mkdir(parents=True)
    (tmp_path / "coordinator/model/errors.py").write_text(FILES["coordinator/model/errors.py"])
    (tmp_path / "c.py").write_text(SOURCE)
    found = mutants(tmp_path, "c.py")
    assert [f"{m.operator}: {m.old} -> {m.new}" for m in found] == [
        "drop-check: self._conditions.check_owner(a) -> pass",
        "negate: a is None or not self.g(a) -> (not (a is None or not self.g(a)))",
        "logic: a is None or not self.g(a) -> ((a is None) and (not self.g(a)))",
        "operand: a is None -> ((not self.g(a)))",
        "operand: not self.g(a) -> ((a is None))",
        "compare: a is None -> (a is not None)",
        "negate: not self.g(a) -> (self.g(a))",
        'drop-raise: raise Empty(f"{a + 1}", state=a - 1) -> pass',
        "drop-call: self.h(lock=True) -> pass",
        "flag: True -> False",
        "drop-set: self.x = a -> pass",
        "compare: a in self.seen -> (a not in self.seen)",
    ]
    source = SOURCE.encode()
    assert all(ast.dump(ast.parse(m.apply(source))) != ast.dump(ast.parse(source)) for m in found)


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("return n < 1", {"(not (n < 1))", "(n <= 1)", "2"}),
        ("x = xs[-1]", {"0"}),
        ("x = max(xs, default=0)", {"min", "1"}),
        ("x = n - 1", {"(n + 1)", "2"}),
        ("x = 'a' + b", set[str]()),
        ("for x in xs:\n        continue", {"pass"}),
        ("x = [y for y in xs if y]", {"(not (y))"}),
        ("x = a if b else c", {"(not (b))"}),
        ("if not self.already_committed(n): write()", {"(self.already_committed(n))", "False", "pass"}),
    ],
)
def test_operators_one_by_one(line: str, new: set[str], tmp_path: Path) -> None:
    (tmp_path / "c.py").write_text(f"def f(n) -> bool:\n    {line}\n")
    assert {mutant.new for mutant in mutants(tmp_path, "c.py")} == new


def test_two_equal_places_in_one_function_have_two_keys(tmp_path: Path) -> None:
    (tmp_path / "c.py").write_text("def f():\n    g()\n    g()\n")
    assert [m.key for m in mutants(tmp_path, "c.py")] == ["c.py f drop-call: g()", "c.py f drop-call: g() #2"]


# --- this checkout ------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_guard_in_production_code_has_a_mutant_that_takes_it_away() -> None:
    entries = registry(ROOT)
    assert len(entries) >= 250
    assert not [str(entry) for entry in entries if entry.mutant is None]
    assert {e.guard.file.partition("/")[0] for e in entries} == {"coordinator", "checkpoints", "sinks"}


def test_a_guard_without_a_mutant_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "sinks").mkdir()
    (tmp_path / "sinks/s.py").write_text("class S:\n    if True:\n        raise ValueError\n")
    assert [str(entry) for entry in registry(tmp_path)] == ["sinks/s.py:3 raise ValueError: NO MUTANT"]
    assert [guard.what for guard in guards(tmp_path)] == ["raise ValueError"]


@pytest.mark.wide
@pytest.mark.slow
def test_the_sample_holds_every_guard_of_the_sinks_and_is_the_same_for_the_same_seed() -> None:
    chosen, generated = choose(ROOT, sample=150, seed=1)
    sinks = [m for m in chosen if m.file.startswith("sinks/")]
    others = [m for m in sinks if not m.takes_a_guard]
    every = [m for m in all_mutants() if m.file.startswith("sinks/")]
    assert len(others) == 150
    assert {m.key for m in every if m.takes_a_guard} == {m.key for m in sinks} - {m.key for m in others}
    assert [m.key for m in chosen] == [m.key for m in choose(ROOT, sample=150, seed=1)[0]]
    assert [m.key for m in chosen] != [m.key for m in choose(ROOT, sample=150, seed=2)[0]]
    assert generated > len(chosen)


def all_mutants() -> list[Mutant]:
    return choose(ROOT, sample=1 << 30)[0]


@pytest.mark.wide
@pytest.mark.slow
def test_every_mutant_is_python_and_has_a_key_of_its_own() -> None:
    found = all_mutants()
    assert len({mutant.key for mutant in found}) == len(found)
    for mutant in found[::20]:
        ast.parse(mutant.apply((ROOT / mutant.file).read_bytes()))


def test_what_the_readme_explains_is_there() -> None:
    """An explanation of code that has changed is taken out, and the mutant judged anew."""
    assert not set(explained(ROOT)) - {mutant.key for mutant in all_mutants()}
