"""``select=`` and ``where=``: what they give, what is refused at start, and by which name."""

from __future__ import annotations

import ast
import datetime
import pickle

import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import ArrayType, IntegerType, StructType

from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured, PrepareRefused, SinkUnavailable
from epochal.sinks.rows.projection import Projection, settings_of, take_settings
from epochal.sinks.spark import settings

INNER = StructType().add("x", "integer").add("y", "string")
SCHEMA = StructType().add("id", "string").add("n", "long").add("at", "timestamp").add("items", ArrayType(IntegerType()))
SCHEMA = SCHEMA.add("inner", INNER).add("my col", "string").add("a.b", "integer").add("user", "string")


def projection(select: list[str] | None = None, where: str | None = None) -> Projection:
    return Projection.of("out", select, where)


def columns(made: Projection) -> str:
    return made.check(SCHEMA).simpleString()


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", 1), ("b", 2), ("c", None)], "id string, n long")


@pytest.mark.usefixtures("spark")
def test_without_select_and_where_nothing_changes() -> None:
    assert projection().is_whole
    assert projection().check(SCHEMA) is SCHEMA


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("select", "gives"),
    [
        (["n", "id"], "struct<n:bigint,id:string>"),
        (["n * 2 AS twice", "upper(id) up"], "struct<twice:bigint,up:string>"),
        (["inner.x", "inner.y AS why"], "struct<x:int,why:string>"),
        (["my col", "a.b", "user"], "struct<my col:string,a.b:int,user:string>"),  # columns to the letter
        (["`my col` AS mine", "n * 2 AS twice", "twice + 1 AS more"], "struct<mine:string,twice:bigint,more:bigint>"),
        (["transform(items, x -> x + 1) AS items"], "struct<items:array<int>>"),
        (["named_struct('k', id, 'now', 'now') AS s", "cast('today' AS string) AS t"], None),
        (["date_add(cast(at AS date), 1) AS next", "cast(5 AS timestamp) AS five"], None),
        (["date_format(at, 'HH') AS hour -- in the session's zone"], "struct<hour:string>"),
    ],
)
def test_select_gives(select: list[str], gives: str | None) -> None:
    found = columns(projection(select))
    assert found == gives or gives is None


@pytest.mark.usefixtures("spark")
def test_a_star_is_every_column() -> None:
    assert projection(["*", "n + 1 AS next"]).check(SCHEMA).names == [*SCHEMA.names, "next"]


def test_where_keeps_rows_for_which_it_is_true(rows: DataFrame) -> None:
    """NULL is not true; what is left out is counted apart, and the two are all."""
    made = projection(["n * 2 AS n"], "n > 1 -- not NULL")
    made.check(rows.schema)
    assert [row.n for row in made.apply(rows).collect()] == [4]
    assert made.left_out(rows) == 2
    assert projection(["n"]).left_out(rows) == 0


def test_where_comes_before_select(rows: DataFrame) -> None:
    """An expression is not evaluated for rows that are left out, and where= knows no name of select=."""
    made = projection(["10 / (n - 1) AS q"], "n <> 1")
    made.check(rows.schema)
    assert [row.q for row in made.apply(rows).collect()] == [10.0]
    with pytest.raises(Misconfigured, match="where='q > 1' does not fit the rows"):
        projection(["n AS q"], "q > 1").check(rows.schema)


@pytest.mark.parametrize(
    ("select", "where", "says"),
    [
        (["nope"], None, "select=['nope'] does not fit the rows: [UNRESOLVED_COLUMN"),
        (["id", "n + nope AS x"], None, "select=['n + nope AS x'] does not fit the rows: [UNRESOLVED_COLUMN"),
        (["id", "n + AS"], None, "select=['n + AS']: the result of 'n + AS' has no name"),
        (["id", "n +* 2 AS x"], None, "select=['n +* 2 AS x'] does not fit the rows: [PARSE_SYNTAX_ERROR]"),
        (["size(n) AS x"], None, "select=['size(n) AS x'] does not fit the rows: [DATATYPE_MISMATCH"),
        (None, "n", "where='n' does not fit the rows: [DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN]"),
        (None, "nope > 1", "where='nope > 1' does not fit the rows: [UNRESOLVED_COLUMN"),
        (None, "n >", "where='n >' does not fit the rows: "),
        (["n * 2"], None, "select=['n * 2']: the result of 'n * 2' has no name"),
        (["id", "ID"], None, "select=['id', 'ID'] names 'ID' twice"),
        (
            ["named_struct('a', 1, 'A', 2) AS s"],
            None,
            "select=[\"named_struct('a', 1, 'A', 2) AS s\"] names 's.A' twice",
        ),
    ],
)
@pytest.mark.usefixtures("spark")
def test_what_does_not_fit_is_refused_by_its_own_text(select: list[str] | None, where: str | None, says: str) -> None:
    with pytest.raises(Misconfigured, match="Help: ") as refused:
        columns(projection(select, where))
    assert refused.value.what.startswith(says), refused.value.what
    assert "\n" not in refused.value.what
    assert refused.value.sink == "out"
    assert refused.value.state is not None


