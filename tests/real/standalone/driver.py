"""What `spark-submit` is given: the demo's job over three sinks, with operator state.

    driver.py settings.json

A flight that is in the source twice is shown once: which ones there were is the state.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import epochal
from epochal.chaos.demo.data import KEY
from epochal.chaos.demo.jobs import Settings, flights
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink


def main(settings: Settings) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    rows = flights(spark, settings).dropDuplicates(list(KEY))
    pipeline = epochal.Pipeline(
        app=settings.topic,
        sinks=[
            PostgresSink(settings.dsn, table=settings.table, name="postgres"),
            KafkaSink(settings.bootstrap, topic=settings.topic, key="tailnum", partitions=2, name="kafka"),
            DeltaSink(settings.lake, name="delta"),
        ],
    )
    pipeline.create(rows.schema)
    query = (
        rows.writeStream.foreachBatch(pipeline)
        .option("checkpointLocation", settings.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    epochs = len({progress["batchId"] for progress in query.recentProgress})
    print(json.dumps({"epochs": epochs, "epochal": epochal.__file__}))


if __name__ == "__main__":
    main(Settings.read(Path(sys.argv[1])))
