"""What `make test-matrix` says of its rows, and how it ends."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from epochal.chaos.servers import ServerUnavailable, environments
from epochal.coordinator.environment import versions
from tests.matrix import __main__ as matrix
from tests.matrix import rows
from tests.matrix.__main__ import Result, Verdict
from tests.matrix.rows import Missing, Ready, Row

ROOT = Path(__file__).parents[3]


def result(verdict: Verdict) -> Result:
    return Result(verdict, "told", 1.4)


def row(part: str = "Part", version: str = "1", ready: Callable[[], Ready] = Ready) -> Row:
    return Row(part, version, "what", (), ready)


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ([Verdict.PASSED, Verdict.PASSED], 0),
        ([Verdict.PASSED, Verdict.FAILED], 1),
        ([Verdict.PASSED, Verdict.MISSING], 3),
        ([Verdict.MISSING, Verdict.FAILED, Verdict.PASSED], 1),
    ],
)
def test_the_exit_status_tells_the_worst(verdicts: list[Verdict], status: int) -> None:
    assert matrix.exit_status([result(verdict) for verdict in verdicts]) == status


@pytest.mark.parametrize(
    ("output", "verdict", "told"),
    [
        ("..\n2 collected = 2 passed\n2 passed in 1 s\n", Verdict.PASSED, "passed 2 tests"),
        (
            "F.\n2 collected IS NOT 1 failed, 1 passed\nFAILED tests/a.py\n",
            Verdict.FAILED,
            "failed: 1 failed, 1 passed of 2 tests",
        ),
        ("2 collected IS NOT 1 skipped, 1 passed\n", Verdict.FAILED, "failed: 1 skipped, 1 passed of 2 tests"),
        ("0 collected = \n", Verdict.FAILED, "failed:  of 0 tests"),
        (
            "ERROR: file or directory not found: tests/none\n\n",
            Verdict.FAILED,
            "failed: ERROR: file or directory not found: tests/none",
        ),
        ("", Verdict.FAILED, "failed: nothing was printed"),
    ],
)
def test_a_test_that_did_not_run_has_not_passed(output: str, verdict: Verdict, told: str) -> None:
    assert matrix.judge(output) == (verdict, told)


def test_the_table_has_a_line_for_every_row() -> None:
    shown = [row("Kafka broker", "3.6.2"), row("pgbouncer")]
    results = [Result(Verdict.PASSED, "passed 91 tests", 210.6), Result(Verdict.MISSING, "missing: a program", 0.0)]
    assert matrix.table(shown, results).splitlines() == [
        "| part         | version | what was run | result             | seconds |",
        "|--------------|---------|--------------|--------------------|---------|",
        "| Kafka broker | 3.6.2   | what         | passed 91 tests    | 211     |",
        "| pgbouncer    | 1       | what         | missing: a program | 0       |",
    ]


@pytest.mark.parametrize(
    "error", [Missing("no program pgbouncer on PATH"), ServerUnavailable("no program pgbouncer on PATH", "look")]
)
def test_what_a_row_lacks_is_named_and_the_others_run(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks() -> Ready:
        raise error

    monkeypatch.setattr(matrix, "rows", lambda: [row("Pool", ready=lacks), row("Other")])
    monkeypatch.setattr(matrix, "_test", lambda *_: (Verdict.PASSED, "passed 1 tests"))
    assert matrix.main([]) == 3
    printed = capsys.readouterr().out
    assert "| Pool  | 1       | what         | missing: no program pgbouncer on PATH |" in printed
    assert "| Other | 1       | what         | passed 1 tests " in printed


def test_words_choose_rows(capsys: pytest.CaptureFixture[str]) -> None:
    every = [row("Kafka broker", "3.6.2"), row("Kafka broker", "3.9.2"), row("Spark", "4.0.4")]
    assert matrix.choose(every, []) == every
    assert matrix.choose(every, ["kafka"]) == every[:2]
    assert matrix.choose(every, ["kafka broker 3.9", "SPARK"]) == every[1:]
    assert matrix.main(["flink"]) == 1
    assert "no row begins with flink" in capsys.readouterr().err


def test_pgbouncer_is_looked_for_and_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="no program pgbouncer on PATH"):
        rows._pgbouncer()
    program = tmp_path / "pgbouncer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert rows._pgbouncer() == Ready()


def test_a_python_is_looked_for_and_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match=r"no program python3\.12 on PATH"):
        rows._with_python("3.12")


@pytest.mark.parametrize("words", ["said no\n", ""])
def test_what_cannot_be_downloaded_is_missing(words: str) -> None:
    with pytest.raises(ServerUnavailable, match=r"ended with 7: " + (words.strip() or "it said nothing")):
        environments.call([sys.executable, "-c", f"import sys; sys.stderr.write({words!r}); sys.exit(7)"])


def test_every_version_of_the_table_has_its_row() -> None:
    found = {(each.part, each.version) for each in rows.rows()}
    named = {(part.name, version) for part in versions.PARTS for version in part.matrix if part is not versions.SPARK}
    also = {("Postgres", version) for version in versions.POSTGRES[:-1]} | {("pgbouncer", "transaction mode")}
    also |= {("Object store", f"versitygw {versions.VERSITYGW}")}
    assert {row for row in found if row[0] != "Spark"} == named | also
    of_spark = [version.partition(" with Delta ") for part, version in found if part == "Spark"]
    pairs = {(spark, delta or versions.series_of(spark).delta_jar) for spark, _, delta in of_spark}
    known = {pair for each in versions.SERIES for pair in each.pairs}
    assert known - pairs == {(versions.PYSPARK, versions.DELTA_JAR)}, "this one is in `make test`"
    assert pairs <= known


def test_rows_name_tests_that_exist() -> None:
    for name in {test for each in rows.rows() if each.part != "pgbouncer" for test in each.tests}:
        file, _, test = name.partition("[")[0].partition("::")
        assert (ROOT / file).exists(), name
        assert not test or re.search(rf"^(def|class) {test}\b", (ROOT / file).read_text(), re.M), name
