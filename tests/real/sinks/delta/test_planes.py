"""Text of every Unicode plane, written by the sink and read by a client that knows nothing of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from epochal.coordinator.model.epoch import Decision, Epoch
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.delta import Append, DeltaSink, Merge, Overwrite
from epochal.sinks.delta.modes import Mode
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import ONE, Start, query
from tests.real.sinks.values import PLANES

TEXTS = [*PLANES, PLANES]


UNKEPT = {
    "an empty text": "''",
    "Hive's word for NULL": "'__HIVE_DEFAULT_PARTITION__'",
    "no text": "string(X'ff')",
    "no bytes": "binary('')",
}


@pytest.mark.parametrize("mode", [Append(), Overwrite(), Merge(key=["n", "p"])], ids=lambda mode: type(mode).__name__)
@pytest.mark.parametrize("what", UNKEPT)
def test_what_a_partition_does_not_keep_is_refused(spark: SparkSession, tmp_path: Path, mode: Mode, what: str) -> None:
    """Delta would show another value, and a merge would find the row no more."""
    rows = spark.range(2).selectExpr("id AS n", f"{UNKEPT[what]} AS p")
    sink = DeltaSink(str(tmp_path / "t"), name="out", partition_by=["p"], mode=mode)
    sink.create(query("app"), rows.schema)
    start = Start(spark, tmp_path / "t", sink=sink).fenced()
    with pytest.raises(PrepareRefused, match="a column that partitions the table has a value") as refused:
        start.prepare(rows)
    assert "keep them out with where=" in refused.value.help
    fine = spark.range(2).selectExpr("id AS n", f"{'binary' if what == 'no bytes' else 'string'}('x') AS p")
    start.show(fine)
    assert {row["p"] for row in support.read(tmp_path / "t").to_pylist()} <= {"x", b"x"}


@pytest.mark.remedy(
    "a column that partitions the table has a value that Delta gives back as another one: an empty text, bytes that are"
    " not valid text, Hive's word for NULL, or a time in the hour that clocks repeat in the session's time zone",
    "give such rows another value, keep them out with where=, or partition by another column",
)
@pytest.mark.wide
@pytest.mark.parametrize("what", UNKEPT)
def test_each_way_out_for_a_value_that_a_partition_does_not_keep(
    spark: SparkSession, tmp_path: Path, what: str
) -> None:
    def start(name: str, column: str, **given: str) -> Start:
        sink = DeltaSink(str(tmp_path / name), name="out", partition_by=[column], **given)  # type: ignore[arg-type]
        sink.create(query("app"), rows.schema)
        return Start(spark, tmp_path / name, sink=sink).fenced()

    rows = spark.range(2).selectExpr("id AS n", f"{UNKEPT[what]} AS p")
    with pytest.raises(PrepareRefused, match="a column that partitions the table has a value"):
        start("refused", "p").prepare(rows)
    kind = rows.schema["p"].dataType.simpleString()
    start("another value", "p").show(rows.withColumn("p", f.lit("none").cast(kind)))
    start("kept out", "p", where=f"p <> {UNKEPT[what]}").show(rows)
    start("another column", "n").show(rows)
    found = {name: len(support.read(tmp_path / name)) for name in ("another value", "kept out", "another column")}
    assert found == {"another value": 2, "kept out": 0, "another column": 2}


@pytest.mark.remedy(
    "a column that partitions the table has a value that Delta gives back as another one: an empty text, bytes that are"
    " not valid text, Hive's word for NULL, or a time in the hour that clocks repeat in the session's time zone",
    "for times set spark.sql.session.timeZone to UTC",
)
def test_a_time_in_the_hour_that_clocks_repeat_is_refused_where_a_partition_would_not_keep_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Half past two in Berlin, twice."""
    first, second = (spark.sql(f"SELECT 1 AS n, timestamp_seconds({at}) AS p") for at in (1729989000, 1729992600))
    sink = DeltaSink(str(tmp_path / "t"), name="out", partition_by=["p"])
    sink.create(query("app"), first.schema)
    start, zone = Start(spark, tmp_path / "t", sink=sink).fenced(), "spark.sql.session.timeZone"
    before = spark.conf.get(zone)
    try:
        spark.conf.set(zone, "Europe/Berlin")
        with pytest.raises(PrepareRefused, match="in the hour that clocks repeat") as refused:
            start.prepare(first.union(second))
        assert "set spark.sql.session.timeZone to UTC" in refused.value.help
        start.show(first)
        spark.conf.set(zone, "UTC")
        start.show(second, 2)
    finally:
        spark.conf.set(zone, before or "UTC")
    assert sorted(p.timestamp() for p in support.column(tmp_path / "t", "p")) == [1729989000, 1729992600]


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


@pytest.mark.remedy(
    "the Delta table … cannot hold the rows exactly: …", "partition a new table by a column that has a name"
)
def test_a_partition_needs_a_name(spark: SparkSession, tmp_path: Path) -> None:
    """The write ended in an error of a Spark task, in every epoch."""
    rows = spark.sql("SELECT 'a' AS id, 1 AS ``, 2 AS part")
    sink = DeltaSink(str(tmp_path / "t"), name="out", partition_by=[""])
    with pytest.raises(Misconfigured, match="no partition of a column without a name"):
        sink.create(query("app"), rows.schema)
    builder = DeltaTable.create(spark).location(str(tmp_path / "t")).addColumns(rows.schema)
    builder.property("delta.columnMapping.mode", "name").partitionedBy("").execute()
    with pytest.raises(Misconfigured, match="no partition of a column without a name"):
        sink.check(query("app"), rows.schema)
    named = DeltaSink(str(tmp_path / "named"), name="out", partition_by=["part"])
    named.create(query("app"), rows.schema)
    named.check(query("app"), rows.schema)
