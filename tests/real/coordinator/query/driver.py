"""A driver process for tests that end it: ``python -m tests.real.coordinator.query.driver FOLDER POSTGRES``.

Its sink is a real table, as nothing in memory outlives it.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(folder: Path, dsn: str) -> None:
    from epochal import Pipeline
    from epochal.chaos.job import jvm
    from epochal.chaos.servers.spark import spark_session
    from epochal.sinks import PostgresSink

    spark = spark_session(app="driver", conf=jvm.short_lived())
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder / "source"))
    pipeline = Pipeline(app="app", sinks=[PostgresSink(dsn, table="rows")])
    pipeline.create(rows.schema)
    query = (
        rows.writeStream.foreachBatch(pipeline)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
