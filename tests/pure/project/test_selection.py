"""What ``make test``, ``make test-all`` and CI run: nothing is lost between lanes, shards and commits."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli

from tests import run, selection
from tests.selection import Part

FILES = selection.files()


def test_every_test_file_of_the_project_is_in_a_folder_that_a_target_runs() -> None:
    elsewhere = {"containers", "browser", "matrix"}
    everything = {path.relative_to(selection.ROOT) for path in (selection.ROOT / "tests").rglob("test_*.py")}
    assert {str(path) for path in everything if path.parts[1] not in elsewhere} == set(FILES)


@pytest.mark.parametrize("of", [1, 2, 3, run.SHARDS, run.SHARDS * run.LANES, len(FILES) + 1])
@pytest.mark.parametrize("took", ["proof", "all"])
def test_the_parts_together_are_every_file_once(took: str, of: int) -> None:
    parts = selection.parted(FILES, selection.seconds()[took], of)
    assert len(parts) == of
    assert sorted(itertools.chain(*parts)) == FILES


def test_the_lanes_of_all_shards_together_are_every_file_once() -> None:
    took = selection.seconds()["all"]
    lanes = [
        lane for shard in selection.parted(FILES, took, run.SHARDS) for lane in selection.parted(shard, took, run.LANES)
    ]
    assert sorted(itertools.chain(*lanes)) == FILES


def test_shards_are_of_like_length() -> None:
    """No shard is longer than the mean and one group of files."""
    took = selection.seconds()["all"]
    shards = [sum(took.get(file, 0.0) for file in shard) for shard in selection.parted(FILES, took, run.SHARDS)]
    longest = max(max(took.values()), sum(s for file, s in took.items() if file.startswith(selection.TOGETHER)))
    assert max(shards) <= sum(shards) / len(shards) + longest


def test_a_new_file_is_run_before_its_time_is_known() -> None:
    parts = selection.parted(["tests/a/test_old.py", "tests/a/test_new.py"], {"tests/a/test_old.py": 100.0}, 2)
    assert parts == [["tests/a/test_old.py"], ["tests/a/test_new.py"]]


def test_files_that_share_a_server_stay_together() -> None:
    [folder, *_] = selection.TOGETHER
    given = [f"{folder}/test_a.py", f"{folder}/test_b.py", "tests/pure/test_c.py"]
    assert selection.parted(given, {}, 2) == [given[:2], given[2:]]


def test_stored_times_are_of_files_that_exist() -> None:
    for took in selection.seconds().values():
        assert set(took) <= set(FILES)


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "a/8", "3/0", "-1/8", "3/8/1"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no part: write for example 3/8"):
        Part.parse(text)


def test_consecutive_commits_cover_all_shards() -> None:
    """However many shards each of them has time for."""
    for first, each in itertools.product(range(run.SHARDS), (1, 2)):
        commits = range(first, first - (-run.SHARDS // each))
        begun = {shard for n in commits for shard in selection.shards_of_commit(n, run.SHARDS)[:each]}
        assert len(begun) == run.SHARDS, (first, each)
    assert {str(shard) for shard in selection.shards_of_commit(7, 3)} == {"1/3", "2/3", "3/3"}


PLANTED = """
[[bug]]
name = "one"
first = ["tests/a/test_x.py::test_named", "tests/a/test_x.py::test_cases[2]", "tests/a/test_x.py::TestNamed"]
"""
TESTS = """
import pytest
@pytest.mark.wide
def test_named(): pass
@pytest.mark.wide
@pytest.mark.parametrize("n", [1, 2])
def test_cases(n): pass
@pytest.mark.wide
class TestNamed:
    def test_one(self): pass
@pytest.mark.wide
def test_wide(): pass
def test_narrow(): pass
"""


def collected(tmp_path: Path, *options: str) -> set[str]:
    """The tests of a small project that pytest would run."""
    (tmp_path / "tests/planted").mkdir(parents=True)
    (tmp_path / "tests/a").mkdir()
    (tmp_path / "tests/planted/bugs.toml").write_text(PLANTED)
    (tmp_path / "tests/a/test_x.py").write_text(TESTS)
    plugin = (
        "import pathlib; from tests import selection; from tests.conftest import *\n"
        f"selection.named_by_bugs.__defaults__ = (pathlib.Path({str(tmp_path)!r}),)\n"
    )
    (tmp_path / "conftest.py").write_text(plugin)
    around = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(selection.ROOT)}
    found = listed(tmp_path, "--rootdir", str(tmp_path), *options, "tests", **around)
    return {name.partition("::")[2] for name in found}


def listed(where: Path, *arguments: str, **around: str) -> list[str]:
    """The node ids that pytest would run; ``around``: environment variables."""
    inherited = {name: value for name, value in os.environ.items() if name != "EPOCHAL_EVERY_TEST"}  # none is to run
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    done = subprocess.run(
        command, cwd=where, env={**inherited, **around}, capture_output=True, text=True, timeout=120, check=True
    )
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_the_proof_is_what_is_not_wide_or_named_by_a_planted_bug(tmp_path: Path) -> None:
    proof = {"test_named", "test_cases[2]", "TestNamed::test_one", "test_narrow"}
    assert collected(tmp_path, "--proof") == proof


@pytest.mark.slow
def test_without_the_option_every_test_runs(tmp_path: Path) -> None:
    assert len(collected(tmp_path)) == 6


def test_every_name_in_first_is_a_test_that_exists() -> None:
    files = {name.partition("::")[0] for name in selection.named_by_bugs()}
    assert files <= set(FILES)
    assert len(files) > 20


@pytest.mark.slow
def test_a_lane_in_which_a_test_fails_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What failed, and how, is told once more at the end: of a long log often only the end is kept."""
    (tmp_path / "test_bad.py").write_text("def test_bad(): raise ValueError('at 7')\n")
    (tmp_path / "test_good.py").write_text("def test_good(): pass\n")
    options = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    good = [run.start(1, [str(tmp_path / "test_good.py")], options)]
    both = [*(run.start(n, [str(tmp_path / name)], options) for n, name in ((1, "test_good.py"), (2, "test_bad.py")))]
    assert run.run(good)
    capsys.readouterr()
    assert not run.run(both)
    told = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(("1|", "2|"))]
    assert any("FAILED" in line and "test_bad.py::test_bad" in line for line in told)
    assert "E   ValueError: at 7" in told


