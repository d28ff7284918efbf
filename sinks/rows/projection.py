"""Which columns and rows of an epoch a sink gets: ``select=`` and ``where=``, the same for every sink.

``select`` is a list of column names and SQL expressions (``["id", "price * 2 AS twice", "*"]``).  ``where`` is one
SQL condition on the epoch's columns; rows for which it is false or NULL are not written.  An item of ``select`` that
is exactly a column's name means that column.  Everything else is SQL, and a computed column needs a name with AS.

A durable copy holds every column and row, because it belongs to the epoch and not to one sink, and each sink projects
the rows that it reads from it.  (Only a Kafka sink that is alone copies nothing but its own records.)  So a projection
may be evaluated more than once on the same rows, for example when a vote is repeated.  If a decided epoch is redone
from the copy (Kafka, or prepared rows that were lost), a later start evaluates the projection again, in another process
and perhaps with other settings.  Two rules follow:

- An expression that may have another value the next time is refused at start, by name: ``rand()``, ``uuid()``, clocks
  (``current_timestamp()``, ``cast('now' as timestamp)``), the session's user and catalog, the user's own functions,
  subqueries and session variables.  So is an expression that does not give one row for each row (``explode``, ``sum``,
  windows).
- A sink that evaluates after the decision keeps in its committable the texts *and* the session settings that change
  what expressions mean (:func:`settings_of`: time zone, ANSI mode, ...), and evaluates with those settings.

Nothing is computed here: Spark computes all values.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.arguments import are_texts
from epochal.coordinator.model.epoch import EpochNumber, Json
from epochal.coordinator.model.errors import EpochalError, Misconfigured, PrepareRefused
from epochal.sinks.questions import NotAsked, known
from epochal.sinks.rows.formats import check_part
from epochal.sinks.spark import scala
from epochal.sinks.spark.executors import NO_SESSION, causes, first_cause, running_session, sql_state
from epochal.sinks.spark.expressions import PATTERNS, of_text, reads_otherwise, selected, struct_of
from epochal.sinks.spark.names import column_of, free, quoted, twins
from epochal.sinks.spark.observing import sifted
from epochal.sinks.spark.settings import is_case_sensitive

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
    PATTERNS,
    "spark.sql.session.timeZone",
    "spark.sql.timestampType",
)
_LEGACY = "spark.sql.legacy."
_WHOLE = "__epochal_row"

_ROW_BY_ROW = {"Project", "Filter"}
_CLOCK_EXPRESSIONS = re.compile(r"Current[A-Z]\w*|Now|LocalTimestamp\w*|UnixTimestampNow")
_USER_FUNCTIONS = re.compile(r"\w*(UDF|UDAF|UDTF)|ScalaAggregator|ApplyFunctionExpression")
_SUBQUERIES = re.compile(r"\w*Subquery|Exists|ListQuery")
_NOT_BUILT_IN = "is no function of Spark's own: at another start it may be missing or changed"
_TIMES = ("date", "timestamp", "timestamp_ntz", "timestamp_ltz", "time")
_SPECIAL = r"\s*(?:now|today|tomorrow|yesterday)\b"
_SPECIAL_TEXT = re.compile(rf"{_SPECIAL}.*", re.I | re.S)
_SPECIAL_LITERAL = re.compile(rf"\b(?:date|time|timestamp\w*)\s*(['\"]){_SPECIAL}[^'\"]*\1", re.I)


@dataclass(frozen=True)
class Projection:
    """``select`` and ``where`` of one sink, as texts.  ``select=None``: all columns; ``where=None``: all rows."""

    sink: str
    select: tuple[str, ...] | None = None
    where: str | None = None
    _checked: dict[str, StructType] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, sink: str, select: Sequence[str] | None, where: object) -> Projection:
        """Make a projection from the user's arguments; raise ``Misconfigured`` if it is invalid for any rows."""
        if select is not None:
            if not are_texts(select):
                raise _invalid(sink, f"select={select!r} is not a list of texts")
            if not select or not all(item.strip() for item in select):
                raise _invalid(sink, f"select={list(select)!r} {'holds an empty text' if select else 'is empty'}")
        if where is not None and (not isinstance(where, str) or not where.strip()):
            raise _invalid(sink, f"where={where!r} is not a condition")
        return cls(sink, tuple(select) if select is not None else None, where)

    @property
    def is_whole(self) -> bool:
        """Return whether the sink gets all rows and columns of the epoch."""
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
        """Return the schema that the sink gets if the rows have ``schema``.

        ``Misconfigured`` names what does not fit the rows.
        """
        if self.is_whole:
            return schema
        key = schema.json()
        if key not in self._checked:
            self._checked[key] = self._check(schema)
        return self._checked[key]

    def known(self, schema: StructType | None) -> StructType:
        """Return the schema of an epoch, for a question about its columns.

        ``NotAsked``: it is not known, or only Spark could read the projection and no session runs here.
        """
        schema = known(schema)
        if not self.is_whole and running_session() is None:
            raise NotAsked(f"{self} is read by Spark, and {NO_SESSION}")
        return schema

    def apply(self, rows: DataFrame) -> DataFrame:
        """Return what the sink gets of ``rows``, which :meth:`check` accepted.  Lazy; rows keep their order."""
        if self.where is not None:
            rows = rows.where(self.where)
        return self._selected(rows, self.select) if self.select is not None else rows

    def sifted(self, rows: DataFrame, *, counts: bool) -> tuple[DataFrame, Callable[[], int]]:
        """Return what the sink gets of the ``rows``, and a function that counts what ``where`` keeps out.

        Call the function after one action has read the rows: Spark counts in the same job.  It counts apart from the
        written rows, so that the coordinator can compare both with a copy.  ``counts=False``: nothing is counted, and
        the function returns 0.
        """
        from pyspark.sql import functions as f

        if self.where is None or not counts:
            return self.apply(rows), int
        passed, left_out = sifted(rows, f.expr(f"({self.where}\n)"), "where= keeps out")
        return self._selected(passed, self.select) if self.select is not None else passed, left_out

    def _selected(self, rows: DataFrame, items: Sequence[str]) -> DataFrame:
        names = {*rows.columns}
        if reads_otherwise(rows, items):  # which is right for an item that is an expression, and wrong for a name
            return rows.select(*(_item(item, names) for item in items))
        return selected(rows, [quoted(item) if item in names else item for item in items])

    def beside(self, rows: DataFrame, name: str, tell: Callable[[StructType], Column]) -> DataFrame:
        """Return the rows that ``where`` lets pass, with all their columns and one more column, ``name``.

        That column is computed by ``tell`` from the columns that the sink gets.
        """
        schema = self.check(rows.schema)
        passed = rows.where(self.where) if self.where is not None else rows
        if self.select is None:
            return passed.select("*", tell(schema).alias(name))
        whole = free(_WHOLE, schema.names)
        names = {*rows.columns}
        items = [_item(item, names) for item in self.select]
        given = passed.select(*items, of_text(struct_of(rows.columns)).alias(whole))
        return given.select(whole, tell(schema).alias(name)).select(f"{whole}.*", name)

    def marked(self, rows: DataFrame, kept: str, *more: Column) -> DataFrame:
        """Return all ``rows``, projected, with the columns ``more`` and the boolean column ``kept``.

        ``kept`` says whether the sink gets the row.  For a row that it does not get, no expression of ``select`` is
        computed.  Lazy; rows keep their order.
        """
        from pyspark.sql import functions as f

        gets = f.coalesce(f.expr(self.where), f.lit(False)) if self.where is not None else f.lit(True)
        names = {*rows.columns}
        items = [f.expr("*")] if self.select is None else [self._where(gets, item, rows, names) for item in self.select]
        return rows.select(*items, gets.alias(kept), *more)

    def _where(self, gets: Column, item: str, rows: DataFrame, names: Collection[str]) -> Column:
        """Return the column of one item of ``select``.  An expression is computed only for rows that the sink gets."""
        from pyspark.sql import functions as f

        if item in names:
            return column_of(item)
        parsed = self._parsed(rows.sparkSession, self, item)
        return f.when(gets, f.expr(item)).alias(parsed.name()) if _class(parsed) == "Alias" else f.expr(item)

    def left_out(self, rows: DataFrame) -> int:
        """Count the ``rows`` of a copy that ``where`` keeps out.  One Spark job, which reads only its columns.

        See also ``sifted``, which needs no job of its own.
        """
        if self.where is None:
            return 0
        return int(rows.where(f"NOT coalesce(({self.where}\n), false)").count())

    @contextlib.contextmanager
    def evaluating(self, epoch: EpochNumber, *, of_query: bool = False) -> Iterator[None]:
        """Raise ``PrepareRefused`` with Spark's text if an expression fails for a value of a row in this scope.

        ``of_query``: the query's own expressions are evaluated here, too, because its rows were not copied before.
        """
        try:
            yield
        except EpochalError:
            raise
        except Exception as error:
            cause = of_an_expression(error) if not self.is_whole else None
            if cause is None:
                raise
            whose = f"the query or {self}" if of_query else f"{self}"
            raise PrepareRefused(
                f"{whose} has no result for a row of the epoch: {cause}",
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
        """The sentence about this projection in a sink's guarantee."""
        return f" Of every epoch: {self}." if not self.is_whole else ""

    # --- checking ------------------------------------------------------------------------------

    def _check(self, schema: StructType) -> StructType:
        spark = self._session()
        empty = spark.createDataFrame([], schema)
        for part, text in self._parts():
            self._check_text(spark, part, text, schema)
        projected = self._analysed(empty, schema)
        self._check_repeatable(projected)
        _check_distinct(self, projected.schema, is_case_sensitive(spark))
        return projected.schema

    def _parts(self) -> Iterator[tuple[Projection, str]]:
        """Yield each text, with a projection that has only this text."""
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
        """Check the text before its columns are resolved: times like 'now', foreign functions, unnamed results."""
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
                _NOT_BUILT_IN,
            )
        for child in _each(parsed.children()):
            self._check_built_in(spark, child)

    def _parsed(self, spark: SparkSession, part: Projection, text: str) -> Any:
        from pyspark.errors import PySparkException

        try:
            return spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
        except PySparkException as error:
            raise self._unfit(part, error, "it is neither a column nor an SQL expression") from None

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
            f"{part} does not fit the rows: {_first_line(error)}",
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
                    f"{self} does not give one row for each row: Spark plans {_class(plan)} for it",
                    sink=self.sink,
                    help="aggregate, explode and number rows in the query, before the pipeline",
                )
            for expression in _each(plan.expressions()):
                self._check_expression(expression)
            plan = plan.children().apply(0)
        if filters > int(self.where is not None):
            raise Misconfigured(
                f"{self} drops rows that where= keeps: Spark adds a filter for it (window() has no row for a time that"
                " is NULL)",
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
        if _CLOCK_EXPRESSIONS.fullmatch(kind):
            raise self._unrepeatable(expression.sql(), "has another value when it is evaluated again")
        if _USER_FUNCTIONS.fullmatch(kind):  # a user's function that is registered under the name of a built-in one
            raise self._unrepeatable(expression.sql(), _NOT_BUILT_IN)
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
    """Return the session's settings that change what an expression means.  None of them is a secret."""
    found = {name: str(spark.conf.get(name)) for name in _SETTINGS}
    return found | {name: str(spark.conf.get(name)) for name in _legacy(spark)}


def take_settings(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Set the expression settings of a session that nobody else uses.  :func:`settings_of` made ``settings``.

    Legacy settings that ``settings`` does not have are unset.
    """
    for name in set(_legacy(spark)) - settings.keys():
        spark.conf.unset(name)
    for name, value in settings.items():
        spark.conf.set(name, value)


def _legacy(spark: SparkSession) -> list[str]:
    """Return the names of the legacy settings that are set and that a session can change for itself."""
    # not spark.conf.getAll: it iterates until a Java exception, and PySpark takes 20 ms to convert that exception
    names = scala.keys(spark._jvm, spark._jsparkSession.sessionState().conf().getAllConfs())
    return sorted(name for name in names if name.startswith(_LEGACY) and spark.conf.isModifiable(name))


def _item(item: str, columns: Collection[str]) -> Column:
    """Return the column of one item of ``select``."""
    from pyspark.sql import functions as f

    return column_of(item) if item in columns else f.expr(item)


def _check_distinct(projection: Projection, schema: StructType, case_sensitive: bool) -> None:
    for _, twice in twins(schema, case_sensitive=case_sensitive):
        raise Misconfigured(
            f"{projection} names {twice!r} twice",
            sink=projection.sink,
            state=f"columns {schema.names}, spark.sql.caseSensitive={str(case_sensitive).lower()}",
            help="give each a name of its own with AS, and each field of a struct another name",
        )


def _is_built_in(spark: SparkSession, name: Sequence[str]) -> bool:
    jvm: Any = spark._jvm
    registry = getattr(jvm, "org.apache.spark.sql.catalyst.analysis.FunctionRegistry").builtin()
    identifier = getattr(jvm, "org.apache.spark.sql.catalyst.FunctionIdentifier")
    return len(name) == 1 and bool(registry.functionExists(identifier(name[-1])))


def is_salted(expression: Any) -> bool:
    """Return whether an expression is ``aes_encrypt`` with a random initialisation vector.

    Spark calls the function deterministic.  But without a given vector it draws a random one, except in mode ECB.
    """
    if _class(expression) != "AesEncrypt":
        return False
    _, _, mode, _, vector, _ = _each(expression.children())
    ecb = mode.foldable() and str(mode.eval(None)).upper() == "ECB"
    return not ecb and vector.foldable() and not bytes(vector.eval(None) or b"")


def _is_special(parent: Any, child: Any) -> bool:
    """Return whether Spark replaces the text ``child`` by the current time or date, as it does with 'today'."""
    if _class(child) != "Literal" or child.value() is None or parent.dataType().typeName() not in _TIMES:
        return False
    return _SPECIAL_TEXT.fullmatch(str(child.value())) is not None


def of_an_expression(error: Exception) -> str | None:
    """Return Spark's message if an invalid value ended the job, else None.

    Such an error has an error condition and an SQL state of class 22.  Of an error that could not be sent from a task,
    only the text is there; since Spark 4 it has the state, too.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    spark_says = next((each for each in causes(error) if isinstance(each, (PySparkException, Py4JJavaError))), None)
    if spark_says is None:
        return None
    cause = first_cause(spark_says)
    is_invalid = sql_state(spark_says).startswith("22") or re.search(r"\bSQLSTATE: 22\w{3}", cause)
    return cause.splitlines()[0].partition(": ")[2] if is_invalid else None


def _first_line(error: Exception) -> str:
    """Return Spark's message without the plan that follows it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition(" SQLSTATE:")[0] if lines else type(error).__name__


def _invalid(sink: str, what: str) -> Misconfigured:
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
