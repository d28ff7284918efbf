"""Other people's columns: tables whose columns have types that Spark does not have, or that hold fewer values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas import functions

from epochal import Pipeline
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks import DeltaSink, PostgresSink
from epochal.sinks.postgres import Append, Plain, Upsert
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.rows.rejects import Rejects
from tests.real.coordinator.query.support import FAST, Job
from tests.real.sinks.delta.support import read
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import observe

CASELESS = """
CREATE TYPE caseless;
CREATE FUNCTION caseless_in(cstring) RETURNS caseless LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION caseless_out(caseless) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE caseless (INPUT = caseless_in, OUTPUT = caseless_out, LIKE = text, COLLATABLE = true);
CREATE CAST (caseless AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE FUNCTION caseless_cmp(caseless, caseless) RETURNS int LANGUAGE sql IMMUTABLE AS
    'SELECT bttextcmp(lower($1::text), lower($2::text))';
"""
for _name, _operator in {"lt": "<", "le": "<=", "eq": "=", "ge": ">=", "gt": ">"}.items():
    CASELESS += f"""
CREATE FUNCTION caseless_{_name}(caseless, caseless) RETURNS bool LANGUAGE sql IMMUTABLE AS
    'SELECT caseless_cmp($1, $2) {_operator} 0';
CREATE OPERATOR {_operator} (LEFTARG = caseless, RIGHTARG = caseless, FUNCTION = caseless_{_name});
"""
CASELESS += """
CREATE OPERATOR CLASS caseless_ops DEFAULT FOR TYPE caseless USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =,
    OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 caseless_cmp(caseless, caseless);
"""
"""A type like citext, which is an extension that a server may lack."""

SHAPE = """
CREATE TYPE shape;
CREATE FUNCTION shape_in(cstring) RETURNS shape LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION shape_out(shape) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE shape (INPUT = shape_in, OUTPUT = shape_out, LIKE = text);
CREATE FUNCTION shape(text) RETURNS shape LANGUAGE sql IMMUTABLE AS 'SELECT shape_in(textout(upper($1)))';
CREATE CAST (text AS shape) WITH FUNCTION shape(text) AS IMPLICIT;
"""
"""A type with a cast of its own from text, like those of PostGIS."""

TYPES = f"""
{CASELESS}
{SHAPE}
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN zip AS varchar(5) CHECK (VALUE ~ '^[0-9]+$');
CREATE DOMAIN positive AS integer NOT NULL CHECK (VALUE > 0);
CREATE DOMAIN tags AS varchar(3)[] CHECK (cardinality(VALUE) < 3);
"""


class Case(NamedTuple):
    """A column: its type, a value in Spark's SQL, and what a reader gets of it as text.

    ``bad``: values that Spark finds, as the column would change them.  ``refused``: values that the server refuses.
    """

    kind: str
    value: str
    text: str
    bad: Sequence[str] = ()
    refused: Sequence[str] = ()


U = "550E8400-E29B-41D4-A716-446655440000"
_JSON_NUL = "'\"\\\\u0000\"'"
_NUL = "decode(X'6100', 'utf-8')"
CASES = {
    "instant": Case(
        "timestamp(6) with time zone", "timestamp'2013-01-01 05:00:00.123456Z'", "2013-01-01 05:00:00.123456+00"
    ),
    "tenths": Case(
        "timestamp(1)",
        "timestamp_ntz'1582-10-04 00:00:59.9'",
        "1582-10-04 00:00:59.9",
        ["timestamp_ntz'1582-10-04 00:00:59.99'", "timestamp_ntz'1960-10-04 00:00:00.000001'"],
    ),
    "seconds": Case(
        "timestamptz(0)",
        "timestamp'1960-01-01 00:00:01Z'",
        "1960-01-01 00:00:01+00",
        ["timestamp'1960-01-01 00:00:01.5Z'"],
    ),
    "short": Case("varchar(5)", "'ab\U0001f600 é'", "ab\U0001f600 é", ["'abcdef'", "'abc     '"]),
    "fixed": Case("char(3)", "'EUR'", "EUR", ["'E'", "'EURO'", "'E '"]),
    "id": Case("uuid", f"'{U}'", U.lower(), [_NUL], ["'nope'", "''"]),
    "doc": Case("jsonb", '\'{"b":1,"a":[1.0]}\'', '{"a": [1.0], "b": 1}', refused=["'{'", _JSON_NUL]),
    "raw": Case("json", "'{\"b\" : 1}'", '{"b" : 1}', refused=["'{'", _JSON_NUL]),
    "made": Case(
        "jsonb",
        "named_struct('b', 1, 'a', array(1.5D))",
        '{"a": [1.5], "b": 1}',
        ["named_struct('b', 1, 'a', array(double('NaN')))"],
    ),
    "mood": Case("mood", "'sad'", "sad", refused=["'angry'"]),
    "mail": Case("caseless", "'Ann@X.org'", "Ann@X.org", [_NUL]),
    "place": Case("shape", "'point(1 2)'", "POINT(1 2)"),
    "ip": Case("inet", "'10.0.0.1/8'", "10.0.0.1/8", refused=["'10.0.0.300'"]),
    "bits": Case("bit(3)", "'101'", "101", ["'10'", "'1010'"], ["'102'"]),
    "zip": Case("zip", "'01234'", "01234", ["'012345'"], ["'abc'"]),
    "texts": Case("text[]", "array('a', null, 'b,\"c')", '{a,NULL,"b,\\"c"}', [f"array({_NUL})"]),
    "uuids": Case("uuid[]", f"array('{U}')", f"{{{U.lower()}}}", refused=["array('nope')"]),
    "tags": Case("tags", "array('abc', 'd')", "{abc,d}", ["array('abcd')"], ["array('a', 'b', 'c')"]),
    "longs": Case("bigint[]", "array(1, null, 9223372036854775807)", "{1,NULL,9223372036854775807}"),
    "times": Case(
        "timestamptz[]", "array(timestamp'2013-01-01 05:00:00.123456Z')", '{"2013-01-01 05:00:00.123456+00"}'
    ),
    "shorts": Case("smallint[]", "array(1, -32768)", "{1,-32768}", ["array(32768)"]),
    "positive": Case("positive", "7L", "7", ["4294967297L"], ["0L", "cast(null as bigint)"]),
    "small": Case("smallint", "-32768", "-32768", ["32768"]),
    "big": Case("bigint", "2147483647", "2147483647"),
    "whole": Case("numeric(4,1)", "-999S", "-999.0", ["1000S"]),
    "money": Case("numeric(6,2)", "-1234.5000BD", "-1234.50", ["0.0050BD", "10000.0000BD"]),
    "single": Case("real", "0.5D", "0.5", ["0.1D", "1e300D"]),
    "double": Case("double precision", "float('0.1')", "0.10000000149011612"),
}
BAD = [(name, value) for name, case in CASES.items() for value in case.bad]
REFUSED = [(name, value) for name, case in CASES.items() for value in case.refused]


def table(dsn: str, more: str = "") -> None:
    lines = [f"{name} {case.kind}" for name, case in CASES.items()]
    observe(dsn, f"{TYPES} CREATE TABLE flights (n bigint{more}, {', '.join(lines)})")


def columns(wrong: Sequence[tuple[str, str]]) -> list[str]:
    """Row 0 is good; row n has the n-th of the wrong values."""
    found = []
    for name, case in CASES.items():
        values = " ".join(f"WHEN {n} THEN {value}" for n, (bad, value) in enumerate(wrong, 1) if bad == name)
        found.append(f"CASE n {values} ELSE {case.value} END AS {name}" if values else f"{case.value} AS {name}")
    return found


def rows(spark: SparkSession, wrong: Sequence[tuple[str, str]] = ()) -> DataFrame:
    return spark.range(0, len(wrong) + 1, 1, 2).toDF("n").selectExpr("n", *columns(wrong))


GOOD = {name: case.text for name, case in CASES.items()}


def texts(dsn: str, table: str = "flights") -> list[dict[str, Any]]:
    names = ", ".join(f"{name}::text" for name in CASES)
    return [dict(zip(CASES, row, strict=True)) for row in observe(dsn, f"SELECT {names} FROM {table}")]


def started(dsn: str, given: DataFrame, **options: Any) -> PostgresSink:
    sink = support.sink(dsn, **options)
    sink.create(support.QUERY, given.schema)
    sink.check(support.QUERY, given.schema)
    sink.look(support.QUERY)
    sink.fence(support.QUERY, support.ONE)
    return sink


def shown(sink: PostgresSink, given: DataFrame, number: int = 0) -> None:
    vote = sink.prepare(support.epoch(number), given, support.ONE)
    assert sink.commit(vote, support.ONE) is CommitOutcome.COMMITTED


@pytest.mark.parametrize("mode", [Append(), Plain(), Upsert(key="n")], ids=lambda mode: type(mode).__name__)
def test_columns_that_applications_have_take_the_rows(spark: SparkSession, pg_database: str, mode: Any) -> None:
    """P7: all of these were refused, most with "cast in the query", which Spark cannot do."""
    table(pg_database, " PRIMARY KEY" if isinstance(mode, Upsert) else "")
    given = rows(spark)
    shown(started(pg_database, given, mode=mode), given)
    assert texts(pg_database) == [GOOD]


@pytest.mark.remedy(
    "rows with values that Postgres cannot hold exactly: …",
    "replace or drop them in the query, or write them elsewhere",
)
@pytest.mark.parametrize("wrong", [BAD, REFUSED], ids=["Spark", "server"])
def test_values_that_such_a_column_refuses_or_would_change_are_counted(
    spark: SparkSession, pg_database: str, wrong: Sequence[tuple[str, str]]
) -> None:
    """P7: before the vote, by column, and also without a trial; with what the server says about one of them."""
    table(pg_database)
    given = rows(spark, wrong)
    sink = started(pg_database, given, mode=Plain(trial=False))
    with pytest.raises(PrepareRefused) as refused:
        sink.prepare(support.epoch(), given, support.ONE)
    counts = Counter(name for name, _ in wrong)
    told = refused.value.what.partition("exactly: ")[2]
    assert sorted(told.split(", ")) == sorted(f"column {name!r}: {count}" for name, count in counts.items())
    if wrong is REFUSED:
        assert "for instance, " in str(refused.value.state)
    assert observe(pg_database, "SELECT count(*) FROM flights__staged") == [(0,)]
    shown(sink, given.where("n = 0"))
    assert texts(pg_database) == [GOOD]


@pytest.mark.parametrize("mode", ["two-phase", pytest.param("idempotent", marks=pytest.mark.wide)])
def test_each_bad_row_goes_to_the_other_sink(spark: SparkSession, tmp_path: Path, pg_database: str, mode: str) -> None:
    """P7: with ``bad_rows=`` one bad uuid is one bad row, with the reason that the server gives."""
    table(pg_database)
    wrong = [*BAD, *REFUSED]
    job = Job(spark, tmp_path, sinks=())
    bad = DeltaSink(str(tmp_path / "bad"), name="bad")
    sink = PostgresSink(pg_database, table="flights", name="table", bad_rows=bad)
    pipeline = Pipeline(app="sorted", sinks=[sink], retry=FAST, mode=mode)
    given = job.df().selectExpr("id AS n").selectExpr("n", *columns(wrong))
    pipeline.create(given.schema)
    pipeline.check(given)
    job.add(*range(len(wrong) + 1))
    job.run(pipeline, given)
    assert texts(pg_database) == [GOOD]
    found = read(tmp_path / "bad").select(["n", "_reason"]).to_pylist()
    reasons = {row["n"]: row["_reason"] for row in found}
    assert len(found) == len(reasons) == len(wrong)
    for number, (name, _) in enumerate(wrong, 1):
        assert reasons[number].startswith(f"Postgres cannot hold the value of column {name!r}"), reasons[number]
    place = 1 + wrong.index(("id", "'nope'"))
    assert reasons[place].endswith("'id': invalid input syntax for type uuid: \"nope\"")


CASE_TWINS = ["A", "a"]
UUIDS = [U, U.lower()]


@pytest.mark.parametrize(
    ("kind", "twins"), [("caseless", CASE_TWINS), ("uuid", UUIDS), ("cidr", ["10.0.0.0/8", "10/8"])]
)
def test_keys_that_the_database_takes_for_one_are_one(
    spark: SparkSession, pg_database: str, kind: str, twins: list[str]
) -> None:
    """P7: ``order_by=`` keeps one row of them, also over epochs; without it they are refused as one key."""
    observe(pg_database, f"{TYPES} CREATE TABLE flights (k {kind} PRIMARY KEY, seq int)")
    schema = "k string, seq int"
    given = spark.createDataFrame([(twins[0], 1), (twins[1], 2), (twins[0], 0)], schema)
    sink = started(pg_database, given, mode=Upsert(key="k", order_by="seq"))
    shown(sink, given)
    assert observe(pg_database, "SELECT seq FROM flights") == [(2,)]
    shown(sink, spark.createDataFrame([(twins[1], 3)], schema), 1)
    assert observe(pg_database, "SELECT seq FROM flights") == [(3,)]
    sink.close()
    plain = support.sink(pg_database, mode=Upsert(key="k"))
    plain.look(support.QUERY)
    with pytest.raises(PrepareRefused, match=r": 3 rows"):
        plain.prepare(support.epoch(2), given, support.ONE)


def test_the_order_of_rows_is_that_of_the_database(spark: SparkSession, pg_database: str) -> None:
    """P7: an enum has the order in which its labels were made."""
    observe(pg_database, f"{TYPES} CREATE TABLE flights (k int PRIMARY KEY, m mood)")
    given = spark.createDataFrame([(1, "sad"), (1, "happy")], "k int, m string")
    shown(started(pg_database, given, mode=Upsert(key="k", order_by="m")), given)
    assert observe(pg_database, "SELECT m::text FROM flights") == [("happy",)]


TYPED = {
    "string": "'1'",
    "bigint": "1L",
    "double": "1D",
    "boolean": "true",
    "date": "date'2013-01-01'",
    "timestamp": "timestamp'2013-01-01 00:00:00Z'",
    "array": "array(1)",
    "float": "array(float(1))",
    "lists": "array(array(1))",
    "strings": "array('a')",
    "struct": "named_struct('x', 1)",
    "binary": "X'31'",
}


@pytest.mark.parametrize(
    ("kind", "name", "help_with"),
    [
        pytest.param(
            "bigint",
            "string",
            "cast(`c` AS bigint) AS `c`",
            marks=pytest.mark.remedy("column … of … is …, the rows need …", "convert it in the query: … AS …"),
        ),
        ("numeric(5,1)", "string", "cast(`c` AS decimal(5,1)) AS `c`"),
        ("numeric", "double", "cast(`c` AS decimal(38,18)) AS `c`"),
        ("numeric(40,20)", "double", "cast(`c` AS decimal(38,20)) AS `c`"),
        ("boolean", "string", "cast(`c` AS boolean) AS `c`"),
        ("bytea", "string", "cast(`c` AS binary) AS `c`"),
        ("integer", "boolean", "cast(`c` AS int) AS `c`"),
        ("double precision", "bigint", "cast(`c` AS double) AS `c`"),
        ("timestamptz(3)", "date", "cast(`c` AS timestamp) AS `c`"),
        ("date", "timestamp", "cast(`c` AS date) AS `c`"),
        ("text", "bigint", "cast(`c` AS string) AS `c`"),
        ("mood", "boolean", "cast(`c` AS string) AS `c`"),
        ("text", "struct", "to_json(`c`) AS `c`"),
        ("text[]", "array", "cast(`c` AS array<string>) AS `c`"),
        ("float8[]", "float", "cast(`c` AS array<double>) AS `c`"),
        pytest.param(
            "bytea[]",
            "strings",
            'ALTER TABLE "flights" ALTER COLUMN "c" TYPE json USING',
            marks=pytest.mark.remedy(
                "column … of … is …, the rows need …", "ALTER TABLE … ALTER COLUMN … TYPE … USING …"
            ),
        ),
        ("money", "string", 'ALTER TABLE "flights" ALTER COLUMN "c" TYPE text USING'),
        ("int[]", "lists", 'ALTER TABLE "flights" ALTER COLUMN "c" TYPE json USING'),
        ("numeric(3,5)", "bigint", 'ALTER TABLE "flights" ALTER COLUMN "c" TYPE bigint USING'),
        ("int2vector", "array", 'ALTER TABLE "flights" ALTER COLUMN "c" TYPE json USING'),
        ("name", "string", 'ALTER TABLE "flights" ALTER COLUMN "c" TYPE text USING'),
        ("interval", "string", 'ALTER TABLE "flights" ALTER COLUMN "c" TYPE text USING'),
        ("xml", "string", 'ALTER TABLE "flights" ALTER COLUMN "c" TYPE text USING'),
    ],
)
def test_what_stays_refused_says_what_helps(
    spark: SparkSession, pg_database: str, kind: str, name: str, help_with: str
) -> None:
    """P7: the SQL of the help is run as it stands, and then the table takes the rows."""
    observe(pg_database, f"{TYPES} CREATE TABLE flights (c {kind})")
    given = spark.sql(f"SELECT {TYPED[name]} AS c")
    with pytest.raises(Misconfigured, match=r'column "c" of "flights" is .*, the rows need ') as refused:
        support.sink(pg_database).create(support.QUERY, given.schema)
    assert help_with in refused.value.help
    if help_with.startswith("ALTER"):
        observe(pg_database, refused.value.help.partition("; or ")[0])
    else:
        given = given.selectExpr(help_with)
    started(pg_database, given)


@pytest.mark.remedy(
    "column … of … is …, and its values go into a column of type …",
    "ALTER TABLE … ALTER COLUMN … TYPE …… USING …::text::…",
)
def test_a_staging_table_that_no_longer_fits_is_refused_with_the_cure(spark: SparkSession, pg_database: str) -> None:
    """P7: else keys would be compared as texts, and a value might be refused after the decision."""
    observe(pg_database, f"{TYPES} CREATE TABLE flights (k varchar(40) PRIMARY KEY, m text[])")
    given = spark.sql(f"SELECT '{U}' AS k, array('a') AS m")
    sink = started(pg_database, given, mode=Upsert(key="k"))
    observe(pg_database, "ALTER TABLE flights ALTER k TYPE uuid USING k::uuid, ALTER m TYPE tags")
    for name in ("k", "m"):
        with pytest.raises(Misconfigured, match=f'column "{name}" of "flights__staged" is') as refused:
            sink.check(support.QUERY, given.schema)
        with pytest.raises(PrepareRefused, match=f'column "{name}" of "flights__staged" is'):
            sink.prepare(support.epoch(), given, support.ONE)
        observe(pg_database, refused.value.help)
    sink.check(support.QUERY, given.schema)
    shown(sink, given)
    assert observe(pg_database, "SELECT k::text, m::text FROM flights") == [(U.lower(), "{a}")]


def test_a_staging_table_of_an_older_version_goes_on_working(spark: SparkSession, pg_database: str) -> None:
    observe(pg_database, "CREATE TABLE flights (k varchar PRIMARY KEY, n numeric)")
    given = spark.sql("SELECT 'a' AS k, 1.5BD AS n")
    sink = started(pg_database, given, mode=Upsert(key="k"))
    observe(pg_database, "ALTER TABLE flights__staged ALTER k TYPE text, ALTER n TYPE numeric(2,1)")
    sink.check(support.QUERY, given.schema)
    shown(sink, given)
    assert observe(pg_database, "SELECT k, n::text FROM flights") == [("a", "1.5")]


def test_a_new_column_is_staged_with_the_type_that_the_table_gave_it(spark: SparkSession, pg_database: str) -> None:
    observe(pg_database, f"{TYPES} CREATE TABLE flights (k int PRIMARY KEY)")
    one = spark.sql("SELECT 1 AS k")
    sink = started(pg_database, one, mode=Upsert(key="k"), schema_evolution=True)
    observe(pg_database, 'ALTER TABLE flights ADD id uuid, ADD mail caseless COLLATE "C"')
    two = spark.sql(f"SELECT 1 AS k, '{U}' AS id, 'x' AS mail, 'new' AS text")
    shown(sink, two)
    assert observe(pg_database, "SELECT k, id::text, mail::text, text FROM flights") == [(1, U.lower(), "x", "new")]


def test_a_check_of_a_domain_that_raises_is_a_refused_value(spark: SparkSession, pg_database: str) -> None:
    observe(
        pg_database,
        "CREATE FUNCTION fine(int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS"
        " 'BEGIN IF $1 > 1 THEN RAISE ''too much''; END IF; RETURN true; END';"
        " CREATE DOMAIN little AS int CHECK (fine(VALUE)); CREATE TABLE flights (c little)",
    )
    given = spark.createDataFrame([(1,), (2,)], "c int")
    sink = started(pg_database, given)
    with pytest.raises(PrepareRefused, match="column 'c': 1") as refused:
        sink.prepare(support.epoch(), given, support.ONE)
    assert refused.value.state == "for instance, too much"


@pytest.mark.remedy("with bad_rows= this role must judge the values of …: …", "GRANT TEMPORARY ON DATABASE … TO …")
def test_without_the_right_to_judge_bad_rows_are_refused_at_start(
    spark: SparkSession, tmp_path: Path, pg_database: str
) -> None:
    """And without ``bad_rows=`` nobody needs the right: the server's own message names the value."""
    observe(pg_database, "DROP ROLE IF EXISTS untemporary; CREATE ROLE untemporary LOGIN SUPERUSER")
    observe(pg_database, "CREATE TABLE flights (c uuid)")
    given = spark.sql("SELECT 'nope' AS c")
    started(pg_database, given)
    try:
        name = pg_database.rpartition("/")[2]
        observe(pg_database, f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC; ALTER ROLE untemporary NOSUPERUSER")
        observe(
            pg_database,
            "GRANT ALL ON SCHEMA epochal TO untemporary; GRANT ALL ON ALL TABLES IN SCHEMA epochal, public TO"
            " untemporary; GRANT ALL ON SEQUENCE epochal.attempt TO untemporary",
        )
        dsn = pg_database.replace("postgres@", "untemporary@")
        bad = DeltaSink(str(tmp_path / "bad"), name="bad")
        sorting = PostgresSink(dsn, table="flights", name="out", bad_rows=bad)
        with pytest.raises(Misconfigured, match="this role must judge the values of") as refused:
            sorting.check(support.QUERY, given.schema)
        plain = PostgresSink(dsn, table="flights", name="out")
        plain.check(support.QUERY, given.schema)
        plain.look(support.QUERY)
        with pytest.raises(PrepareRefused, match='invalid input syntax for type uuid: "nope"'):
            plain.prepare(support.epoch(), given, support.ONE)
        observe(pg_database, refused.value.help)
        sorting.check(support.QUERY, given.schema)
        with pytest.raises(PrepareRefused, match="column 'c': 1"):
            plain.prepare(support.epoch(), given, support.ONE)
    finally:
        observe(pg_database, "DROP OWNED BY untemporary")
        observe(pg_database, "DROP ROLE untemporary")


@pytest.mark.remedy(
    "with bad_rows= the server must judge the values of …, and tasks can ask it from Spark 4.1 on",
    "leave bad_rows= out: then a value that the server cannot hold refuses the epoch",
)
def test_where_tasks_cannot_ask_the_server_bad_rows_are_refused_at_start(
    spark: SparkSession, tmp_path: Path, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe(pg_database, "CREATE TABLE flights (c uuid)")
    given = spark.sql("SELECT 'nope' AS c")
    bad = DeltaSink(str(tmp_path / "bad"), name="bad")
    started(pg_database, given)
    monkeypatch.delattr(functions, "arrow_udf", raising=False)
    sorting = PostgresSink(pg_database, table="flights", name="out", bad_rows=bad)
    with pytest.raises(Misconfigured, match=r"judge the values of \['c'\], and tasks can ask it from Spark 4.1 on"):
        sorting.check(support.QUERY, given.schema)
    plain = started(pg_database, given)
    with pytest.raises(PrepareRefused, match='invalid input syntax for type uuid: "nope"'):
        plain.prepare(support.epoch(), given, support.ONE)
    shown(plain, spark.sql(f"SELECT '{U}' AS c"))


@pytest.mark.remedy("the types of … in … were altered while the epoch was prepared", "start the query again")
def test_types_that_are_altered_within_an_epoch_are_refused(
    spark: SparkSession, tmp_path: Path, pg_database: str
) -> None:
    """Else a row could be in both sinks or in neither: the two are asked in jobs of their own."""
    observe(pg_database, f"{TYPES} CREATE TABLE flights (c mood)")
    given = spark.sql("SELECT 'angry' AS c")
    bad = DeltaSink(str(tmp_path / "bad"), name="bad")
    sink = started(pg_database, given, bad_rows=bad)
    before = sink.judgement(support.epoch(), given)
    assert before["types"] == {"c": ["mood", "sad, happy"]}
    observe(pg_database, "ALTER TYPE mood ADD VALUE 'angry'")
    others = Rejects(sink, bad)
    others.create(support.QUERY, given.schema)
    others.look(support.QUERY)
    others.fence(support.QUERY, support.ONE)
    told = r"the types of \['c'\] in \"flights__rows\" were altered while the epoch was prepared"
    for one in (sink, others):
        with pytest.raises(PrepareRefused, match=told) as refused:
            one.prepare(support.epoch(), given, support.ONE)
        assert refused.value.help == "start the query again"
    again = support.epoch(redo=1)
    assert sink.judgement(again, given) != before
    assert sink.prepare(again, given, support.ONE).rows == 1


def test_a_table_of_exact_types_is_judged_as_by_an_older_version(spark: SparkSession, pg_database: str) -> None:
    observe(pg_database, "CREATE TABLE flights (c varchar)")
    given = spark.sql("SELECT 'angry' AS c")
    sink = started(pg_database, given)
    assert sink.judgement(support.epoch(), given).keys() == {"schema", "projection", "settings"}


@pytest.mark.remedy("a column of order_by=… has a type without an order: …", "name columns whose type has an order")
def test_an_order_by_a_type_that_has_none_is_refused(spark: SparkSession, pg_database: str) -> None:
    observe(pg_database, "CREATE TABLE flights (k int PRIMARY KEY, doc json, at timestamptz)")
    given = spark.sql("SELECT 1 AS k, '{}' AS doc, timestamp_millis(0) AS at")
    with pytest.raises(Misconfigured, match=r"order_by=\['doc'\] has a type without an order") as refused:
        started(pg_database, given, mode=Upsert(key="k", order_by=["doc"]))
    assert "for instance a number or a time" in refused.value.help
    started(pg_database, given, mode=Upsert(key="k", order_by="at"))