ANSI = {"spark.sql.ansi.enabled": "true"}  # the default from Spark 4.0 on
OF_4_0 = [("mine(n)", "mine"), ("variable", "variablereference(system.session.variable=1)")]
OF_4_0 = OF_4_0 if hasattr(functions, "listagg") else []
OF_4_1 = [("current_time()", "current_time(6)")] if hasattr(functions, "current_time") else []


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("rand()", "rand()"),
        ("n + cast(rand(7) * 3 AS int)", "rand(7)"),
        ("uuid()", "uuid()"),
        ("shuffle(items)", "shuffle(items)"),
        ("transform(items, x -> x + int(randn()))", "randn()"),
        ("monotonically_increasing_id()", "monotonically_increasing_id()"),
        ("spark_partition_id()", "SPARK_PARTITION_ID()"),
        ("input_file_name()", "input_file_name()"),
        ("reflect('java.util.UUID', 'randomUUID')", "reflect('java.util.UUID', 'randomUUID')"),
        ("current_timestamp()", "current_timestamp()"),
        ("now()", "now()"),
        ("current_date", "current_date()"),
        ("localtimestamp()", "localtimestamp()"),
        *OF_4_1,
        ("unix_timestamp()", "current_timestamp()"),
        ("cast('now' AS timestamp)", "CAST('now' AS TIMESTAMP)"),
        ("to_date(' Today ')", "to_date(' Today ')"),
        ("at > 'yesterday UTC'", "CAST('yesterday UTC' AS TIMESTAMP)"),
        ("timestamp 'now'", "timestamp 'now'"),
        ("DATE'tomorrow'", "DATE'tomorrow'"),
        ("current_user()", "current_user()"),
        ("current_database()", "current_schema()" if OF_4_0 else "current_database()"),
        ("current_timezone()", "current_timezone()"),
        *OF_4_0,
        ("python(n)", "python"),
        ("(SELECT max(id) FROM range(3))", "scalarsubquery()"),
        ("exists (SELECT 1)", "exists()"),
    ],
)
def test_what_may_differ_the_next_time_is_refused_by_name(spark: SparkSession, expression: str, name: str) -> None:
    if OF_4_0:
        spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION mine(x long) RETURNS long RETURN x * 2")
        spark.sql("DECLARE OR REPLACE VARIABLE variable int DEFAULT 1")
    spark.udf.register("python", lambda n: n, "long")
    for made in (projection([f"{expression} AS x"]), projection(["id"], f"({expression}) IS NOT NULL")):
        with pytest.raises(Misconfigured, match="compute it in the query, before the pipeline") as refused:
            columns(made)
        assert refused.value.what.startswith(f"{name} "), refused.value.what
        assert expression in str(refused.value.state)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("expression", "node"),
    [
        ("explode(items)", "Generate"),
        ("count(1)", "Aggregate"),
        ("row_number() OVER (ORDER BY n)", "Window"),
    ],
)
def test_what_is_not_row_by_row_is_refused(expression: str, node: str) -> None:
    made = projection([f"{expression} AS x"])
    with pytest.raises(Misconfigured, match="does not give one row for each row") as refused:
        columns(made)
    assert f"Spark plans {node} for it" in refused.value.what


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("where", [None, "n > 0"])
def test_what_drops_rows_beside_where_is_refused(where: str | None) -> None:
    """Each row has its one window, but that whose time is NULL has none."""
    with pytest.raises(Misconfigured, match="drops rows that where= keeps") as refused:
        columns(projection(["window(at, '5 minutes') AS x"], where))
    assert "before the pipeline" in refused.value.help


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("more", ["", ", 'CBC'", ", 'GCM', 'DEFAULT', ''"])
def test_what_is_salted_is_refused(more: str) -> None:
    with pytest.raises(Misconfigured, match="is salted"):
        columns(projection([f"aes_encrypt('a', '0123456789abcdef'{more}) AS x"]))


