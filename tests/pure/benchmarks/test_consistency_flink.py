"""Flink under faults, without Flink: what is planned, where a start goes on from, how a history becomes cells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.flink import endless, job
from benchmarks.peers.flink.starts import PROGRAM, ROOT, Starts
from benchmarks.tables import consistency_flink
from benchmarks.tables.consistency_flink import CLEAN_EPOCHS, FILES, KINDS, OUTPUT, SEEDS, Planned, cells_of, plans
from epochal.chaos.observe.history import History, Read, Row
from epochal.chaos.observe.run import Run

# --- what is planned ----------------------------------------------------------------------------


def test_a_seed_says_the_runs_and_every_kind_has_its_turn() -> None:
    first, alone = plans(SEEDS[0], list(KINDS))
    assert [each.kind for each in alone.values()] == [kind for kind in KINDS if KINDS[kind].alone]
    assert {each.kind for each in first.values()} | {each.kind for each in alone.values()} == KINDS.keys()
    assert list(first) == list(range(CLEAN_EPOCHS, CLEAN_EPOCHS + len(first)))
    assert plans(SEEDS[0], list(KINDS)) == [first, alone]
    (second,) = plans(SEEDS[1], list(KINDS))
    assert {each.kind: each.files for each in second.values()} != {each.kind: each.files for each in first.values()}
    assert all(0 < each.files < FILES for run in (first, second) for each in run.values()), "in mid-epoch"


def test_a_part_of_the_kinds_is_a_part_of_the_runs() -> None:
    assert plans(1, ["killed writing"]) == [{CLEAN_EPOCHS: Planned("killed writing", consistency_flink.MOMENTS[1])}]
    assert [list(run) for run in plans(1, ["checkpoint lost"])] == [[CLEAN_EPOCHS]]
    assert plans(2, ["checkpoint lost"]) == []


# --- a start ------------------------------------------------------------------------------------


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    made = Starts(tmp_path, "host:1", "topic", "exactly-once")
    made.victims += [None, None]  # type: ignore[list-item]  # of both only the folders are looked at
    return made


def checkpoint(folder: Path, start: int, number: int, *, whole: bool = True) -> Path:
    made = folder / f"start-{start}" / "checkpoints" / "ab12" / f"chk-{number}"
    made.mkdir(parents=True)
    if whole:
        (made / "_metadata").touch()
    return made


def test_a_start_goes_on_from_the_newest_whole_checkpoint_of_the_newest_start(starts: Starts, tmp_path: Path) -> None:
    assert starts.checkpoint() is None
    assert starts.completed == 0
    old = checkpoint(tmp_path, 0, 9)
    assert starts.checkpoint() == old, "the newest start has none yet"
    assert starts.completed == 0, "of the newest start alone"
    checkpoint(tmp_path, 1, 9)
    newest = checkpoint(tmp_path, 1, 10)
    checkpoint(tmp_path, 1, 11, whole=False)
    checkpoint(tmp_path, 0, 12)  # of a zombie
    assert starts.checkpoint() == newest
    assert starts.completed == 10


def test_checkpoints_that_are_forgotten_are_gone_on_from_by_nobody(starts: Starts, tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, 1)
    checkpoint(tmp_path, 1, 2)
    starts.forget()
    assert starts.checkpoint() is None


def test_the_program_finds_all_that_it_imports_without_the_project_s_packages(tmp_path: Path) -> None:
    program = [sys.executable, "-S", "-c", f"import {PROGRAM}"]
    done = subprocess.run(
        program, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")


ASKED = {"source": "/in", "bootstrap": "host:1", "topic": "t", "guarantee": "exactly-once", "jars": ["/a.jar"]}


def test_the_job_is_that_of_the_other_table_without_keys_and_without_an_end() -> None:
    lines, rows = endless.lines(ASKED), job.target("host:1", "t", "exactly-once")
    assert rows.items() >= lines.items()
    assert set(rows) - set(lines) == {"key.format", "key.fields", "value.fields-include"}
    fresh = endless.settings({**ASKED, "checkpoints": "/c", "since": None})
    assert fresh.items() >= job.SETTINGS.items()
    again = endless.settings({**ASKED, "checkpoints": "/c", "since": "/c/ab12/chk-3"})
    assert again == {**fresh, "execution.state-recovery.path": "/c/ab12/chk-3"}


# --- from a history to cells ----------------------------------------------------------------------

EXPECTED = {epoch: tuple(Row(epoch, epoch * 1_000 + n, 0, 1) for n in range(3)) for epoch in range(4)}
ALL = tuple(row for rows in EXPECTED.values() for row in rows)
PLANNED = {2: Planned("zombie", 3), 3: Planned("killed writing", 7)}


def told(*reads: tuple[Row, ...], struck: tuple[int, ...] = (2, 3), why: str = "") -> dict[str, tuple[str, int, int]]:
    """Kind -> verdict, epochs lost, epochs duplicated."""
    history = History()
    for rows in reads:
        history.add(Read({OUTPUT: rows}))
    found = cells_of("flink", Run(history, (OUTPUT,), EXPECTED, proves_nothing=why), PLANNED, struck)
    return {cell.fault: (cell.verdict, cell.lost, cell.duplicated) for cell in found}


def test_every_row_once_is_clean_also_where_readers_saw_a_part() -> None:
    clean = {"zombie": ("clean", 0, 0), "killed writing": ("clean", 0, 0)}
    assert told(ALL) == clean
    assert told(ALL[:7], ALL[:2], ALL) == clean


def test_rows_that_are_missing_or_there_twice_are_blamed_on_the_strike_before() -> None:
    assert told(ALL[:-1]) == {"zombie": ("clean", 0, 0), "killed writing": ("wrong", 1, 0)}
    assert told((*ALL, EXPECTED[2][0])) == {"zombie": ("wrong", 0, 1), "killed writing": ("clean", 0, 0)}


def test_a_run_that_broke_off_is_no_pass_and_says_nothing_of_loss() -> None:
    verdicts = {kind: found[:2] for kind, found in told(ALL[:-1], struck=(2,), why="no answer").items()}
    assert verdicts == {"zombie": ("unknown", 0), "killed writing": ("not struck", 0)}


def test_a_run_without_a_strike_says_nothing() -> None:
    assert {found[0] for found in told(ALL, struck=(), why="not exact").values()} == {"not struck"}
