"""The driver program that gets killed: ``python driver.py FOLDER CHECKPOINT POSTGRES``; one file is one epoch."""

from __future__ import annotations

import sys
from pathlib import Path

import epochal
from epochal.chaos.job import jvm
from epochal.chaos.servers.spark import spark_session
from epochal.chaos.strike.nemesis import end_with_parent
from epochal.sinks import DeltaSink, PostgresSink


def main(folder: Path, checkpoint: str, dsn: str) -> None:
    spark = spark_session(app="hadoop", conf=jvm.short_lived())
    rows = spark.readStream.schema("id int").option("maxFilesPerTrigger", 1).json(str(folder / "source"))
    pipeline = epochal.Pipeline(
        app="hadoop", sinks=[PostgresSink(dsn, table="rows"), DeltaSink(str(folder / "lake"), name="delta")]
    )
    pipeline.create(rows.schema)
    pipeline.check(rows, checkpoint)
    query = (
        rows.writeStream.foreachBatch(pipeline)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    end_with_parent()
    main(Path(sys.argv[1]), *sys.argv[2:])
