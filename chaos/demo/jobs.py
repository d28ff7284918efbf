"""The two Spark programs of the demo.  Each runs in its own process, so that it can be killed.

    python -m epochal.chaos.demo.jobs ours|naive settings.json

Both read the same topic in the same epochs, join the same tables, and write to the same kinds of sinks.
``naive`` is the usual ``foreachBatch``, as Spark's own guide shows it.  Spark's writers have no failpoints.  Therefore
its barriers are in the job's own code: between two writes, and in a function through which rows pass before a write.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epochal.chaos.demo import votes
from epochal.chaos.demo.data import FLIGHTS, ddl
from epochal.chaos.job import jvm
from epochal.chaos.servers.spark import spark_session
from epochal.chaos.strike.nemesis import end_with_parent
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.failpoints import Point

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

APP = "flights"
KEY = "tailnum"
ROWS_PER_ARROW_BATCH = 1_000
BATCHES_BEFORE_BARRIER = 3
BEGIN = "begin"
BEGIN_TIMEOUT_S = 600
BatchFunction = Callable[["DataFrame", int], None]


@dataclass(frozen=True)
class Settings:
    """Addresses, paths and names, written as JSON for the program."""

    bootstrap: str
    source_topic: str
    dimensions: str  # folder of airlines.parquet and planes.parquet
    checkpoint: str
    rows_per_epoch: int
    dsn: str
    table: str
    topic: str
    lake: str  # path of the Delta table

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Settings:
        return cls(**json.loads(path.read_text()))

    @property
    def jdbc_url(self) -> str:
        return jdbc_url(self.dsn)


def jdbc_url(dsn: str) -> str:
    """Return the DSN as a JDBC URL."""
    user, _, rest = dsn.removeprefix("postgresql://").partition("@")
    return f"jdbc:postgresql://{rest}?user={user}"


def flights(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the stream of flights, with airline and plane where known."""
    from pyspark.sql import functions as f

    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", settings.source_topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings.rows_per_epoch)
        .load()
    )
    rows = source.select(f.from_json(f.col("value").cast("string"), ddl(FLIGHTS)).alias("r")).select("r.*")
    airlines = spark.read.parquet(f"{settings.dimensions}/airlines.parquet")
    planes = spark.read.parquet(f"{settings.dimensions}/planes.parquet")
    return rows.join(airlines, "carrier", "left").join(planes, "tailnum", "left")


def ours(rows: DataFrame, settings: Settings) -> BatchFunction:
    """Return one pipeline over three sinks, which Spark uses as its batch function."""
    import epochal
    from epochal.sinks import DeltaSink, KafkaSink, PostgresSink

    kafka = KafkaSink(settings.bootstrap, topic=settings.topic, key=KEY, partitions=2, name="kafka")
    notes = votes.path_of(settings.checkpoint), Path(settings.checkpoint), kafka.name
    pipeline = epochal.Pipeline(
        app=APP,
        sinks=[
            PostgresSink(settings.dsn, table=settings.table, name="postgres"),
            kafka,
            DeltaSink(settings.lake, name="delta"),
        ],
        on_event=votes.Notes(*notes, kafka.inspection(Query(APP, "", "", ""))),
    )
    if not Path(settings.checkpoint).exists():
        pipeline.create(rows.schema)
    return pipeline


def naive(rows: DataFrame, settings: Settings) -> BatchFunction:  # noqa: ARG001
    """Return the usual batch function, which appends to one sink after the other."""
    from pyspark.sql import functions as f

    def write(batch: DataFrame, epoch: int) -> None:
        batch.persist()

        jdbc = _observed(batch, "postgres", epoch).write.format("jdbc").mode("append")
        jdbc.option("url", settings.jdbc_url).option("dbtable", settings.table).option(
            "driver", "org.postgresql.Driver"
        ).save()
        failpoints.hit(Point.AFTER_SINK_COMMIT, "postgres", epoch)

        records = _observed(batch, "kafka", epoch).select(
            f.col(KEY).alias("key"), f.to_json(f.struct(*batch.columns)).alias("value")
        )
        kafka = records.write.format("kafka").option("kafka.bootstrap.servers", settings.bootstrap)
        kafka.option("topic", settings.topic).save()
        failpoints.hit(Point.AFTER_SINK_COMMIT, "kafka", epoch)

        batch.write.format("delta").mode("append").save(settings.lake)
        failpoints.hit(Point.BEFORE_RETURN, epoch=epoch)

        batch.unpersist()

    return write


def _observed(batch: DataFrame, sink: str, epoch: int) -> DataFrame:
    """The same rows.  If a strike falls into this write, they pass through Python workers that can be held."""
    armed = failpoints.parse(os.environ.get(failpoints.ENVIRONMENT, ""))
    if not any((rule.point, rule.sink, rule.epoch) == (Point.IN_WRITE, sink, epoch) for rule in armed):
        return batch

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        second = context is not None and context.partitionId() == 1
        for number, part in enumerate(batches):
            if second and number == BATCHES_BEFORE_BARRIER:
                failpoints.hit(Point.IN_WRITE, sink, epoch)
            yield part

    return batch.mapInArrow(through, batch.schema)


JOBS: dict[str, Callable[[DataFrame, Settings], BatchFunction]] = {"ours": ours, "naive": naive}


def wait_for_begin() -> None:
    """Wait until the nemesis allows this start to begin.  Raises TimeoutError after ``BEGIN_TIMEOUT_S`` seconds."""
    begin = Path(os.environ[failpoints.FOLDER]) / BEGIN
    limit = time.monotonic() + BEGIN_TIMEOUT_S
    while not begin.exists():
        if time.monotonic() > limit:
            raise TimeoutError(f"nobody let this start begin within {BEGIN_TIMEOUT_S} s")
        time.sleep(0.05)


MASTER = "local[2,4]"
"""Spark's master.  A task may be tried four times, as on a cluster."""


def main(job: str, path: Path) -> None:
    """Run the job until everything that is in the topic now is processed.  Read the settings when it may begin."""
    spark = spark_session(
        MASTER,
        app=f"demo-{job}",
        conf={
            **jvm.short_lived(),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_ARROW_BATCH),
        },
    )
    spark.range(1).collect()
    wait_for_begin()
    settings = Settings.read(path)
    rows = flights(spark, settings)
    query = (
        rows.writeStream.foreachBatch(JOBS[job](rows, settings))
        .option("checkpointLocation", settings.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    end_with_parent()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("epochal").setLevel(logging.INFO)
    main(sys.argv[1], Path(sys.argv[2]))
