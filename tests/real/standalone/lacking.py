"""A driver whose executors lack things: what a start says, before and after Epochal is sent to them.

lacking.py settings.json epochal.zip
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import epochal
from epochal.chaos.demo.jobs import Settings, flights
from epochal.coordinator.model.errors import EpochalError
from epochal.sinks import KafkaSink, PostgresSink
from epochal.sinks.protocol import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def refusal(rows: DataFrame, app: str, sink: Sink) -> list[str]:
    """How a start with this one sink ends: the error's name, what it says and its help."""
    pipeline = epochal.Pipeline(app=app, sinks=[sink])
    pipeline.create(rows.schema)
    try:
        pipeline.check(rows)
    except EpochalError as error:
        return [type(error).__name__, error.what, error.help]
    return []


def main(settings: Settings, package: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    rows = flights(spark, settings)
    kafka = KafkaSink(settings.bootstrap, topic=settings.topic, partitions=1, name="kafka")
    told = {"kafka, without epochal": refusal(rows, settings.topic, kafka)}
    spark.sparkContext.addPyFile(package)
    told["kafka"] = refusal(rows, settings.topic, kafka)
    told["postgres"] = refusal(rows, settings.topic, PostgresSink(settings.dsn, table="lacking", name="postgres"))
    print(json.dumps(told))


if __name__ == "__main__":
    main(Settings.read(Path(sys.argv[1])), sys.argv[2])
