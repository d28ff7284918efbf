"""What of an epoch a sink gets: ``select=`` and ``where=``, the same for every sink.

``select`` is a list of column names and SQL expressions (``["id", "price * 2 AS twice", "*"]``), ``where`` one SQL
condition on the epoch's columns; rows for which it is false or NULL are not written.  An item of ``select`` that is
a column's name to the letter is that column; everything else is SQL, and what is computed needs a name with AS.

The durable copy holds every column and row all the same, as it is of the epoch and not of a sink; each sink projects
the rows that it reads from it.  So a projection may be evaluated more than once on the same rows: by every sink, by a
vote that is asked again, and, where a decided epoch is redone from the copy (Kafka, or prepared rows that were lost),
by a later start, another process, perhaps under other settings.  Two things follow:

- what is not the same the next time is refused at start, by name: ``rand()``, ``uuid()``, clocks
  (``current_timestamp()``, ``cast('now' as timestamp)``), the session's user and catalog, functions of the user's own,
  subqueries, session variables; and what makes one row of several or several of one (``explode``, ``sum``, windows);
- a sink that evaluates after the decision keeps the text *and* the settings of the session that bear on what
  expressions mean (:func:`settings_of`: time zone, ANSI mode, ...) in its committable, and evaluates under those.

No value is computed here: Spark does all of it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import EpochNumber, Json
from epochal.coordinator.model.errors import EpochalError, Misconfigured, PrepareRefused
from epochal.sinks.rows.formats import check_part
from epochal.sinks.spark.executors import first_cause, running_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

VERSION = 1

_SETTINGS = (
    "spark.sql.ansi.doubleQuotedIdentifiers",
    "spark.sql.ansi.enabled",
    "spark.sql.ansi.enforceReservedKeywords",
    "spark.sql.caseSensitive",
    "spark.sql.columnNameOfCorruptRecord",
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.function.concatBinaryAsString",
    "spark.sql.function.eltOutputAsString",
    "spark.sql.json.enablePartialResults",
    "spark.sql.jsonGenerator.ignoreNullFields",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.parser.escapedStringLiterals",
    "spark.sql.parser.quotedRegexColumnNames",
    "spark.sql.session.timeZone",
    "spark.sql.timestampType",
)
_LEGACY = "spark.sql.legacy."
_WHOLE = "__epochal_row"

_ROW_BY_ROW = {"Project", "Filter"}
_OF_THE_MOMENT = re.compile(r"Current[A-Z]\w*|Now|LocalTimestamp|UnixTimestampNow")
_OF_THE_USER = re.compile(r"\w*(UDF|UDAF|UDTF)|ScalaAggregator|ApplyFunctionExpression")
_SUBQUERIES = re.compile(r"\w*Subquery|Exists|ListQuery")
_NOT_SPARKS = "is no function of Spark's own: another start may not know it, or not as it was"
_TIMES = ("date", "timestamp", "timestamp_ntz", "timestamp_ltz", "time")
_SPECIAL = r"\s*(?:now|today|tomorrow|yesterday)\b"
_SPECIAL_TEXT = re.compile(rf"{_SPECIAL}.*", re.I | re.S)
_SPECIAL_LITERAL = re.compile(rf"\b(?:date|time|timestamp\w*)\s*(['\"]){_SPECIAL}[^'\"]*\1", re.I)


@dataclass(frozen=True)
class Projection:
    """``select`` and ``where`` of one sink, as texts; ``select`` None: every column, ``where`` None: every row."""

    sink: str
    select: tuple[str, ...] | None = None
    where: str | None = None
    _checked: dict[str, StructType] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, sink: str, select: Sequence[str] | None, where: object) -> Projection:
        """What the user wrote; ``Misconfigured`` for what can be no projection of any rows."""
        if select is not None:
            if isinstance(select, str) or not all(isinstance(item, str) for item in select):
                raise _misshapen(sink, f"select={select!r} is not a list of texts")
            if not select or not all(item.strip() for item in select):
                raise _misshapen(sink, f"select={list(select)!r} {'holds an empty text' if select else 'is empty'}")
        if where is not None and (not isinstance(where, str) or not where.strip()):
            raise _misshapen(sink, f"where={where!r} is not a condition")
        return cls(sink, tuple(select) if select is not None else None, where)

    @property
    def is_whole(self) -> bool:
        """Whether the sink gets the epoch as it is."""
        return self.select is None and self.where is None

    def to_json(self) -> Json:
        return {
            "version": VERSION,
            "select": list(self.select) if self.select is not None else None,
            "where": self.where,
        }

    @classmethod
    def from_json(cls, sink: str, data: Json) -> Projection:
        check_part("projection", data["version"], VERSION, sink)
        return cls(sink, tuple(data["select"]) if data["select"] is not None else None, data["where"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_checked": {}}

    def check(self, schema: StructType) -> StructType:
        """The schema of what the sink gets of rows of ``schema``; ``Misconfigured`` names what does not fit them."""
        if self.is_whole:
            return schema
        key = schema.json()
        if key not in self._checked:
            self._checked[key] = self._check(schema)
        return self._checked[key]

    def apply(self, rows: DataFrame) -> DataFrame:
        """What the sink gets of ``rows``, which were checked.  Lazy; rows stay in their order."""
        if self.where is not None:
            rows = rows.where(self.where)
        if self.select is not None:
            rows = rows.selectExpr(*(_sql(item, rows.columns) for item in self.select))
        return rows

    def beside(self, rows: DataFrame, name: str, tell: Callable[[StructType], Column]) -> DataFrame:
        """``rows`` that ``where`` lets pass, whole, and ``name``: what ``tell`` says of what the sink gets of each."""
        from pyspark.sql import functions as f

        whole = f.struct(*(_sql(column, rows.columns) for column in rows.columns)).alias(_WHOLE)
        items = [_sql(item, rows.columns) for item in (self.select if self.select is not None else ("*",))]
        passed = rows.where(self.where) if self.where is not None else rows
        given = passed.select(*map(f.expr, items), whole)
        told = tell(self.check(rows.schema))
        return given.select(_WHOLE, told.alias(name)).select(f"{_WHOLE}.*", name)

    def marked(self, rows: DataFrame, kept: str, *more: Column) -> DataFrame:
        """All of ``rows``, projected, with ``more`` columns of theirs; the column ``kept``: whether the sink gets it.

        Of a row that it does not get, nothing of ``select`` is computed.  Lazy; rows stay in their order.
        """
        from pyspark.sql import functions as f

        gets = f.coalesce(f.expr(self.where), f.lit(False)) if self.where is not None else f.lit(True)
        items = self.select if self.select is not None else ("*",)
        return rows.select(*(self._where(gets, item, rows) for item in items), gets.alias(kept), *more)

    def _where(self, gets: Column, item: str, rows: DataFrame) -> Column:
        """An item of ``select``; what it computes, it computes of the rows that the sink gets alone."""
        from pyspark.sql import functions as f

        text = _sql(item, rows.columns)
        parsed = self._parsed(rows.sparkSession, self, text)
        return f.when(gets, f.expr(text)).alias(parsed.name()) if _class(parsed) == "Alias" else f.expr(text)

    def left_out(self, rows: DataFrame) -> int:
        """How many of ``rows``, of which a copy is kept, ``where`` keeps out: one job, of its columns only.

        Counted apart from what is written, so that the coordinator can hold the two against the copy.
        """
        if self.where is None:
            return 0
        return int(rows.where(f"NOT coalesce(({self.where}\n), false)").count())

    @contextlib.contextmanager
    def evaluating(self, epoch: EpochNumber) -> Iterator[None]:
        """A value for which an expression has no result, in Spark's words, as the refusal that it is."""
        try:
            yield
        except EpochalError:
            raise
        except Exception as error:
            cause = of_an_expression(error)
            if self.is_whole or cause is None:
                raise
            raise PrepareRefused(
                f"{self} has no result for a row of the epoch: {cause}",
                sink=self.sink,
                epoch=epoch,
                state="nothing of the epoch was decided",
                help="write an expression that has one for every row (try_cast, try_divide, coalesce), or keep such"
                " rows out with where=",
            ) from error

    def __str__(self) -> str:
        said = [f"select={list(self.select)!r}"] if self.select is not None else []
        return ", ".join([*said, *([f"where={self.where!r}"] if self.where is not None else [])])

    @property
    def promise(self) -> str:
        """What a sink's guarantee says of it."""
        return f" Of every epoch: {self}." if not self.is_whole else ""

    # --- checking ------------------------------------------------------------------------------

    def _check(self, schema: StructType) -> StructType:
        spark = self._session()
        empty = spark.createDataFrame([], schema)
        for part, text in self._parts():
            self._check_text(spark, part, text, schema)
        projected = self._analysed(empty, schema)
        self._check_repeatable(projected)
        _check_distinct(self, projected.schema, _case_sensitive(spark))
        return projected.schema

    def _parts(self) -> Iterator[tuple[Projection, str]]:
        """Each text, alone, and the part of the projection that it is."""
        if self.where is not None:
            yield replace(self, select=None), self.where
        for item in self.select or ():
            yield replace(self, select=(item,), where=None), item

    def _session(self) -> SparkSession:
        spark = running_session()
        if spark is None:
            raise Misconfigured(
                f"{self} is read by Spark, and no Spark session runs in this process",
                sink=self.sink,
                help="create a SparkSession first",
            )
        return spark

    def _check_text(self, spark: SparkSession, part: Projection, text: str, schema: StructType) -> None:
        """What the text itself says, before the columns are known: times of the moment, results without a name."""
        found = _SPECIAL_LITERAL.search(text)
        if found is not None:
            raise self._unrepeatable(found[0], "has another value when it is evaluated again")
        if part.select is not None and text in schema.names:
            return
        parsed = self._parsed(spark, part, text)
        self._check_built_in(spark, parsed)
        if part.select is not None and _class(parsed) not in ("Alias", "UnresolvedAttribute", "UnresolvedStar"):
            raise Misconfigured(
                f"{part}: the result of {text!r} has no name",
                sink=self.sink,
                state=f"columns {schema.names}",
                help=f"name it: {text.strip() + ' AS name'!r}",
            )

    def _check_built_in(self, spark: SparkSession, parsed: Any) -> None:
        if _class(parsed) == "UnresolvedFunction" and not _is_built_in(spark, list(_each(parsed.nameParts()))):
            raise self._unrepeatable(
                ".".join(_each(parsed.nameParts())),
                _NOT_SPARKS,
            )
        for child in _each(parsed.children()):
            self._check_built_in(spark, child)

    def _parsed(self, spark: SparkSession, part: Projection, text: str) -> Any:
        from pyspark.errors import PySparkException

        try:
            return spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
        except PySparkException as error:
            raise self._unfit(part, error, "no column and no SQL expression") from None

    def _analysed(self, rows: DataFrame, schema: StructType) -> DataFrame:
        from pyspark.errors import PySparkException

        try:
            return self.apply(rows)
        except PySparkException as error:
            part, told = self._part_that_fails(rows, error)
            raise self._unfit(part, told, f"columns {schema.simpleString()}") from None

    def _part_that_fails(self, rows: DataFrame, error: Exception) -> tuple[Projection, Exception]:
        from pyspark.errors import PySparkException

        for part, _ in self._parts():
            try:
                part.apply(rows)
            except PySparkException as alone:
                return part, alone
        return self, error

    def _unfit(self, part: Projection, error: Exception, state: str) -> Misconfigured:
        return Misconfigured(
            f"{part} does not fit the rows: {_said(error)}",
            sink=self.sink,
            state=state,
            help="name columns as they are spelled there, odd ones in `backquotes`; where= is a condition on the"
            " columns of the epoch, before select=",
        )

    def _check_repeatable(self, projected: DataFrame) -> None:
        plan, filters = projected._jdf.queryExecution().analyzed(), 0
        while not plan.children().isEmpty():
            filters += _class(plan) == "Filter"
            if _class(plan) not in _ROW_BY_ROW:
                raise Misconfigured(
                    f"{self} does not go row by row: it needs {_class(plan)} of Spark",
                    sink=self.sink,
                    help="aggregate, explode and number rows in the query, before the pipeline",
                )
            for expression in _each(plan.expressions()):
                self._check_expression(expression)
            plan = plan.children().apply(0)
        if filters > int(self.where is not None):
            raise Misconfigured(
                f"{self} leaves rows out that where= does not: Spark filters for it (window() has no row for a time"
                " that is NULL)",
                sink=self.sink,
                help="compute it in the query, before the pipeline, where you see which rows it drops",
            )

    def _check_expression(self, expression: Any) -> None:
        kind, children = _class(expression), list(_each(expression.children()))
        for child in children:
            self._check_expression(child)
        if not expression.deterministic() and all(child.deterministic() for child in children):
            raise self._unrepeatable(expression.sql(), "is not deterministic")
        if is_salted(expression):
            raise self._unrepeatable(expression.sql(), "is salted: it has another value in every evaluation")
        if _OF_THE_MOMENT.fullmatch(kind):
            raise self._unrepeatable(expression.sql(), "has another value when it is evaluated again")
        if _OF_THE_USER.fullmatch(kind):  # registered under the name of one of Spark's own
            raise self._unrepeatable(expression.sql(), _NOT_SPARKS)
        if _SUBQUERIES.fullmatch(kind) or kind == "VariableReference":
            raise self._unrepeatable(expression.sql(), "depends on more than the row")
        if any(_is_special(expression, child) for child in children):
            raise self._unrepeatable(expression.sql(), "has another value when it is evaluated again")

    def _unrepeatable(self, sql: str, why: str) -> Misconfigured:
        return Misconfigured(
            f"{sql} {why}",
            sink=self.sink,
            state=f"{self}; a projection may be evaluated again, from the durable copy",
            help="compute it in the query, before the pipeline: the durable copy keeps what one evaluation gave,"
            " and every sink reads that",
        )


