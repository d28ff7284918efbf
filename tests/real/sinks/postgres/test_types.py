"""Every type, written by the sink and read back by psycopg; what cannot be held exactly is refused."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.postgres import Append, Plain, Upsert
from epochal.sinks.postgres.rows import columns, holdable
from epochal.sinks.postgres.ways import Way
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.values import PLANES

STRINGS = ["", " ", "\\N", "\\.", "\\", "a\tb", "a\nb", "a\rb", "\r\n", "\\t\\n", "'", '"', "{,}", PLANES, "x" * 9000]


def show(dsn: str, rows: DataFrame) -> None:
    """Make the table, write the rows as the first epoch, and publish it."""
    sink = support.sink(dsn)
    sink.create(support.QUERY, rows.schema)
    sink.check(support.QUERY, rows.schema)
    sink.look(support.QUERY)
    sink.fence(support.QUERY, support.ONE)
    vote = sink.prepare(support.epoch(), rows, support.ONE)
    assert sink.commit(vote, support.ONE) is CommitOutcome.COMMITTED


def read(dsn: str, columns: str = "*") -> list[Any]:
    return support.observe(dsn, f"SELECT {columns} FROM flights")


@pytest.fixture(params=["UTC", "America/New_York"])
def zoned(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    """The session under two time zones: what is written must not depend on it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(before))


def test_strings(spark: SparkSession, pg_database: str) -> None:
    show(pg_database, spark.createDataFrame([(text,) for text in STRINGS], "s string"))
    assert sorted(text for (text,) in read(pg_database)) == sorted(STRINGS)


