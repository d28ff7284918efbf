"""Make the archives of classes with which Spark and Kafka start faster (see ``jvm.py``).

python -m epochal.chaos.job.archive
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochal.chaos.job import jvm, program, workloads
from epochal.chaos.servers import kafka
from epochal.chaos.servers.spark import spark_session
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks import DeltaSink

WORKLOADS = ("map", "state")


def exercise(folder: Path, conf: Mapping[str, str]) -> None:
    """Do what the kit's drivers do in one session, so that their classes are loaded; wait for the end of the JVM."""
    base = 10**12
    spark = spark_session(app="classes", conf=conf)
    context: Any = spark.sparkContext
    for name in WORKLOADS:
        source = folder / name
        source.mkdir()
        for epoch in range(2):
            inputs = workloads.make_workload(name, base).inputs(epoch, base + epoch * workloads.STRIDE)
            workloads.feed(source, epoch, inputs)
        settings = program.Settings("", name, base, str(source), str(folder / f"{name}-checkpoint"))
        rows = program.stream(spark, settings)
        pipeline = Pipeline(app=name, sinks=[DeltaSink(str(folder / f"{name}-lake"), name="delta")])
        pipeline.create(rows.schema)
        program.start(rows, pipeline, settings.checkpoint, name).awaitTermination()
        spark.read.format("delta").load(str(folder / f"{name}-lake")).collect()
        if name in workloads.STATEFUL:
            program.compare_state(spark, settings)
    spark.stop()
    context._gateway.proc.stdin.close()
    context._gateway.proc.wait(jvm.MAKE_S)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        logging.basicConfig(format="%(message)s")
        jvm.short_lived()
        kafka.make_archive()
    else:
        exercise(Path(sys.argv[1]), json.loads(sys.argv[2]))
