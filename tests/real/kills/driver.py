"""The driver program that gets killed: one query, three real sinks, rows that say which evaluation made them.

    python -m tests.real.kills.driver MASTER [CONF]

``CONF``: more settings of the session, as JSON.

It takes one start after another (``epochal.chaos.strike.standby``), of this job or of that in ``idempotent.py``.  One
file of the source, JSON or of a Delta table, is one epoch; a start ends when all are done, or waits for more.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import epochal
from epochal.chaos.job import jvm
from epochal.chaos.servers.spark import spark_session
from epochal.chaos.strike import standby
from epochal.chaos.strike.nemesis import end_with_parent
from epochal.coordinator.model import failpoints
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from tests.real.kills import idempotent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id int"
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Twenty rows are written before code that was generated for them is compiled."""


def rows(spark: SparkSession, source: str, format: str) -> DataFrame:
    """Each row with the id that its evaluation gave it: another evaluation gives another."""
    reader = spark.readStream.format(format).option("maxFilesPerTrigger", 1)
    stream = (reader if format == "delta" else reader.schema(SCHEMA)).load(source)
    return drawn(stream.repartition(2))


def drawn(rows: DataFrame) -> DataFrame:
    """Each row with a column ``attempt``, which every evaluation of these rows gives another value."""
    from pyspark.sql import functions as f

    @f.udf("string")
    def attempt(_: int) -> str:
        failpoints.hit(failpoints.Point.AT_ROW)
        return uuid.uuid4().hex

    return rows.withColumn("attempt", attempt.asNondeterministic()("id"))


def pipeline(settings: dict[str, Any]) -> epochal.Pipeline:
    bootstrap, topic, framed = settings["bootstrap"], settings["topic"], settings["framed"]
    frame = "drawn" if framed else None
    sinks: list[epochal.sinks.Sink] = [
        PostgresSink(settings["dsn"], table=settings["table"], name="postgres", frame=frame),
        KafkaSink(bootstrap, topic=topic, partitions=2, name="kafka", votes=settings["votes"], frame=frame),
        DeltaSink(settings["lake"], name="delta", frame=frame),
    ]
    return epochal.Pipeline(
        app=settings["app"],
        sinks=[sink for sink in sinks if sink.name in settings["sinks"]],
        frames=(lambda batch: {"drawn": drawn(batch)}) if framed else None,
    )


def session(master: str, more: Mapping[str, str]) -> SparkSession:
    conf = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
        "spark.executor.memory": "1g",
        **jvm.short_lived(),
        **INTERPRETED,
        **more,
    }
    return spark_session(master, app="kills", conf=conf)


def run(spark: SparkSession, settings: dict[str, Any]) -> None:
    stream = rows(spark, settings["source"], settings["format"])
    batch_function = pipeline(settings)
    if settings["create"]:
        batch_function.create(stream.schema)
    query = (
        stream.writeStream.foreachBatch(batch_function)
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(**settings["trigger"])
        .start()
    )
    query.awaitTermination()


JOBS = {"rows": run, "looked-up": idempotent.run}


def main(master: str, conf: Mapping[str, str] = MappingProxyType({})) -> None:
    spark = session(master, conf)

    def one(settings: dict[str, Any], _: Path) -> int:
        JOBS[settings["job"]](spark, settings)
        return 0

    standby.serve(spark, one)


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1], *map(json.loads, sys.argv[2:]))