def test_null_in_every_type_and_odd_column_names(spark: SparkSession, pg_database: str) -> None:
    kinds = ["string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "date"]
    kinds += ["timestamp", "timestamp_ntz", "binary", "array<int>", "map<string,int>", "struct<x:int>"]
    names = [f"{kind} \"%s` 'é." for kind in kinds]
    casts = [f"cast(null as {kind}) as `{name.replace('`', '``')}`" for kind, name in zip(kinds, names, strict=True)]
    show(pg_database, spark.range(1).selectExpr(*casts))
    assert read(pg_database) == [(None,) * len(kinds)]
    with psycopg.connect(pg_database) as connection:
        assert [column.name for column in connection.execute("SELECT * FROM flights").description or ()] == names


def test_numbers_and_booleans(spark: SparkSession, pg_database: str) -> None:
    schema = "b boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, d1 decimal(38), d2 decimal(38,38), d3 decimal(9,2)"
    rows = [
        (True, -128, -(2**15), -(2**31), -(2**63), Decimal(10**38 - 1), Decimal(f"0.{'9' * 38}"), Decimal("0.10")),
        (False, 127, 2**15 - 1, 2**31 - 1, 2**63 - 1, Decimal(1 - 10**38), Decimal("-1E-38"), Decimal("-1234567.89")),
        (None, 0, 0, 0, 0, Decimal(0), Decimal("0E-38"), Decimal("0.00")),
    ]
    show(pg_database, spark.createDataFrame(rows, schema))
    assert sorted(read(pg_database), key=lambda row: row[1]) == sorted(rows, key=lambda row: row[1])


DOUBLES = [0.1, -0.0, 1e308, -5e-324, 2.2250738585072014e-308, 1 / 3, math.inf, -math.inf, math.nan, 123456789.125]
FLOATS = [struct.unpack(">f", struct.pack(">f", x))[0] for x in (0.1, -0.0, 3.4e38, 1e-45, 1 / 3, 16777217.0)]
FLOATS += [math.inf, -math.inf, math.nan, 1.17549435e-38]


def test_floats_to_the_last_bit(spark: SparkSession, pg_database: str) -> None:
    rows = list(zip(range(len(DOUBLES)), DOUBLES, FLOATS, strict=True))
    show(pg_database, spark.createDataFrame(rows, "n int, d double, f float"))
    found = support.observe(pg_database, "SELECT float8send(d), float4send(f) FROM flights ORDER BY n")
    expected = [(struct.pack(">d", d), struct.pack(">f", f)) for d, f in zip(DOUBLES, FLOATS, strict=True)]
    assert [(bytes(d), bytes(f)) for d, f in found] == expected


DATES = {
    "1970-01-01": 0,
    "1582-10-04": (dt.date(1582, 10, 4) - dt.date(1970, 1, 1)).days,
    "1582-10-15": (dt.date(1582, 10, 15) - dt.date(1970, 1, 1)).days,
    "0001-01-01": -719162,
    "9999-12-31": 2932896,
    "4714-11-24 BC": -2440588,
    "0001-12-31 BC": -719163,
    "0005-02-29 BC": -719162 - 366 - 3 * 365 - 366 + 59,
    "10000-01-01": 2932897,
    "5874897-12-31": 2145042905,
}


def test_dates_before_1582_and_at_the_ends(zoned: SparkSession, pg_database: str) -> None:
    days = zoned.createDataFrame([(d,) for d in DATES.values()], "days int")
    show(pg_database, days.selectExpr("days", "date_from_unix_date(days) d"))
    assert read(pg_database, "count(*), count(*) FILTER (WHERE d - date '1970-01-01' = days)") == [(len(DATES),) * 2]
    found = {text for (text,) in read(pg_database, "d::text")}
    assert found == set(DATES)


MICROS = [0, 1, -1, 1510466400123456, 1510470000123456, -62135596800000000, -62135596800000001, 253402300799999999]
MICROS += [253402300800000000, -210866803200000000, 2**63 - 1, -12219292800000001, 1362898799999999, 1362898800000000]


def test_timestamps_at_the_ends_to_the_microsecond(zoned: SparkSession, pg_database: str) -> None:
    micros = zoned.createDataFrame([(m,) for m in MICROS], "m long")
    ntz = "timestampadd(MICROSECOND, m, TIMESTAMP_NTZ'1970-01-01 00:00:00') n"
    show(pg_database, micros.selectExpr("m", "timestamp_micros(m) t", ntz))
    wrong = "m < 4611686018427387904 AND (extract(epoch FROM {}) * 1000000)::numeric <> m"  # inexact beyond
    assert read(pg_database, "count(*)") == [(len(MICROS),)]
    for column in ("t", "n"):
        assert support.observe(pg_database, f"SELECT m, {column}::text FROM flights WHERE {wrong.format(column)}") == []
    latest = support.observe(pg_database, "SELECT t::text, n::text FROM flights WHERE m = 9223372036854775807")
    assert latest == [("294247-01-10 04:00:54.775807+00", "294247-01-10 04:00:54.775807")]
    (pair,) = support.observe(pg_database, "SELECT t, n FROM flights WHERE m = 1510466400123456")
    assert pair[1] == dt.datetime(2017, 11, 12, 6, 0, 0, 123456)
    assert pair[0] == pair[1].replace(tzinfo=dt.timezone.utc)


def test_binary(spark: SparkSession, pg_database: str) -> None:
    values = [b"", b"\0", bytes(range(256)), b"\\x00", b"\xff" * 5000]
    show(pg_database, spark.createDataFrame([(value,) for value in values], "b binary"))
    assert sorted(bytes(value) for (value,) in read(pg_database)) == sorted(values)


def test_nested_values_as_exact_json(zoned: SparkSession, pg_database: str) -> None:
    row = zoned.range(1).selectExpr(
        "array(1, null, 3) a",
        "map('k\"\\\\', 'v\\t\\n\U0001f600', 'n', null) m",
        "named_struct('z', 12345678901234567890.123456789012345678BD, 'a', cast(null as int), 'b', 0.1d) s",
        "array(named_struct('t', timestamp_micros(-62135596800000001), 'n', TIMESTAMP_NTZ'2013-03-10 02:30:00.000001',"
        " 'd', DATE'1582-10-04', 'b', X'00ff', 'l', 9223372036854775807, 'm', map('k', array(true)))) x",
        "cast(array() as array<string>) e",
    )
    show(pg_database, row)
    ((a, m, s, x, e),) = read(pg_database, "a, m, s::text, x::text, e")
    assert (a, m, e) == ([1, None, 3], {'k"\\': "v\t\n\U0001f600", "n": None}, [])
    assert s == '{"z":12345678901234567890.123456789012345678,"a":null,"b":0.1}'
    assert x == (
        '[{"t":"0000-12-31T23:59:59.999999Z","n":"2013-03-10T02:30:00.000001","d":"1582-10-04","b":"AP8=",'
        '"l":9223372036854775807,"m":{"k":[true]}}]'
    )


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("INTERVAL '1' DAY", "c"),
        ("INTERVAL '1' MONTH", "c"),
        ("parse_json('1')", "c"),
        ("make_interval(1)", "c"),
        ("null", "c"),
        ("map(1, 2)", "c"),
        ("array(INTERVAL '1' DAY)", "c[]"),
        ("map('k', INTERVAL '1' DAY)", "c{}"),
        ("named_struct('x', array(map(1.5d, 2)))", "c.x[]"),
    ],
)
def test_a_type_without_an_exact_form_is_refused_by_column(
    spark: SparkSession, pg_database: str, kind: str, column: str
) -> None:
    schema = spark.range(1).selectExpr(f"{kind} as c").schema
    with pytest.raises(Misconfigured, match=f"column {column!r}".replace("[", r"\[").replace(".", r"\.")):
        support.sink(pg_database).create(support.QUERY, schema)


