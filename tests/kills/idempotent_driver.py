"""The driver program of ``test_idempotent_kills.py``: one query, two sinks, a function that reads a file.

    python idempotent_driver.py FOLDER MODE APP ALPHA BETA

``ALPHA`` and ``BETA`` are folders of Delta tables, ``kafka://SERVERS/TOPIC``, or ``postgresql://...`` with a table of
the sink's name.  One file of ``FOLDER/source`` is one epoch; the program ends when all are done.
"""

from __future__ import annotations

import sys
from pathlib import Path

import epochal
from epochal.chaos import jvm
from epochal.chaos.nemesis import end_with_parent
from epochal.chaos.servers.spark import spark_session
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.protocol import Sink


def sink(name: str, place: str) -> Sink:
    if place.startswith("postgresql://"):
        return PostgresSink(place, table=name, name=name)
    if not place.startswith("kafka://"):
        return DeltaSink(place, name=name)
    servers, _, topic = place.removeprefix("kafka://").partition("/")
    return KafkaSink(servers, topic=topic, name=name, partitions=2)


def main(folder: Path, mode: str, app: str, alpha: str, beta: str) -> None:
    from pyspark.sql import functions as f

    rate = str(folder / "rate")

    def looked_up(_: int) -> str:
        with open(rate) as file:  # what nobody declares
            return file.read()

    spark = spark_session("local[1]", app="idempotent", conf=jvm.short_lived())
    rows = spark.readStream.schema("id int").option("maxFilesPerTrigger", 1).json(str(folder / "source"))
    rows = rows.withColumn("rate", f.udf(looked_up, "string", useArrow=False)("id"))
    rows = rows.withColumn("at", f.current_timestamp().cast("string"))
    pipeline = epochal.Pipeline(
        app=app,
        sinks=[sink("alpha", alpha), sink("beta", beta)],
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


if __name__ == "__main__":
    end_with_parent()
    main(Path(sys.argv[1]), *sys.argv[2:])
