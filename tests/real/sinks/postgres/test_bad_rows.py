"""``bad_rows=``: what Postgres cannot hold goes to another sink, in the same epoch and decision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.chaos.contract import MarkedContract, SinkContract
from epochal.chaos.contract.spark import SparkHarness
from epochal.chaos.servers import Postgres
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Epoch
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.coordinator.model.failpoints import Point
from epochal.sinks import DeltaSink, PostgresSink
from epochal.sinks.delta import Merge, Overwrite
from epochal.sinks.protocol import RedoSink, Rows, Sink
from epochal.sinks.rows.rejects import Rejects
from tests.real.coordinator.query.support import FAST, Job
from tests.real.sinks.delta.support import read
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import observe
from tests.real.sinks.projected import ProjectedRows

TEXT, DAY, LIST = "'fine'", "date'2024-01-31'", "array(1.5D)"
NUL, NO_UTF8, NAN = "decode(X'6100', 'utf-8')", "string(X'ff')", "array(double('NaN'))"
ROWS: dict[int, tuple[Sequence[str], str | None]] = {  # id: its columns, and those that Postgres cannot hold
    1: ((TEXT, DAY, LIST), None),
    2: ((NUL, DAY, LIST), "'text'"),
    3: ((NUL, DAY, NAN), "'text', 'list'"),
    4: ((NO_UTF8, DAY, LIST), "'text'"),
    5: (("NULL", "NULL", "NULL"), None),
}
TYPES = {"text": "string", "day": "date", "list": "array<double>"}


class Sorted(Job):
    """A job of one file per epoch, into a table and, of what that cannot hold, a Delta table."""

    def __init__(self, spark: SparkSession, folder: Path, dsn: str, **options: Any) -> None:
        super().__init__(spark, folder, sinks=())
        self.dsn, self.options = dsn, options

    def made(self, *, sorts: bool = True, mode: str = "two-phase", into: type[DeltaSink] = DeltaSink) -> Pipeline:
        bad: dict[str, Any] = {"bad_rows": into(str(self.folder / "bad"), name="bad")} if sorts else {}
        table = PostgresSink(self.dsn, table="rows", name="table", **bad, **self.options)
        pipeline = Pipeline(app="sorted", sinks=[table], retry=FAST, mode=mode)
        pipeline.create(self.rows().schema)
        return pipeline

    def rows(self) -> DataFrame:
        cases = " ".join(f"WHEN {key} THEN named_struct({_named(values)})" for key, (values, _) in ROWS.items())
        return self.df().selectExpr("id", f"CASE id {cases} END AS v").selectExpr("id", "v.*")

    def fails(self, pipeline: Pipeline) -> Any:
        with pytest.raises(StreamingQueryException):
            self.run(pipeline, self.rows())
        return pipeline.last_error

    def table(self) -> list[int]:
        return [key for (key,) in observe(self.dsn, "SELECT id FROM rows ORDER BY id")]

    def bad(self) -> list[tuple[int, str, str]]:
        found = read(self.folder / "bad").select(["id", "_sink", "_reason"]).to_pylist()
        return sorted((row["id"], row["_sink"], row["_reason"]) for row in found)


def _named(values: Sequence[str]) -> str:
    return ", ".join(f"'{name}', CAST({v} AS {kind})" for v, (name, kind) in zip(values, TYPES.items(), strict=True))


def told(*keys: int) -> list[tuple[int, str, str]]:
    what = "Postgres cannot hold the value of column "
    return [(key, "table", f"{what}{ROWS[key][1]}") for key in keys]


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, pg_database: str) -> Sorted:
    made = Sorted(spark, tmp_path, pg_database)
    made.add(1, 2, 3)
    made.add(4, 5)
    return made


@contextmanager
def lost_before(sink: str) -> Iterator[None]:
    def end(point: Point, at: str, _: int) -> None:
        if (point, at) == (Point.BEFORE_SINK_COMMIT, sink):
            raise RuntimeError("the driver is gone")

    with failpoints.handler(end):
        yield


@pytest.mark.wide
def test_a_star_in_a_function_is_of_the_columns_of_the_epoch(
    spark: SparkSession, tmp_path: Path, pg_database: str
) -> None:
    job = Sorted(spark, tmp_path, pg_database, select=["id", "to_json(struct(*)) AS text", "size(array(*)) AS n"])
    job.rows = lambda: job.df().selectExpr("string(id) AS id", "'x' AS t")  # type: ignore[method-assign]
    job.add(1)
    job.run(job.made(), job.rows())
    assert observe(pg_database, "SELECT id, text, n FROM rows") == [("1", '{"id":"1","t":"x"}', 2)]


@pytest.mark.parametrize("mode", ["two-phase", "idempotent"])
def test_every_row_is_in_one_of_the_two(job: Sorted, mode: str) -> None:
    pipeline = job.made(mode=mode)
    job.run(pipeline, job.rows())
    assert (job.table(), job.bad()) == ([1, 5], told(2, 3, 4))
    assert pipeline.status().rejected == {"bad": 3}
    assert "- bad: 3 bad rows since this start" in str(pipeline.status())
    [promise, other] = list(pipeline.guarantee().sinks.values())
    assert "what cannot be held goes to sink 'bad'" in promise
    assert "Of every epoch: the rows that sink 'table' cannot hold, and why." in other


@pytest.mark.wide
def test_the_whole_row_is_kept_as_it_was(job: Sorted) -> None:
    job.run(job.made(), job.rows())
    found = job.spark.read.format("delta").load(str(job.folder / "bad"))
    assert found.columns == ["id", "text", "day", "list", "_sink", "_reason"]
    assert found.selectExpr("id", "hex(text)", "day IS NULL", "string(list)").orderBy("id").collect() == [
        (2, "6100", False, "[1.5]"),
        (3, "6100", False, "[NaN]"),
        (4, "FF", False, "[1.5]"),
    ]


def test_without_it_such_a_row_refuses_the_epoch(job: Sorted) -> None:
    error = job.fails(job.made(sorts=False))
    assert isinstance(error, PrepareRefused)
    assert "column 'text': 2, column 'list': 1" in error.what
    assert job.table() == []


@pytest.mark.wide
def test_a_nul_inside_json_is_a_bad_row(spark: SparkSession, tmp_path: Path, pg_database: str) -> None:
    """P10: the row was stored, and ``->>`` of any reader failed for the whole query."""
    job = Sorted(spark, tmp_path, pg_database)
    nul = "if(id {} , decode(X'6100', 'utf-8'), 'fine')"
    value, key, deep = (nul.format(f"= {number}") for number in (2, 3, 4))
    columns = [f"map('k', {value}) AS value", f"map({key}, 1) AS key", f"array(named_struct('x', {deep})) AS deep"]
    job.rows = lambda: job.df().selectExpr("id", *columns)  # type: ignore[method-assign]
    job.add(1, 2, 3, 4)
    job.run(job.made(), job.rows())
    read_all = "SELECT id, value->>'k', key->>'fine', deep->0->>'x' FROM rows"
    assert observe(pg_database, read_all) == [(1, "fine", "1", "fine")]
    what = "Postgres cannot hold the value of column "
    assert job.bad() == [(2, "table", f"{what}'value'"), (3, "table", f"{what}'key'"), (4, "table", f"{what}'deep'")]


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["two-phase", "idempotent"])
@pytest.mark.parametrize("sink", ["table", "bad"])
def test_a_driver_that_is_lost_between_the_two_goes_on(job: Sorted, mode: str, sink: str) -> None:
    with lost_before(sink):
        job.fails(job.made(mode=mode))
    job.run(job.made(mode=mode), job.rows())
    assert (job.table(), job.bad()) == ([1, 5], told(2, 3, 4))


@pytest.mark.wide
def test_what_where_keeps_out_is_nobodys(spark: SparkSession, tmp_path: Path, pg_database: str) -> None:
    """And the condition is asked of what is selected, while all columns of the row are kept."""
    job = Sorted(spark, tmp_path, pg_database, select=["id", "concat(text, '!') AS said"], where="id <> 4")
    job.add(1, 2, 3, 4, 5)
    job.run(job.made(), job.rows())
    assert job.table() == [1, 5]
    what = "Postgres cannot hold the value of column 'said'"
    assert job.bad() == [(2, "table", what), (3, "table", what)]
    assert read(tmp_path / "bad").column_names[:4] == ["id", "text", "day", "list"]


@pytest.mark.wide
def test_with_a_star_among_the_columns(spark: SparkSession, tmp_path: Path, pg_database: str) -> None:
    job = Sorted(spark, tmp_path, pg_database, select=["*", "id + 1 AS next"])
    job.add(1, 2, 3)
    job.run(job.made(), job.rows())
    assert (job.table(), job.bad()) == ([1], told(2, 3))


class Losing(DeltaSink):
    """Writes nothing of what it is given."""

    def prepare(self, epoch: Epoch, rows: Rows, by: Actor) -> Committable:
        return super().prepare(epoch, rows.limit(0), by)


def test_bad_rows_that_are_not_written_refuse_the_epoch(job: Sorted) -> None:
    error = job.fails(job.made(into=Losing))
    assert isinstance(error, PrepareRefused)
    assert "voted for 0 rows and left 1 out, and the durable copy has 3" in error.what
    assert job.table() == []


def test_what_cannot_have_bad_rows_is_refused(tmp_path: Path) -> None:
    def made(into: Any, name: str = "table") -> Pipeline:
        return Pipeline(app="a", sinks=[PostgresSink("postgresql://", table="rows", name=name, bad_rows=into)])

    with pytest.raises(Misconfigured, match="bad_rows=None is no sink"):
        made(None)
    with pytest.raises(Misconfigured, match="writes from the durable copy"):
        made(DeltaSink(str(tmp_path), mode=Merge(key="id")))
    with pytest.raises(Misconfigured, match="shows the newest epoch alone"):
        made(DeltaSink(str(tmp_path), mode=Overwrite()))
    with pytest.raises(Misconfigured, match="has bad_rows= of its own"):
        made(PostgresSink("postgresql://", table="other", bad_rows=DeltaSink(str(tmp_path))))
    with pytest.raises(Misconfigured, match="two sinks are named 'bad'"):
        made(DeltaSink(str(tmp_path), name="bad"), name="bad")


def test_columns_that_it_adds_are_not_there_yet(spark: SparkSession, tmp_path: Path, pg_database: str) -> None:
    job = Sorted(spark, tmp_path, pg_database)
    with pytest.raises(Misconfigured, match=r"columns \['_Reason'\], which bad_rows= adds"):
        job.made().sinks[1].check(support.QUERY, job.rows().withColumnRenamed("text", "_Reason").schema)


class RejectsHarness(ProjectedRows):
    """What a table cannot hold, in another one: half of the rows, as the first finds a NUL in them."""

    secrets: Sequence[str] = (support.PASSWORD,)

    def __init__(self, spark: SparkSession, server: Postgres, dsn: str) -> None:
        SparkHarness.__init__(self, spark)
        self._server = server
        self._dsn = dsn

    def named(self, name: str) -> Sink:
        return self._sink("flights", name)

    def neighbour(self) -> Sink:
        return self._sink("others", "out")

    def _sink(self, table: str, name: str) -> Sink:
        dsn = support.with_password(self._dsn)
        select = ["id", "if(n >= 0, decode(X'00', 'utf-8'), 'fine') AS text"]
        into = PostgresSink(dsn, table=table, name=name)
        return Rejects(PostgresSink(dsn, table="kept", name="kept", select=select, bad_rows=into), into)

    def visible(self) -> list[tuple[str, str]]:
        found = observe(self._dsn, "SELECT id, attempt FROM flights ORDER BY id")
        return [(str(key), str(attempt)) for key, attempt in found]

    def restart_server(self) -> None:
        self._server.crash()
        self._server.start()

    def source(self) -> str:
        return (
            "sys.modules['pyspark'] = None  # a commit needs no Spark\n"
            "from epochal.sinks.postgres import PostgresSink\n"
            f"sink = PostgresSink({support.with_password(self._dsn)!r}, table='flights', name='out')"
        )


@pytest.mark.wide
class TestRejects(SinkContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, postgres_server: Postgres, pg_database: str) -> RejectsHarness:
        return RejectsHarness(spark, postgres_server, pg_database)

    def test_it_votes(self, harness: RejectsHarness) -> None:
        assert isinstance(harness.sink(), Sink)
        assert not isinstance(harness.sink(), RedoSink)


@pytest.mark.wide
class TestMarkedRejects(MarkedContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, postgres_server: Postgres, pg_database: str) -> RejectsHarness:
        return RejectsHarness(spark, postgres_server, pg_database)
