"""The examples, struck through the console command: what is wrong is found, and what is right is let pass."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.chaos.cli import INVALID, UNKNOWN, VALID
from epochal.chaos.observe import recording
from epochal.chaos.observe.history import Ended, Fault

ROOT = Path(__file__).parents[4]
pytestmark = [pytest.mark.wide, pytest.mark.timeout(900)]

AFTER = "kill:driver:after-return"
AT_ROW = "kill:driver:at-row#5"


def epochal(example: str, strikes: Sequence[str], folder: Path, *more: str) -> tuple[int, str, set[str]]:
    """(exit code, output, the invariants that are violated) of a run on one example."""
    target = f"examples.chaos.{example}"
    command = ["chaos", "run", "--target", f"{target}:write", "--reader", f"{target}:read", "--history", str(folder)]
    command += [word for strike in strikes for word in ("--strike", strike)]
    done = subprocess.run(
        [sys.executable, "-m", "epochal.coordinator.console.cli", *command, *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, violated(folder / "round-1.jsonl")


def violated(history: Path) -> set[str]:
    """Judged again, from the file alone."""
    done = subprocess.run(
        [sys.executable, "-m", "epochal.coordinator.console.cli", "chaos", "check", "--json", str(history)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    (told,) = json.loads(done.stdout)["histories"]
    return {f["invariant"] for f in told["findings"] if f["verdict"] == "false"}


@pytest.mark.parametrize(
    ("example", "strikes", "more", "wrong"),
    [
        pytest.param("delta_append", [AFTER], [], {"I2", "I11"}, id="a plain Delta append duplicates"),
        pytest.param("jdbc_append", [AFTER], ["--server", "postgres"], {"I2", "I11"}, id="Spark JDBC duplicates"),
        pytest.param("kafka_sink", [AFTER], ["--server", "kafka"], {"I2", "I11"}, id="Spark's Kafka sink duplicates"),
        pytest.param("kafka_sink", [AT_ROW], ["--server", "kafka"], {"I2", "I3"}, id="Spark's Kafka sink tears"),
        pytest.param(
            "delta_txn", ["delete:checkpoint:after-return"], [], {"I1", "I11"}, id="Delta's txnAppId loses rows"
        ),
    ],
)
def test_what_is_wrong_is_found(
    example: str, strikes: Sequence[str], more: Sequence[str], wrong: set[str], tmp_path: Path
) -> None:
    code, output, found = epochal(example, strikes, tmp_path, *more)
    assert code == INVALID, output
    assert wrong <= found, output
    assert f"--strike {shlex.quote(strikes[0])}" in output  # the command that shows it again


@pytest.mark.parametrize(
    ("example", "more", "strikes"),
    [
        ("delta_txn", [], [AFTER, "pause:driver:after-job"]),
        ("postgres_marker", ["--server", "postgres"], ["kill:worker:at-row#4", AT_ROW]),
    ],
)
def test_what_is_right_is_let_pass(example: str, more: Sequence[str], strikes: Sequence[str], tmp_path: Path) -> None:
    code, output, found = epochal(example, strikes, tmp_path, *more)
    assert (code, found) == (VALID, set()), output
    told, about = recording.load(tmp_path / "round-1.jsonl")
    struck = [f"{fault.kind} {fault.victim}" for _, fault in told.history.of(Fault) if not fault.healed]
    assert sorted(struck) == sorted(" ".join(strike.split(":")[:2]) for strike in strikes)
    assert [end.outcome for _, end in told.history.of(Ended)][-1] == "finished"
    assert about["seed"] == 0


def test_errors_inside_one_process(tmp_path: Path) -> None:
    code, output, found = epochal("postgres_marker", [], tmp_path, "--server", "postgres", "--tier", "3")
    assert (code, found) == (VALID, set()), output
    wrong = "raise:driver:after-return"
    code, output, found = epochal("jdbc_append", [wrong], tmp_path, "--server", "postgres", "--tier", "3")
    assert code == INVALID, output
    assert "I2" in found


def test_a_function_that_is_not_exact_without_any_fault_proves_nothing(tmp_path: Path) -> None:
    code, output, _ = epochal("delta_append", [AFTER], tmp_path, "--source", "tests.real.chaos.campaign.wrong:half")
    assert code == UNKNOWN, output
    assert "without any fault the output is not exact" in output
