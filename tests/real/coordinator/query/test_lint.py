"""Idempotent mode refuses by name what can be seen in a plan to give other rows when it is run again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import pandas_udf

from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.query import lint
from epochal.coordinator.query.plan import analyzed, class_of, is_random, nodes, seq
from tests.real.coordinator.query.support import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DOCS = Path(__file__).parents[4] / "docs" / "idempotent.md"
Query = Callable[["DataFrame"], "DataFrame"]


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    made = Job(spark, tmp_path)
    made.add(1, 2)
    return made


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(4).selectExpr("id", "id % 2 AS k", "array(id) AS a", "timestamp_seconds(id) AS at")


def told(df: DataFrame, **options: Any) -> list[str]:
    """What is found, as people read it."""
    return [str(found) for found in lint.find(analyzed(df), **options)]


def expr(text: str) -> Query:
    return lambda df: df.selectExpr(f"{text} AS x")


def grouped(text: str) -> Query:
    return lambda df: df.groupBy("k").agg(f.expr(text).alias("x"))


def window(text: str) -> Query:
    return lambda df: df.selectExpr(f"{text} OVER (PARTITION BY k ORDER BY id) AS x")


def framed(rows: str) -> Query:
    return expr(f"sum(id) OVER (PARTITION BY k ORDER BY at ROWS BETWEEN {rows})")


def guess(name: int) -> int:
    return name


CASES: dict[str, tuple[lint.Line, Query]] = {
    "rand": (lint.RANDOM, expr("rand()")),
    "randn": (lint.RANDOM, expr("randn(7)")),
    "random": (lint.RANDOM, expr("random()")),
    "uniform": (lint.RANDOM, expr("uniform(1, 9)")),
    "randstr": (lint.RANDOM, expr("randstr(5)")),
    "uuid": (lint.RANDOM, expr("uuid()")),
    "shuffle": (lint.RANDOM, expr("shuffle(a)")),
    "aes_encrypt": (lint.SALTED, expr("aes_encrypt(string(id), '0123456789abcdef')")),
    "monotonically_increasing_id": (lint.PLACE, expr("monotonically_increasing_id()")),
    "spark_partition_id": (lint.PLACE, expr("spark_partition_id()")),
    "input_file_name": (lint.FILE, lambda df: df.distinct().selectExpr("input_file_name() AS x")),
    "input_file_block_start": (lint.BLOCK, expr("input_file_block_start()")),
    "input_file_block_length": (lint.BLOCK, expr("input_file_block_length()")),
    "first": (lint.ORDER, grouped("first(id)")),
    "last": (lint.ORDER, grouped("last(id)")),
    "any_value": (lint.ORDER, grouped("any_value(id)")),
    "collect_list": (lint.ORDER, grouped("collect_list(id)")),
    "collect_set": (lint.ORDER, grouped("collect_set(id)")),
    "array_agg": (lint.ORDER, grouped("array_agg(id)")),
    "listagg": (lint.ORDER, grouped("listagg(string(id))")),
    "string_agg": (lint.ORDER, grouped("string_agg(string(id))")),
    "min_by": (lint.TIES, grouped("min_by(id, at)")),
    "max_by": (lint.TIES, grouped("max_by(id, at)")),
    "mode": (lint.TIES, grouped("mode(id)")),
    "row_number": (lint.WINDOW, window("row_number()")),
    "ntile": (lint.WINDOW, window("ntile(2)")),
    "lag": (lint.WINDOW, window("lag(id)")),
    "lead": (lint.WINDOW, window("lead(id)")),
    "nth_value": (lint.WINDOW, window("nth_value(id, 2)")),
    "sum(n) OVER (ORDER BY at ROWS ...)": (lint.FRAME, framed("1 PRECEDING AND CURRENT ROW")),
    "percentile_approx": (lint.SKETCH, grouped("percentile_approx(id, 0.5)")),
    "approx_percentile": (lint.SKETCH, grouped("approx_percentile(id, 0.5)")),
    "histogram_numeric": (lint.SKETCH, grouped("histogram_numeric(id, 3)")),
    "reflect": (lint.REFLECTION, expr("reflect('java.util.UUID', 'randomUUID')")),
    "java_method": (lint.REFLECTION, expr("java_method('java.util.UUID', 'randomUUID')")),
    "try_reflect": (lint.REFLECTION, expr("try_reflect('java.util.UUID', 'randomUUID')")),
    "cast('now' AS timestamp)": (lint.MOMENT, expr("cast('now' AS timestamp)")),
    "date 'today'": (lint.MOMENT, expr("cast(' today ' AS date)")),
    "now": (lint.NOW, expr("now()")),
    "current_time": (lint.NOW, expr("current_time()")),
    "limit": (lint.LIMIT, lambda df: df.limit(2)),
    "offset": (lint.LIMIT, lambda df: df.offset(2)),
    "tail": (lint.LIMIT, lambda df: df.sparkSession.createDataFrame([], "id long").limit(1)),
    "sample": (lint.SAMPLE, lambda df: df.sample(0.5, seed=1)),
}


NEWER = {"current_time", "listagg", "string_agg", "try_reflect", "uniform", "randstr"}
"""Functions that Spark 3.5 or 4.0 does not have."""
HAS_LISTAGG = hasattr(f, "listagg")


@pytest.mark.parametrize("name", [name for name in CASES if name not in NEWER or hasattr(f, name)])
def test_each_line_of_the_table_names_what_it_refuses(rows: DataFrame, name: str) -> None:
    line, query = CASES[name]
    assert name in line.functions
    found = list(lint.find(analyzed(query(rows))))
    assert line in [f.line for f in found], found
    with pytest.raises(Misconfigured, match="idempotent mode cannot give every sink the same rows") as refused:
        lint.check(analyzed(query(rows)))
    assert found[0].line.why in refused.value.what
    assert found[0].line.instead in refused.value.help
    assert all(str(f) in (refused.value.state or "") for f in found)


def test_every_function_of_the_table_has_a_case() -> None:
    assert {(name, id(line)) for line in lint.TABLE for name in line.functions} == {
        (name, id(line)) for name, (line, _) in CASES.items()
    }


ALLOWED: dict[str, Query] = {
    "plain": lambda df: df.where("id > 1").selectExpr("id * 2 AS x", "upper(string(k)) AS y"),
    "pinned per batch": expr("current_timestamp()"),
    "pinned per batch, too": expr("unix_timestamp() + day(current_date()) + hour(localtimestamp())"),
    "right after the source": expr("input_file_name()"),
    "sorted": grouped("sort_array(collect_list(id))"),
    "sorted by a function": grouped("array_sort(collect_set(id))"),
    **({"ordered": grouped("listagg(string(id)) WITHIN GROUP (ORDER BY string(id))")} if HAS_LISTAGG else {}),
    "counted": lambda df: df.groupBy("k").agg(f.count("*"), f.sum("id"), f.min("id"), f.max("id"), f.avg("id")),
    "peers": window("rank()"),
    "dense": window("dense_rank()"),
    "running sum": window("sum(id)"),
    "the whole partition": framed("UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"),
    "no order": lambda df: df.selectExpr("sum(id) OVER (PARTITION BY k) AS x"),
    "limited in order": lambda df: df.orderBy("id").limit(2),
    "a moment that is told": expr("cast('2024-01-01' AS timestamp)"),
    "a moment that is a number": expr("cast(5 AS timestamp)"),
    "a day that is a number": expr("cast(date'2024-01-31' AS timestamp)"),
    "a text that is no moment": expr("cast('now' AS string)"),
    "hashed": expr("xxhash64(id) + crc32(string(id))"),
    "exploded": lambda df: df.select(f.explode("a")),
    "united": lambda df: df.union(df).distinct(),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_repeats_itself_is_allowed(rows: DataFrame, name: str) -> None:
    assert told(ALLOWED[name](rows)) == []
    lint.check(analyzed(ALLOWED[name](rows)))


def test_it_is_found_wherever_it_stands(rows: DataFrame) -> None:
    rows.createOrReplaceTempView("lint_rows")
    spark = rows.sparkSession
    for text in (
        "SELECT * FROM lint_rows WHERE id > (SELECT max(id) FROM lint_rows WHERE rand() < 1)",
        "WITH w AS (SELECT rand() AS x FROM lint_rows) SELECT a.x FROM w a JOIN w b ON a.x = b.x",
        "SELECT * FROM lint_rows WHERE EXISTS (SELECT 1 FROM lint_rows l WHERE l.id > rand())",
        "SELECT transform(a, x -> x + rand()) AS y FROM lint_rows",
        "SELECT struct(coalesce(NULL, 1 + rand())) AS y FROM lint_rows GROUP BY ALL",
    ):
        assert any("rand(" in found for found in told(spark.sql(text))), text


def test_all_that_is_found_is_told_at_once(rows: DataFrame) -> None:
    with pytest.raises(Misconfigured) as refused:
        lint.check(analyzed(rows.selectExpr("uuid() AS u", "spark_partition_id() AS p").limit(3)))
    assert refused.value.state is not None
    assert refused.value.state.count("; ") == 2
    assert "GlobalLimit in the plan takes any rows" in refused.value.state


# functions of the user's


def test_a_function_of_ones_own_is_refused_until_its_name_is_listed(rows: DataFrame) -> None:
    df = rows.withColumn("x", f.udf(guess, "long", useArrow=False)("id"))
    assert told(df) == ["guess is a function of your own, and Spark cannot see what it reads"]
    assert told(df, deterministic=["guess"]) == []
    with pytest.raises(Misconfigured, match=r"Help: .*list its name: Pipeline\(deterministic="):
        lint.check(analyzed(df), deterministic=["other"])


def test_a_function_declared_non_deterministic_is_refused_although_it_is_listed(rows: DataFrame) -> None:
    df = rows.withColumn("x", f.udf(guess, "long", useArrow=False).asNondeterministic()("id"))
    assert told(df, deterministic=["guess"]) == [
        "guess, declared non-deterministic, may give another value in every evaluation"
    ]


def frames(pages: Iterator[Any]) -> Iterator[Any]:
    yield from pages


def series(column: pd.Series) -> pd.Series:
    return column


def one_group(page: Any) -> Any:
    return page


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("frames", lambda df: df.select("id").mapInPandas(frames, "id long")),
        ("frames", lambda df: df.select("id").mapInArrow(frames, "id long")),
        ("one_group", lambda df: df.select("id").groupBy("id").applyInPandas(one_group, "id long")),
        ("series", lambda df: df.withColumn("x", pandas_udf(series, "long")("id"))),  # type: ignore[call-overload]
    ],
)
def test_functions_over_frames_have_names_too(rows: DataFrame, name: str, query: Query) -> None:
    assert name in told(query(rows))[0]
    assert told(query(rows), deterministic=[name]) == []


def test_a_function_of_scala_is_one_of_the_users(rows: DataFrame) -> None:
    df = rows.select(array_to_vector(f.array(f.col("id").cast("double"))))
    [found] = told(df)
    assert found.endswith("is a function of your own, and Spark cannot see what it reads")
    assert told(df, deterministic=[found.split()[0]]) == []


# on the batch, in a function of the user's


@pytest.mark.parametrize("text", [n if "(" in n else f"{n}()" for n in lint.BATCH_TIME.functions])
def test_the_time_is_not_pinned_in_a_function_of_ones_own(rows: DataFrame, text: str) -> None:
    df = expr(text)(rows)
    assert told(df) == []
    assert "is the time of the evaluation there" in told(df, batch=True)[0]


# the pipeline


def test_the_pipeline_refuses_at_check_and_at_start(job: Job) -> None:
    random = job.df().withColumn("x", f.rand())
    job.pipeline().check(random)
    for call in (lambda p: p.check(random), lambda p: job.run(p, random)):
        pipeline = job.pipeline(mode="idempotent")
        with pytest.raises(Exception, match="has another value in every evaluation"):
            call(pipeline)
    assert isinstance(pipeline.last_error, Misconfigured)
    assert job.server.table("app", "one").fence is None


def test_the_pipeline_sees_what_a_function_of_ones_own_makes_of_the_batch(job: Job) -> None:
    pipeline = job.pipeline(mode="idempotent")
    with pytest.raises(Exception, match="is the time of the evaluation there"):
        job.run(lambda df, epoch: pipeline(df.withColumn("now", f.current_timestamp()), epoch))
    assert job.server.table("app", "one").fence is None
    job.run(job.pipeline(mode="idempotent"), job.df().withColumn("now", f.current_timestamp()))
    assert job.ids() == [1, 2]


def test_the_pipeline_takes_the_word_of_who_lists_a_function(job: Job) -> None:
    df = job.df().withColumn("x", f.udf(guess, "long", useArrow=False)("id"))
    with pytest.raises(Misconfigured, match="guess is a function of your own"):
        job.pipeline(mode="idempotent").check(df)
    pipeline = job.pipeline(mode="idempotent", deterministic=["guess"])
    job.run(pipeline, df)
    assert job.ids() == [1, 2]
    assert "condition: these functions depend on their arguments alone: guess" in str(pipeline.guarantee())


# the table is whole


def test_the_docs_show_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    shown = text.partition("<!-- refused -->\n")[2].partition("<!-- /refused -->")[0]
    assert shown == lint.markdown()


@pytest.mark.wide
def test_every_function_that_spark_marks_as_non_deterministic_is_in_the_table(spark: SparkSession) -> None:
    """Of the whole registry: each by the examples of its own documentation, and by its class."""
    catalyst: Any = spark._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
    registry = catalyst.analysis.FunctionRegistry.builtin()
    names = sorted({i.funcName() for i in seq(registry.listFunction())})
    assert len(names) > 400
    known = frozenset().union(*(line.expressions for line in lint.WHOLE_TABLE))
    missing, tried = {}, 0
    for name in names:
        info = registry.lookupFunction(catalyst.FunctionIdentifier(name)).get()
        marked = _marked_by_class(spark, info.getClassName()) | _marked_in_examples(spark, info.getExamples())
        tried += 1
        if marked - known:
            missing[name] = sorted(marked - known)
    assert missing == {}
    assert tried == len(names)


def _marked_by_class(spark: SparkSession, name: str) -> set[str]:
    lang: Any = spark._jvm.java.lang  # type: ignore[union-attr]
    marked = lang.Class.forName("org.apache.spark.sql.catalyst.expressions.Nondeterministic")
    return {name.rpartition(".")[2]} if marked.isAssignableFrom(lang.Class.forName(name)) else set()


def _marked_in_examples(spark: SparkSession, text: str) -> set[str]:
    found: set[str] = set()
    for example in re.findall(r"> (SELECT .*?);", text, re.DOTALL)[:1]:
        try:
            plan = analyzed(spark.sql(example))
        except PySparkException:
            continue  # an example that needs a table or a setting
        paths = (path[-1] for node in nodes(plan) for path in lint._paths(node))
        found |= {class_of(expression) for expression in paths if is_random(expression)}
    return found