@pytest.mark.parametrize(
    ("name", "why"), [("_epoch", "Epochal's own"), ("_attempt", "Epochal's own"), ("é" * 32, "63 bytes")]
)
def test_a_column_name_that_cannot_be_is_refused(spark: SparkSession, pg_database: str, name: str, why: str) -> None:
    with pytest.raises(Misconfigured, match=why):
        support.sink(pg_database).check(support.QUERY, spark.range(1).toDF(name).schema)


@pytest.mark.parametrize("mode", [Append(), Plain(), Upsert(key="id")], ids=lambda mode: type(mode).__name__)
@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("named_struct('a', 1, 'a', 2)", "'c.a' and 'c.a'"),
        ("array(named_struct('a', 1, 'a', 2))", "'c.element.a' and 'c.element.a'"),
        ("map('k', named_struct('x', named_struct('a', 1, 'a', 2)))", "'c.value.x.a' and 'c.value.x.a'"),
    ],
)
def test_two_fields_of_one_name_are_refused(
    spark: SparkSession, pg_database: str, made: str, named: str, mode: Any
) -> None:
    """P9: the JSON was stored with both, and every reader gets the last one."""
    sink = support.sink(pg_database, mode=mode)
    schema = spark.range(1).selectExpr("id", f"{made} AS c").schema
    for ask in (sink.create, sink.check):
        with pytest.raises(Misconfigured, match=f"two fields are named {named}"):
            ask(support.QUERY, schema)


def test_a_field_name_that_no_key_of_json_can_be_is_refused(spark: SparkSession, pg_database: str) -> None:
    """P10: as with a value, each reader of the column gets an error."""
    schema = spark.range(1).selectExpr("named_struct('a\\0b', 1) AS c").schema
    with pytest.raises(Misconfigured, match="in column 'c' has a NUL"):
        support.sink(pg_database).create(support.QUERY, schema)


def test_rows_without_columns_and_columns_twice_are_refused(spark: SparkSession, pg_database: str) -> None:
    with pytest.raises(Misconfigured, match="no columns"):
        support.sink(pg_database).check(support.QUERY, spark.range(1).drop("id").schema)
    with pytest.raises(Misconfigured, match="occurs twice"):
        support.sink(pg_database).check(support.QUERY, spark.range(1).selectExpr("id", "id").schema)


@pytest.mark.remedy(
    "under …=LEGACY the JSON of column … would have other times than the rows",
    "set … to CORRECTED, or make text of these times in the query",
)
def test_a_session_that_would_write_other_times_into_json_is_refused(spark: SparkSession, pg_database: str) -> None:
    """D1: the JSON had no microseconds, and days of the Julian calendar; a column that is a time itself is exact."""
    rows = spark.sql("SELECT array(timestamp'1000-01-01 00:00:00.000001Z') c, timestamp'1000-01-01 00:00:00Z' t")
    sink = support.sink(pg_database)
    sink.create(support.QUERY, rows.schema)
    sink.look(support.QUERY)
    sink.fence(support.QUERY, support.ONE)
    key, told = "spark.sql.legacy.timeParserPolicy", "under .*=LEGACY the JSON of column 'c' would have other times"
    before = str(spark.conf.get(key))
    try:
        spark.conf.set(key, "LEGACY")
        with pytest.raises(Misconfigured, match=told) as refused:
            sink.check(support.QUERY, rows.schema)
        with pytest.raises(PrepareRefused, match=told):
            sink.prepare(support.epoch(), rows, support.ONE)
        support.sink(pg_database).check(support.QUERY, rows.selectExpr("string(c) AS c", "t").schema)
        spark.conf.set(key, "CORRECTED")
        sink.check(support.QUERY, rows.schema)
    finally:
        spark.conf.set(key, before)
    assert f"set {key} to CORRECTED" in refused.value.help
    sink.check(support.QUERY, rows.schema)


BAD = {
    "nul": "if(id < 2, 'a\\u0000b', 'fine')",
    "utf8": "cast(if(id < 2, X'C328', X'61') as string)",
    "key_nul": "map(if(id < 2, 'a\\u0000b', 'fine'), 1)",
    "value_nul": "map('k', if(id < 2, 'a\\u0000b', 'fine'))",
    "list_nul": "array(named_struct('x', if(id < 2, '\\u0000', null)))",
    "date_early": "date_from_unix_date(if(id < 2, -2440589, 0))",
    "date_late": "date_from_unix_date(if(id < 2, 2145042906, 0))",
    "time": "timestamp_micros(if(id < 2, -210866803200000001, 0L))",
    "ntz": "timestampadd(MICROSECOND, if(id < 2, -210866803200000001, 0L), TIMESTAMP_NTZ'1970-01-01 00:00:00')",
    "nan": "array(named_struct('x', map('k', if(id < 2, double('NaN'), 1d))))",
    "inf": "named_struct('y', null, 'x', if(id < 2, float('-Infinity'), 1f))",
    "json_utf8": "map(cast(if(id < 2, X'C328', X'61') as string), 1)",
}


