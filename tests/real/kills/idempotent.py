"""The job of ``test_idempotent_kills.py``: one query, two sinks, a function that reads a file.

``settings`` are ``folder``, ``mode``, ``app``, and for each sink, ``alpha`` and ``beta``, the folder of a Delta table,
``kafka://SERVERS/TOPIC``, or ``postgresql://...`` with a table of the sink's name.  One file of ``folder/source`` is
one epoch; the job ends when all are done.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import epochal
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.protocol import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def sink(name: str, place: str) -> Sink:
    if place.startswith("postgresql://"):
        return PostgresSink(place, table=name, name=name)
    if not place.startswith("kafka://"):
        return DeltaSink(place, name=name)
    servers, _, topic = place.removeprefix("kafka://").partition("/")
    return KafkaSink(servers, topic=topic, name=name, partitions=2)


def run(spark: SparkSession, settings: Mapping[str, str]) -> None:
    from pyspark.sql import functions as f

    folder, mode = Path(settings["folder"]), settings["mode"]
    rate = str(folder / "rate")

    def looked_up(_: int) -> str:
        with open(rate) as file:  # what nobody declares
            return file.read()

    rows = spark.readStream.schema("id int").option("maxFilesPerTrigger", 1).json(str(folder / "source"))
    rows = rows.withColumn("rate", f.udf(looked_up, "string", useArrow=False)("id"))
    rows = rows.withColumn("at", f.current_timestamp().cast("string"))
    pipeline = epochal.Pipeline(
        app=settings["app"],
        sinks=[sink(name, settings[name]) for name in ("alpha", "beta")],
        mode=mode,
        deterministic=["looked_up"] if mode == "idempotent" else (),
    )
    pipeline.create(rows.schema)
    query = (
        rows.writeStream.foreachBatch(pipeline)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