@pytest.mark.parametrize(
    "more",
    [", 'ECB'", ", 'ecb'", ", 'CBC', 'DEFAULT', '0123456789abcdef'", ", 'GCM', 'DEFAULT', substr(sha2(n, 256), 1, 12)"],
)
def test_what_is_encrypted_alike_every_time_is_allowed(spark: SparkSession, more: str) -> None:
    made = projection([f"aes_encrypt('a', '0123456789abcdef'{more}) AS x"])
    rows = spark.createDataFrame([("1",)], "n string")
    made.check(rows.schema)
    assert made.apply(rows).collect() == made.apply(rows).collect()


@pytest.mark.remedy(
    "… has no result for a row of the epoch: …",
    "write an expression that has one for every row (try_cast, try_divide, coalesce), or keep such rows out with"
    " where=",
)
def test_a_value_without_a_result_is_a_refusal_in_sparks_words(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("1",), ("x",)], "s string")
    made = projection(["cast(s AS int) AS n"])
    made.check(rows.schema)
    says = r"has no result for a row .*CAST_INVALID_INPUT"
    with settings.held(spark, ANSI), pytest.raises(PrepareRefused, match=says) as refused, made.evaluating(3):
        made.apply(rows).collect()
    assert (refused.value.epoch, refused.value.sink) == (3, "out")
    with pytest.raises(ZeroDivisionError), made.evaluating(3):
        raise ZeroDivisionError
    with pytest.raises(SinkUnavailable, match="no server"), made.evaluating(3):
        raise SinkUnavailable("no server", help="start it")
    ways_out = (projection(["try_cast(s AS int) AS n"]), projection(["cast(s AS int) AS n"], "s <> 'x'"))
    for made in ways_out:
        made.check(rows.schema)
        with settings.held(spark, ANSI), made.evaluating(3):
            assert made.apply(rows).collect()[0].n == 1


def test_a_users_function_is_refused_also_where_its_name_did_not_tell_it(spark: SparkSession) -> None:
    """Whatever name it has: it is looked for once more in what Spark made of the text."""
    session = spark.newSession()
    session.udf.register("of_a_user", lambda n: n, "long")
    with pytest.raises(Misconfigured, match="is no function of Spark's own"):
        projection(["n"])._check_repeatable(session.range(1).selectExpr("of_a_user(id) AS n"))


@pytest.mark.remedy("… is read by Spark, and no Spark session runs in this process", "create a SparkSession first")
@pytest.mark.usefixtures("spark")
def test_without_a_session_a_projection_is_read_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.sinks.rows.projection.running_session", lambda: None)
    with pytest.raises(Misconfigured, match="no Spark session runs in this process"):
        columns(projection(["n"]))
    monkeypatch.undo()
    assert columns(projection(["n"]))


def test_settings_come_back_as_they_were_meant(spark: SparkSession) -> None:
    def clone() -> SparkSession:
        return type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())

    meant, other = clone(), clone()
    meant.conf.set("spark.sql.session.timeZone", "America/New_York")
    meant.conf.set("spark.sql.jsonGenerator.ignoreNullFields", "false")
    meant.conf.set("spark.sql.ansi.enabled", "false")
    meant.conf.set("spark.sql.legacy.sizeOfNull", "true")
    other.conf.set("spark.sql.legacy.allowNegativeScaleOfDecimal", "true")
    for session in (meant, other):  # one that only the start of Spark can set
        conf = session._jsparkSession.sessionState().conf()
        conf.setConfString("spark.sql.legacy.sessionInitWithConfigDefaults", "true")
    settings = settings_of(meant)
    assert settings["spark.sql.legacy.sizeOfNull"] == "true"
    assert settings["spark.sql.jsonGenerator.ignoreNullFields"] == "false"
    assert "spark.sql.legacy.sessionInitWithConfigDefaults" not in settings
    take_settings(other, settings)
    assert settings_of(other) == settings
    assert not [name for name in settings if "secret" in name or name.startswith("spark.hadoop")]


