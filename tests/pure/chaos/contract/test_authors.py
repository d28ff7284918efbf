"""What authors are shown: the example proves itself, a broken one fails, the page quotes what runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "authors.md"
PLUGIN = ("-p", "epochal.chaos.pytest_plugin")

FENCE = "            self._conditions.check_owner(self._state(connection, query.app), by)\n"
MARKER = '            self._set(connection, app, "position = ?, decision = ?", wanted.position, wanted.decision)\n'
TAKE = '            self._set(connection, query.app, "generation = ?, token = ?", by.generation, by.token)\n'
SHOW = '            show = "UPDATE votes SET shown = 1 WHERE vote = ? AND app = ? AND sink = ?"\n'
AGAIN = '            connection.execute("COMMIT")\n            connection.execute("BEGIN IMMEDIATE")\n'
TURN = """            if not found or self._count(connection, vote) != committable.rows:
                raise PreparedLost("the prepared rows are gone", sink=self.name, help="restart the query")
            self._drop(connection, "app = ? AND sink = ? AND NOT shown", app, self.name)
"""
BODY = f"""{SHOW}            found = connection.execute(show, (vote, app, self.name)).rowcount
{TURN}{MARKER}"""
COUNTED = """            if self._count(connection, vote) != committable.rows:
                raise PreparedLost("the prepared rows are gone", sink=self.name, help="restart the query")
            self._drop(connection, "app = ? AND sink = ? AND NOT shown AND vote <> ?", app, self.name, vote)
"""
CONNECT = "        with contextlib.closing(sqlite3.connect(self.path, self._timeout, isolation_level=None)) as other:\n"
MARKED = '"UPDATE sinks SET position = ?, decision = ? WHERE app = ? AND sink = ?", (*{}, app, self.name)'
SHOWN = 'other.execute("UPDATE votes SET shown = 1 WHERE vote = ?", (vote,))\n'
WANTED = "(wanted.position, wanted.decision)"
HELPER = f"""

def _publish(self, app, vote, wanted):
{CONNECT.removeprefix("    ").replace("        with", "    with")}        other.execute({MARKED.format(WANTED)})
        {SHOWN}"""
BROKEN = {
    "abort asks no fence": (FENCE, ""),
    "the marker is durable before the rows": (SHOW, MARKER + AGAIN + SHOW),
    "an older vote is taken for shown": (
        "            if self._conditions.already_committed(state, by, wanted, committable.decision.epoch):\n",
        "            if committable.decision.actor != by:\n",
    ),
    "the marker is durable before the rows, in transactions of their own": (
        BODY,
        f"{COUNTED}{CONNECT}            other.execute({MARKED.format(WANTED)})\n            {SHOWN}",
    ),
    "and in a function outside the class": (BODY, f"{COUNTED}        _publish(self, app, vote, wanted)\n"),
    "and undone by whoever is there to undo it": (
        BODY,
        f"""{COUNTED}{CONNECT}            before = state.marker
            try:
                other.execute({MARKED.format(WANTED)})
                {SHOWN}            except BaseException:
                old = (before.position, before.decision) if before is not None else (None, None)
                other.execute({MARKED.format("old")})
                raise
""",
    ),
    "the fence of a commit is asked in one transaction and acted on in another": (SHOW, AGAIN + SHOW),
    "the fence of a fence": (TAKE, AGAIN + TAKE),
    "the fence of an abort": (FENCE, FENCE + AGAIN),
}
TRUNCATED = (
    "for row in rows)\n            connection",
    "for row in itertools.islice(rows, 100))\n            connection",
)


def prove(folder: Path, *options: str) -> tuple[int, str]:
    """Run the proof that lies in a folder, as its author does."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where syncing a file takes no time
    with tempfile.TemporaryDirectory(dir=memory) as files:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN, *options, str(folder)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": files},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    return done.returncode, done.stdout + done.stderr


def broken(folder: Path, old: str, new: str) -> Path:
    """The example with a few lines changed, and its proof as it is."""
    for file in EXAMPLES.glob("*sqlite_sink.py"):
        text = file.read_text()
        if not file.name.startswith("test_"):
            assert text.count(old) == 1, old
            text = text.replace(old, new).replace("import json\n", "import itertools\nimport json\n") + HELPER
        (folder / file.name).write_text(text)
    return folder


