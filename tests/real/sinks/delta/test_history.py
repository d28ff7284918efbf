"""What a table's history tells of the epochs, to Spark and to delta-rs, beside what others write into it."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal.coordinator.model.epoch import Digest
from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.sinks.delta import DeltaSink, history
from epochal.sinks.delta import sink as of_delta
from epochal.sinks.epochs import Epochs, Wanted
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import Start, query
from tests.real.sinks.kept import FORMATS


def told(path: Path, **asked: Any) -> Epochs:
    return DeltaSink(str(path), name="out").epochs("app", **asked)


def by_delta_rs(path: Path, **asked: Any) -> Epochs:
    return history.read(history.by_delta_rs(str(path), "out"), "app", "out", Wanted(**asked))


def untimed(epochs: Epochs) -> list[dict[str, Any]]:
    """Delta takes the time of the file, delta-rs what the commit says."""
    return [{name: value for name, value in vars(row).items() if name != "committed_at"} for row in epochs]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Start:
    sink = DeltaSink(str(tmp_path / "t"), name="out")
    sink.create(query("app"), spark.createDataFrame([], "id bigint").schema)
    return Start(spark, tmp_path / "t").fenced()


def test_spark_and_delta_rs_tell_the_same_with_digest_and_watermark(spark: SparkSession, start: Start) -> None:
    rows = spark.range(3).coalesce(1)
    start.show(rows)
    start.commit(replace(start.prepare(rows, 2), digest=Digest(3, 2**63 - 1)))
    by_spark = told(start.path)
    assert untimed(by_spark) == untimed(by_delta_rs(start.path))
    assert [(r.position, r.rows, r.digest, r.watermark) for r in by_spark] == [
        (1, 3, None, 7),
        (2, 3, Digest(3, 2**63 - 1), 7),
    ]
    for one, other in zip(by_spark, by_delta_rs(start.path), strict=True):
        assert abs((one.committed_at - other.committed_at).total_seconds()) < 60
    assert by_spark.spark(spark).select("position", "committed_at").collect()[1].position == 2


def test_commits_of_others_are_none_of_it_and_are_looked_past(start: Start, spark: SparkSession) -> None:
    start.show(spark.range(1).coalesce(1))
    first = support.version(start.path) + 1
    foreign = [
        "free text",
        "[1]",
        "17",
        "{}",
        json.dumps({"app": "app", "sink": "out"}),
        json.dumps({"app": "app", "sink": "other", "position": 9}),
        json.dumps({"app": "other", "sink": "out", "position": 9}),
    ]
    for version in range(first, first + history.FIRST_LOOK + 5):
        said = {"timestamp": 1, "operation": "WRITE", "userMetadata": foreign[version % len(foreign)]}
        actions = [{"commitInfo": {**said, "operationParameters": {}}}]
        file = start.path / "_delta_log" / f"{version:020}.json"
        file.write_text("".join(json.dumps(action) + "\n" for action in actions))
    support.forget_snapshots(spark)
    for tell in (told, by_delta_rs):
        assert [row.position for row in tell(start.path, limit=1)] == [1]


@pytest.mark.usefixtures("spark")
def test_an_old_commit_is_told_without_what_it_did_not_say(tmp_path: Path) -> None:
    """Of the first Epochal: an epoch of idempotent mode whose digest stands in the transaction ids alone."""
    shutil.copytree(FORMATS / "delta-v1", tmp_path / "t")
    (row,) = told(tmp_path / "t")
    assert (row.position, row.epoch, row.incarnation, row.rows, row.digest, row.offsets) == (1, 0, "q1", 0, None, "{}")
    assert untimed(told(tmp_path / "t")) == untimed(by_delta_rs(tmp_path / "t"))


@pytest.mark.remedy(
    "delta-rs does not find a table whose path has …: …",
    "ask from a process with a SparkSession, or move the table to a path without it",
)
@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b", "file:a%23b"])
def test_a_path_that_delta_rs_takes_for_another_is_refused_without_spark(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """D4: it told of no epochs, or of those of the table at the path that it decoded."""
    scheme, name = name.rpartition(":")[::2]
    path = f"{scheme}:{tmp_path / name}" if scheme else str(tmp_path / name)
    sink = DeltaSink(path, name="out")
    sink.create(query("app"), spark.range(1).schema)
    Start(spark, tmp_path / name, sink=sink).fenced().show(spark.range(3).coalesce(1))
    assert [row.rows for row in told(tmp_path / name)] == [3]
    inspection = sink.inspection(query("app"))
    for ask in (lambda: history.by_delta_rs(path, "out"), lambda: list(inspection.counts(1, 1)), inspection.columns):
        with pytest.raises(SinkUnavailable, match="delta-rs does not find a table whose path has") as refused:
            ask()
        assert "ask from a process with a SparkSession" in refused.value.help
    (tmp_path / name).rename(tmp_path / "a")
    assert [row.rows for row in by_delta_rs(tmp_path / "a")] == [3]


def test_a_blank_in_the_path_is_read_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    """D4: as is every other sign that delta-rs reads as it is."""
    path = tmp_path / "a b+c&d=100%é"
    sink = DeltaSink(str(path), name="out")
    sink.create(query("app"), spark.range(1).schema)
    Start(spark, path, sink=sink).fenced().show(spark.range(3).coalesce(1))
    assert [row.rows for row in by_delta_rs(path)] == [3]
    assert list(sink.inspection(query("app")).rows(1, ["id"])) == [(0,), (1,), (2,)]


@pytest.mark.usefixtures("spark")
def test_where_there_is_no_table_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="there is no Delta table at"):
        told(tmp_path / "none")


def test_what_needs_spark_or_a_package_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_delta, "running_session", lambda: None)
    with pytest.raises(Misconfigured, match="a name in Spark's session catalog, and no Spark runs"):
        DeltaSink(table="default.t", name="out").epochs("app")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(Misconfigured, match="the package that reads Delta without it is missing") as refused:
        told(tmp_path)
    assert refused.value.help.startswith("pip install 'deltalake>=1.6'")