def test_a_projection_travels_as_plain_data(spark: SparkSession) -> None:  # noqa: ARG001
    made = projection(["id", "n * 2 AS twice"], "n > 1")
    columns(made)
    assert pickle.loads(pickle.dumps(made)) == made
    assert Projection.from_json("out", made.to_json()) == made
    assert Projection.from_json("out", projection().to_json()) == projection()
    with pytest.raises(CommitInDoubt, match="its projection is of version 2"):
        Projection.from_json("out", {**made.to_json(), "version": 2})


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        pytest.param(
            projection(["my col + 1 AS x"], None),
            projection(["`my col` AS x", "`a.b` AS b"], None),
            marks=pytest.mark.remedy(
                "… does not fit the rows: …", "name columns as they are spelled there, odd ones in `backquotes`"
            ),
        ),
        pytest.param(
            projection(["n AS q"], "q > 1"),
            projection(["n AS q"], "n > 1"),
            marks=pytest.mark.remedy(
                "… does not fit the rows: …", "where= is a condition on the columns of the epoch, before select="
            ),
        ),
        pytest.param(
            projection(["id", "ID"], None),
            projection(["id", "ID AS again"], None),
            marks=pytest.mark.remedy("… names … twice", "give each a name of its own with AS"),
        ),
        pytest.param(
            projection(["named_struct('a', 1, 'A', 2) AS s"], None),
            projection(["named_struct('a', 1, 'b', 2) AS s"], None),
            marks=pytest.mark.remedy("… names … twice", "and each field of a struct another name"),
        ),
    ],
)
def test_the_help_makes_a_projection_that_fits(wrong: Projection, right: Projection) -> None:
    with pytest.raises(Misconfigured):
        columns(wrong)
    assert columns(right)


@pytest.mark.usefixtures("spark")
@pytest.mark.remedy("…: the result of … has no name", "name it: …")
def test_the_name_of_the_help_is_one() -> None:
    with pytest.raises(Misconfigured) as refused:
        columns(projection(["n * 2"]))
    assert columns(projection([ast.literal_eval(refused.value.help.removeprefix("name it: "))]))


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param(
            "rand()", marks=pytest.mark.remedy("… is not deterministic", "compute it in the query, before the pipeline")
        ),
        pytest.param(
            "now()",
            marks=pytest.mark.remedy(
                "… has another value when it is evaluated again", "compute it in the query, before the pipeline"
            ),
        ),
        pytest.param(
            "(SELECT max(id) FROM range(3))",
            marks=pytest.mark.remedy("… depends on more than the row", "compute it in the query, before the pipeline"),
        ),
        pytest.param(
            "aes_encrypt('a', '0123456789abcdef')",
            marks=pytest.mark.remedy(
                "… is salted: it has another value in every evaluation", "compute it in the query, before the pipeline"
            ),
        ),
        pytest.param(
            "python(n)",
            marks=pytest.mark.remedy(
                "… is no function of Spark's own: at another start it may be missing or changed",
                "compute it in the query, before the pipeline",
            ),
        ),
        pytest.param(
            "explode(array(n, n))",
            marks=pytest.mark.remedy(
                "… does not give one row for each row: Spark plans … for it",
                "aggregate, explode and number rows in the query, before the pipeline",
            ),
        ),
        pytest.param(
            "window(at, '5 minutes')",
            marks=pytest.mark.remedy(
                "… drops rows that where= keeps: Spark adds a filter for it (window() has no row for a time that is"
                " NULL)",
                "compute it in the query, before the pipeline, where you see which rows it drops",
            ),
        ),
    ],
)
def test_what_is_computed_in_the_query_is_a_column(spark: SparkSession, expression: str) -> None:
    spark.udf.register("python", lambda n: n, "long")
    rows = spark.createDataFrame([(1, datetime.datetime(2024, 1, 1))], "n long, at timestamp")
    with pytest.raises(Misconfigured):
        projection([f"{expression} AS x"]).check(rows.schema)
    computed = rows.selectExpr("n", f"{expression} AS x")
    made = projection(["x"])
    made.check(computed.schema)
    assert made.apply(computed).count() >= 1
