"""Each workload on a real Spark: what comes out without faults is what was computed without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal.chaos.job import program, workloads
from epochal.chaos.job.program import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BASE = 1_790_000_000 * 10**9
"""As the clock makes it for a run in 2026: near the end of what a long can hold."""
EPOCHS = 5


def feed(folder: Path, name: str, epochs: int) -> Mapping[int, Any]:
    """Files as the kit writes them, one per epoch; the rows that are expected."""
    work = workloads.make_workload(name, BASE)
    fed: dict[int, Any] = {}
    folder.mkdir(exist_ok=True)
    for epoch in range(epochs):
        fed[epoch] = work.inputs(epoch, BASE + epoch * workloads.STRIDE)
        workloads.feed(folder, epoch, fed[epoch])
    return fed


@pytest.fixture
def settled(spark: SparkSession) -> Any:
    """The kit's session settings on the session of the run."""
    conf = {"spark.sql.streaming.noDataMicroBatches.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    before = {key: spark.conf.get(key) for key in conf}
    for key, value in conf.items():
        spark.conf.set(key, value)
    yield spark
    for key, old in before.items():
        spark.conf.set(key, old or "")


@pytest.mark.wide
@pytest.mark.parametrize("name", workloads.NAMES)
def test_what_comes_out_is_what_was_expected(name: str, settled: SparkSession, tmp_path: Path) -> None:
    fed = feed(tmp_path / "source", name, EPOCHS)
    settings = Settings("", name, BASE, str(tmp_path / "source"), str(tmp_path / "checkpoint"))
    found: dict[int, Counter[tuple[int, int]]] = {}
    attempts: list[str] = []

    def collect(df: DataFrame, epoch: int) -> None:
        rows = [row for row in df.collect() if not row.asDict().get("deleted")]
        found[epoch] = Counter((row["id"], row["n"]) for row in rows)
        attempts.extend(row["attempt"] for row in rows)

    program.start(program.stream(settled, settings), collect, settings.checkpoint, name).awaitTermination()
    work = workloads.make_workload(name, BASE)
    expected = work.expected(fed)
    assert found == {epoch: Counter((row.key, row.value) for row in rows) for epoch, rows in expected.items()}
    assert len(set(attempts)) == len(attempts) > 0
    if name == "upsert":  # its inputs are changes to rows
        return
    accounted = sum(len(work.accounts(inputs)) for inputs in fed.values())
    standing = [expected[max(expected)]] if name == "complete" else expected.values()
    told = sum(row.value if work.counted else 1 for rows in standing for row in rows)
    assert told + work.pending(fed) == accounted


@pytest.mark.parametrize("name", sorted(workloads.STATEFUL))
def test_state_is_compared_with_that_of_a_run_without_failure(name: str, settled: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path / "source", name, 3)
    settings = Settings("", name, BASE, str(tmp_path / "source"), str(tmp_path / "checkpoint"))
    program.start(program.stream(settled, settings), program.evaluate, settings.checkpoint, name).awaitTermination()
    told = program.compare_state(settled, settings)
    assert told["epoch"] == 2
    assert told["state"] == told["reference"] != []