def test_values_that_cannot_be_held_are_refused_by_column_and_count(spark: SparkSession, pg_database: str) -> None:
    rows = spark.range(0, 10, 1, 2).selectExpr("id", *(f"{value} as {name}" for name, value in BAD.items()))
    rows = rows.withColumn("inf", rows["inf"].dropFields("y"))
    sink = support.sink(pg_database)
    sink.create(support.QUERY, rows.schema)
    sink.look(support.QUERY)
    sink.fence(support.QUERY, support.ONE)
    with pytest.raises(PrepareRefused) as refused:
        sink.prepare(support.epoch(), rows, support.ONE)
    for name in BAD:
        assert f"column {name!r}: 2" in str(refused.value)
    assert "'id'" not in str(refused.value)
    sink.abort(support.QUERY, support.ONE)
    assert support.observe(pg_database, "SELECT count(*) FROM flights__rows") == [(0,)]


def test_the_plan_is_evaluated_once(spark: SparkSession, pg_database: str) -> None:
    seen = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    show(pg_database, spark.range(0, 1000, 1, 7).selectExpr("id", "'x' s").mapInArrow(count, "id long, s string"))
    assert seen.value == 1000
    assert read(pg_database, "count(*), count(DISTINCT id)") == [(1000, 1000)]


def test_select_and_where_make_the_table_and_the_rows(spark: SparkSession, pg_database: str) -> None:
    """The table has the projected columns, the audit counts what is written, a value without a result is a no."""
    some: dict[str, Any] = {"select": ["id", "10 / n AS q"], "where": "id <> 'c'"}
    sink = support.sink(pg_database, **some)
    rows = spark.createDataFrame([("a", 4), ("b", 5), ("c", 0)], "id string, n int")
    sink.create(support.QUERY, rows.schema)
    sink.check(support.QUERY, rows.schema)
    sink.look(support.QUERY)
    sink.fence(support.QUERY, support.ONE)
    vote = sink.prepare(support.epoch(), rows, support.ONE)
    sink.commit(vote, support.ONE)
    assert (vote.rows, vote.left_out) == (2, 1)
    assert sorted(read(pg_database)) == [("a", 2.5), ("b", 2.0)]
    assert support.observe(pg_database, "SELECT row_count FROM epochal.epochs") == [(2,)]
    zero = spark.createDataFrame([("d", 0)], "id string, n int")
    with pytest.raises(PrepareRefused, match="has no result for a row of the epoch"):
        sink.prepare(support.epoch(1), zero, support.ONE)


def test_rows_of_another_type_than_the_table_was_checked_for_are_refused(spark: SparkSession, pg_database: str) -> None:
    """Eight bytes of text are a fine number to the server: 20130101 would be 3616444596700131377."""
    sink = support.sink(pg_database, select=["id", "coalesce(day, '00000000') AS day"])
    row, schema = [(1, 20130101)], "id bigint, day bigint"
    sink.create(support.QUERY, spark.createDataFrame(row, schema).schema)
    sink.look(support.QUERY)
    sink.fence(support.QUERY, support.ONE)
    other = spark.newSession()
    other.conf.set("spark.sql.ansi.enabled", "false")  # a bigint and a string are a string then
    with pytest.raises(PrepareRefused, match=r'column "day" of .* is bigint, the rows need text'):
        sink.prepare(support.epoch(), other.createDataFrame(row, schema), support.ONE)


def test_rows_that_are_fine_as_they_are_are_sent_so(spark: SparkSession) -> None:
    plain = spark.sql("SELECT 1L AS a, 'x' AS b, true AS c, 1.5d AS d, 2 AS e, X'00' AS f, 1.5 AS g, 1S AS h, 1f AS i")
    assert holdable(plain, made(plain)) == (plain, ())
    for other in ("1Y", "DATE'2013-01-01'", "now()", "array(1)", "'x' COLLATE UNICODE"):
        changed = spark.sql(f"SELECT 1L AS a, {other} AS b")
        assert holdable(changed, made(changed))[0] is not changed


def made(rows: DataFrame) -> list[Way]:
    return [Way.made(column) for column in columns(rows.schema, "out")]
