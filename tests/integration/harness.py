"""What the sink contract shares on real servers: rows that Spark makes, and a process that has only the JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from epochal.coordinator.epoch import Actor, Copy, Json
from epochal.sinks.protocol import Sink

SCHEMA = StructType().add("id", "string").add("attempt", "string").add("n", "long")


class SparkHarness:
    """The part of ``SinkHarness`` that does not depend on the sink; a subclass adds the target and its readers."""

    app = "flights"
    schema = SCHEMA
    secrets: Sequence[str] = ()

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def sink(self) -> Sink:
        return self.named("out")

    def named(self, name: str) -> Sink:
        raise NotImplementedError

    def rows(self, ids: Sequence[str], attempt: str) -> DataFrame:
        return self.spark.createDataFrame([(key, attempt, n) for n, key in enumerate(ids)], SCHEMA)

    def no_partitions(self) -> DataFrame:
        return self.spark.createDataFrame(self.spark.sparkContext.emptyRDD(), SCHEMA)

    def copy(self, rows: DataFrame, epoch: int, by: Actor) -> Copy | None:  # noqa: ARG002
        return None


_ACT = """
import json, sys
from epochal.coordinator.epoch import Actor, Committable, Query
from epochal.coordinator.errors import EpochalError
{source}
request = json.loads(sys.stdin.read())
query, by = Query(request["app"], "q1", "r2", "file:/checkpoint"), Actor.from_json(request["by"])
sink.look(query)
try:
    if request["committable"] is None:
        sink.abort(query, by)
        answer = "ABORTED"
    else:
        answer = sink.commit(Committable.from_json(request["committable"]), by).name
except EpochalError as error:
    print(error, file=sys.stderr)
    answer = type(error).__name__
print("ANSWER", answer)
"""


def in_another_process(
    source: str,
    app: str,
    committable: Json | None,
    by: Json,
    *,
    secrets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a process answers that has the JSON and nothing else: the outcome's or the error's name, or ABORTED.

    ``source`` is Python that makes its ``sink``; none of the ``secrets`` is in what it prints.
    """
    done = subprocess.run(
        [sys.executable, "-c", _ACT.format(source=source)],
        input=json.dumps({"app": app, "committable": committable, "by": by}),
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    answers = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    assert answers, done.stderr[-3000:]
    assert not [secret for secret in secrets if secret in done.stdout + done.stderr]
    return answers[0]
