"""Delta tables as the tests see them: made small, read by a client that knows nothing of Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Decision, Epoch, Json, Query
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.delta import DeltaSink
from epochal.sinks.delta.lineage import log_file
from epochal.sinks.protocol import CommitOutcome, RedoSink
from epochal.sinks.spark.stage import SparkStage

S = TypeVar("S", bound="Start")


def read(path: Path) -> pa.Table:
    """All rows of the table's newest version, by delta-rs."""
    return pa.table(DeltaTable(str(path)).to_pyarrow_table())


def column(path: Path, name: str) -> list[Any]:
    """One column of it, sorted."""
    return sorted(read(path).column(name).to_pylist())


def version(path: Path) -> int:
    """The table's newest version, by delta-rs."""
    return DeltaTable(str(path)).version()


def data_files(path: Path) -> set[str]:
    """Every data file in the table's folder, whether the log names it or not."""
    return {str(file.relative_to(path)) for file in path.rglob("*.parquet") if "_delta_log" not in file.parts}


def foreign_append(spark: SparkSession, path: Path, rows: Sequence[tuple[Any, ...]], schema: str) -> None:
    """Somebody else's append."""
    spark.createDataFrame(list(rows), schema).coalesce(1).write.format("delta").mode("append").save(str(path))


def foreign_append_by_delta_rs(path: Path, rows: Sequence[Json]) -> None:
    """Somebody else's append, by a client without Spark."""
    write_deltalake(str(path), pa.Table.from_pylist(list(rows)), mode="append")


def forget_snapshots(spark: SparkSession) -> None:
    """As in a fresh process: Delta holds nothing of any table in memory."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def sql(spark: SparkSession, path: Path, statement: str) -> None:
    """Run a statement on the table, written as ``{t}``."""
    spark.sql(statement.format(t=f"delta.`{path}`"))


def live_files(path: Path) -> list[str]:
    """The data files that the newest version names."""
    return sorted(str(Path(uri.removeprefix("file://")).relative_to(path)) for uri in DeltaTable(str(path)).file_uris())


def upgrade(spark: SparkSession, path: Path, protocol: Json) -> None:
    """The table's next version asks for that protocol, as a newer Delta may."""
    name = f"{version(path) + 1:020}.json"
    (path / "_delta_log" / name).write_text(json.dumps({"protocol": protocol}) + "\n")
    forget_snapshots(spark)


def checkpoint(spark: SparkSession, path: Path) -> None:
    """Make a checkpoint of the newest version, as any writer does from time to time."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path))
    log.checkpoint(log.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty()), jvm.scala.Option.empty())


def forget_version(path: Path, version: int) -> None:
    """Remove the files of a version from the log, as a clean-up does."""
    file = path / log_file(version)
    for name in (file.name, f"{file.stem}.crc", f".{file.name}.crc", f".{file.stem}.crc.crc"):
        file.with_name(name).unlink(missing_ok=True)


def vacuum_everything(spark: SparkSession, path: Path) -> None:
    """Remove every file that the log does not name, however young."""
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # else VACUUM starts 10,000 tasks
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        sql(spark, path, "VACUUM {t} RETAIN 0 HOURS")
    finally:
        for key in settings:
            spark.conf.unset(key)


def notes(path: Path) -> list[str]:
    """The notes of what is prepared."""
    return sorted(str(file.relative_to(path)) for file in (path / "epochal-stage").rglob("*.json"))


def newest_commit(path: Path) -> Json:
    """What the newest version says of itself."""
    found: Json = DeltaTable(str(path)).history(1)[0]
    return found


def newest_user_metadata(path: Path) -> Json:
    """What the newest version says for people."""
    found: Json = json.loads(newest_commit(path)["userMetadata"])
    return found


def query(app: str) -> Query:
    return Query(app, "q1", "r1", "file:/checkpoint")


ONE = Actor(1, 11)
TWO = Actor(2, 22)


class Start:
    """One start of the query on the table at ``path``; rows go through a durable copy where the sink wants one."""

    def __init__(
        self, spark: SparkSession, path: Path, actor: Actor = ONE, *, sink: DeltaSink | None = None, **options: Any
    ) -> None:
        self.spark, self.path, self.actor = spark, path, actor
        self.sink = sink if sink is not None else DeltaSink(str(path), name="out", **options)
        self.sink.look(query("app"))
        self._stage = SparkStage(f"file:{path.parent}/checkpoint", lambda: spark)

    def fenced(self: S) -> S:
        self.sink.fence(query("app"), self.actor)
        return self

    def prepare(self, rows: DataFrame, position: int = 1, redo: int = 0) -> Committable:
        decision = Decision("q1", position - 1, self.actor, f"fingerprint-{position}", redo)
        copy = self._stage.write(position - 1, self.actor, rows) if isinstance(self.sink, RedoSink) else None
        return self.sink.prepare(Epoch(decision, position, "{}", 7, copy), rows, self.actor)

    def commit(self, committable: Committable) -> CommitOutcome:
        return self.sink.commit(committable, self.actor)

    def show(self, rows: DataFrame, position: int = 1) -> Committable:
        vote = self.prepare(rows, position)
        assert self.commit(vote) is CommitOutcome.COMMITTED
        return vote


def commit_while(start: Start, committable: Committable, do: Callable[[], object]) -> CommitOutcome:
    """Commit, and do that once when the commit has judged everything and is about to write."""
    done: list[Point] = []

    def strike(point: Point, sink: str, epoch: int) -> None:  # noqa: ARG001
        if point is Point.BEFORE_PUBLISH and not done:
            done.append(point)
            do()

    try:
        with failpoints.handler(strike):
            return start.commit(committable)
    finally:
        assert done, "the commit never came to its put"