@pytest.mark.wide
@pytest.mark.slow
def test_the_example_passes_its_proof() -> None:
    code, said = prove(EXAMPLES, "-rP")
    assert code == 0, said
    singles = re.search(r"^(\d+) of (\d+) schedules, \d+ distinct traces$", said, re.MULTILINE)
    assert singles is not None, said
    assert int(singles[1]) == int(singles[2]) > 500
    assert re.search(r"^100 of at least \d{5} schedules, \d+ distinct traces$", said, re.MULTILINE)
    assert f"epochal chaos: survived {int(singles[1]) + 100} of " in said
    assert re.search(r"\d\d passed", said)


def test_the_proof_is_short() -> None:
    assert len((EXAMPLES / "test_sqlite_sink.py").read_text().splitlines()) < 60


@pytest.mark.slow
def test_without_the_fence_the_contract_fails(tmp_path: Path) -> None:
    code, said = prove(broken(tmp_path, FENCE, ""), "-k", "SinkContract or TestSqliteSink")
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "test_abort_by_an_older_actor_is_fenced_and_drops_nothing" in said
    assert "DID NOT RAISE" in said


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), BROKEN.values(), ids=BROKEN)
def test_a_broken_one_does_not_survive(tmp_path: Path, old: str, new: str) -> None:
    code, said = prove(broken(tmp_path, old, new), "-x", "-p", "no:randomly", "-k", "survives")
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "DidNotSurvive" in said
    assert "# Put this below test_it_survives, and run it with --epochal-chaos:" in said


@pytest.mark.slow
def test_one_that_loses_what_comes_after_the_hundredth_row_fails_the_contract(tmp_path: Path) -> None:
    code, said = prove(broken(tmp_path, *TRUNCATED), "-k", "TestSqliteSink")
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "1 failed" in said
    assert "test_an_epoch_of_thousands_of_rows_is_shown_to_the_last" in said


FAILS_AND_SHOWS = """
import pytest
from epochal.chaos.contract import SinkContract, SinkHarness
from epochal.sinks.memory import MemoryServer, MemorySink

class Blind(SinkHarness):
    def __init__(self):
        self.server = MemoryServer()
    def named(self, name):
        return MemorySink(name, self.server)
    def visible(self):
        return [("x", "y")]

class TestBlind(SinkContract):
    @pytest.fixture
    def harness(self):
        return Blind()
"""


@pytest.mark.slow
def test_an_assertion_of_the_contract_shows_its_values(tmp_path: Path) -> None:
    """As in the author's own file: pytest rewrites the suite."""
    (tmp_path / "test_blind.py").write_text(FAILS_AND_SHOWS)
    code, said = prove(tmp_path, "-k", "nothing_is_visible_before")
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "assert [('x', 'y')] == []" in said


@pytest.mark.slow
def test_a_contract_without_a_harness_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text(
        "from epochal.chaos.contract import SinkContract\nclass TestNone(SinkContract): pass\n"
    )
    code, said = prove(tmp_path, "-k", "nothing_is_visible_before")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "define the fixture `harness`" in said


NO_PYTEST = """
import sys
sys.modules["pytest"] = None
import epochal
from epochal.chaos import replay_last_epoch, trial
from epochal.chaos.simulate import simulation
try:
    import epochal.chaos.contract
except epochal.Misconfigured as error:
    print(error.what, "|", error.help)
"""


def test_without_pytest_only_the_contract_is_missing_and_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_PYTEST], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert done.stdout == ("the contract suites need the package pytest, which is not installed | pip install pytest\n")


def test_the_page_quotes_what_runs() -> None:
    blocks = re.findall(r"<!-- ([^\n]+) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == PAGE.read_text().count("```python") == 4
    quoted = [(name, text) for name, text in blocks if (ROOT / name).is_file()]  # tests/real/chaos runs the others
    assert len(quoted) == 2
    for name, text in quoted:
        assert text in (ROOT / name).read_text()


def test_the_page_names_every_fault_and_counts_the_lines() -> None:
    from epochal.chaos.trial import ACTIONS

    page = PAGE.read_text()
    assert [action.name for action in ACTIONS if f"`{action.name}`" not in page] == []
    for name, said in (("sqlite_sink.py", 135), ("test_sqlite_sink.py", 60)):
        assert abs(len((EXAMPLES / name).read_text().splitlines()) - said) < 5