def settings_of(spark: SparkSession) -> Mapping[str, str]:
    """The settings of a session that bear on what an expression means; no secret is among them."""
    found = {name: str(spark.conf.get(name)) for name in _SETTINGS}
    return found | {name: str(spark.conf.get(name)) for name in _legacy(spark)}


def take_settings(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Give a session that nobody else uses the settings of :func:`settings_of`, of all that bear on expressions."""
    for name in set(_legacy(spark)) - settings.keys():
        spark.conf.unset(name)
    for name, value in settings.items():
        spark.conf.set(name, value)


def _legacy(spark: SparkSession) -> list[str]:
    """Those that are set and that a session can have for itself."""
    # spark.conf.getAll ends a Java iterator, and PySpark takes 20 ms to see that its exception is none.
    names = spark._jsparkSession.conf().getAllAsJava().keySet().toArray()
    return sorted(name for name in names if name.startswith(_LEGACY) and spark.conf.isModifiable(name))


def _sql(item: str, columns: Sequence[str]) -> str:
    return _sql_name(item) if item in columns else item


def _sql_name(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


def _check_distinct(projection: Projection, schema: StructType, case_sensitive: bool) -> None:
    names = [name if case_sensitive else name.lower() for name in schema.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Misconfigured(
            f"{projection} names columns twice: {twice}",
            sink=projection.sink,
            state=f"columns {schema.names}, spark.sql.caseSensitive={str(case_sensitive).lower()}",
            help="give each a name of its own with AS",
        )


def _case_sensitive(spark: SparkSession) -> bool:
    return spark.conf.get("spark.sql.caseSensitive", "false") == "true"


def _is_built_in(spark: SparkSession, name: Sequence[str]) -> bool:
    jvm: Any = spark._jvm
    registry = getattr(jvm, "org.apache.spark.sql.catalyst.analysis.FunctionRegistry").builtin()
    identifier = getattr(jvm, "org.apache.spark.sql.catalyst.FunctionIdentifier")
    return len(name) == 1 and bool(registry.functionExists(identifier(name[-1])))


def is_salted(expression: Any) -> bool:
    """Spark calls ``aes_encrypt`` deterministic; without an initialisation vector it draws one, but in mode ECB."""
    if _class(expression) != "AesEncrypt":
        return False
    _, _, mode, _, vector, _ = _each(expression.children())
    ecb = mode.foldable() and str(mode.eval(None)).upper() == "ECB"
    return not ecb and vector.foldable() and not bytes(vector.eval(None) or b"")


def _is_special(parent: Any, child: Any) -> bool:
    """Whether Spark puts the clock's time in the place of a text like 'today'."""
    if _class(child) != "Literal" or child.value() is None or parent.dataType().typeName() not in _TIMES:
        return False
    return _SPECIAL_TEXT.fullmatch(str(child.value())) is not None


def of_an_expression(error: Exception) -> str | None:
    """What Spark says of a value, if that is what ended the job: an error with a condition and a SQL state."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    while not isinstance(error, (PySparkException, Py4JJavaError)):
        if not isinstance(error.__cause__, Exception):
            return None
        error = error.__cause__
    cause = first_cause(error)
    return cause.splitlines()[0].partition(": ")[2] if re.search(r"\bSQLSTATE: 22\w{3}", cause) else None


def _said(error: Exception) -> str:
    """Spark's message without the plan that it is followed by."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition(" SQLSTATE:")[0] if lines else type(error).__name__


def _misshapen(sink: str, what: str) -> Misconfigured:
    return Misconfigured(
        what,
        sink=sink,
        help="select=['id', 'price * 2 AS twice'] is a list of columns and SQL expressions, where='price > 0' a"
        " condition in SQL; leave them out for every column and every row",
    )


def _each(scala: Any) -> Iterator[Any]:
    return (scala.apply(n) for n in range(scala.length()))


def _class(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())