@pytest.mark.slow
@pytest.mark.parametrize("trap", ["", "trap '' INT; "], ids=["as usual", "with SIGINT ignored"])
def test_an_interrupted_run_ends_its_lanes(trap: str, tmp_path: Path) -> None:
    """A lane ends by SIGINT, so that pytest tears down what its fixtures started."""
    (tmp_path / "test_long.py").write_text(
        "import pathlib, time, pytest\nhere = pathlib.Path(__file__).parent\n"
        "@pytest.fixture\ndef server():\n    yield\n    (here / 'ended').touch()\n"
        "def test_long(server):\n    (here / 'begun').touch()\n"
        "    while not (here / 'over').exists():\n        time.sleep(0.1)\n"
    )
    source = (
        "import os, sys; from tests import run\n"
        f"run.run([run.start(1, [{str(tmp_path / 'test_long.py')!r}], ['-p', 'no:cacheprovider', '-c', os.devnull])])"
    )
    command = ["sh", "-c", f'{trap}exec "$0" -c "$1"', sys.executable, source]
    runner = subprocess.Popen(command, cwd=selection.ROOT, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "begun").exists()
        runner.send_signal(signal.SIGINT)
        runner.wait(120)
        ended = (tmp_path / "ended").exists()
    finally:
        (tmp_path / "over").touch()  # a lane that was not ended ends by itself
        runner.kill()
        runner.wait()
    assert ended


def test_the_stored_times_have_both_columns() -> None:
    stored = json.loads(selection.SECONDS.read_text())
    assert set(stored) == {"proof", "all"}
    assert set(stored["proof"]) <= set(stored["all"])


@pytest.mark.wide
@pytest.mark.slow
def test_the_proof_of_one_case_of_a_thinned_test_is_that_case() -> None:
    """As `first` of a planted bug may name it."""
    test, named, kept = next(iter(selection.thinned())), selection.named_by_bugs(), selection.thinned()
    cases = _in_order("--override-ini=addopts=", test)
    proof = [case for case in cases if selection.in_proof(case, wide=False, names=named, kept=kept)]
    assert proof
    assert len(proof) < len(cases)
    assert _in_order("--proof", test) == proof
    assert _in_order("--proof", proof[0]) == proof[:1]


def _in_order(*arguments: str) -> list[str]:
    return listed(selection.ROOT, "-p", "no:randomly", *arguments)


def test_of_a_thinned_test_the_proof_has_the_cases_that_are_kept_and_those_that_a_bug_names() -> None:
    kept = {"tests/a.py::test": ("one", "two")}

    def has(case: str, *, wide: bool = False, names: tuple[str, ...] = ()) -> bool:
        return selection.in_proof(f"tests/a.py::test[{case}]", wide=wide, names=names, kept=kept)

    assert has("one-x")
    assert has("x-two")
    assert not has("three")
    assert not has("one", wide=True)
    assert has("three", names=("tests/a.py::test[three]",))
    assert selection.in_proof("tests/a.py::test_other[three]", wide=False, names=(), kept=kept)


def test_a_kept_case_that_does_not_exist_is_an_error() -> None:
    """A case that is renamed would leave the proof without a word."""
    kept = {"tests/a.py::test": ("there", "gone"), "tests/b.py::test": ("of a file that is not in this run",)}
    assert selection.lost_cases(kept, ["tests/a.py::test[there]", "tests/a.py::test_other[gone]"]) == [
        "tests/a.py::test[gone"
    ]


def test_every_thinned_test_exists_and_says_why() -> None:
    for test in tomli.loads((selection.ROOT / "tests" / "thinned.toml").read_text())["test"]:
        file, _, function = test["name"].partition("::")
        assert f"def {function}(" in (selection.ROOT / file).read_text(), test["name"]
        assert test["why"]


def test_what_is_fast_is_in_the_folder_that_needs_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[tuple[list[str], list[str]]] = []

    def run_part(_took: str, files: list[str], _lanes: int, options: list[str]) -> bool:
        began.append((files, options))
        return True

    monkeypatch.setattr(run, "run_part", run_part)
    assert run.main(["--fast"]) == 0
    [(files, options)] = began
    assert files == [file for file in FILES if file.startswith("tests/pure/")]
    assert options == ["--fast"]
