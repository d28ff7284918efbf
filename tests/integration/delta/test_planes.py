"""Text of every Unicode plane, written by the sink and read by a client that knows nothing of Spark."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from epochal.coordinator.epoch import Decision, Epoch
from epochal.sinks.delta import DeltaSink
from epochal.sinks.protocol import CommitOutcome
from tests.integration.delta import support
from tests.integration.delta.support import ONE, query
from tests.integration.values import PLANES

TEXTS = [*PLANES, PLANES]


def test_text_of_every_plane_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    """As text, in lists, as keys of a map, and as the value of a partition, which is a folder's name."""
    rows = spark.createDataFrame([(n, t, t) for n, t in enumerate(TEXTS)], "n int, t string, p string").coalesce(1)
    rows = rows.selectExpr("n", "t", "array(t) as l", "map(t, named_struct('x', t)) as m", "p")
    sink = DeltaSink(str(tmp_path / "t"), name="out", partition_by=["p"])
    sink.create(query("app"), rows.schema)
    sink.check(query("app"), rows.schema)
    sink.look(query("app"))
    sink.fence(query("app"), ONE)
    committable = sink.prepare(Epoch(Decision("q1", 0, ONE, "f"), 1), rows, ONE)
    assert sink.commit(committable, ONE) is CommitOutcome.COMMITTED
    seen = sorted(support.read(tmp_path / "t").to_pylist(), key=lambda row: int(row["n"]))
    assert seen == [{"n": n, "t": t, "l": [t], "m": [(t, {"x": t})], "p": t} for n, t in enumerate(TEXTS)]
