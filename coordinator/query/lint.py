"""What idempotent mode refuses at start: everything in a plan that visibly may give other rows when it is run again.

Each line of ``TABLE`` says what is refused, why, and what to write instead; ``docs/idempotent.md`` shows the same
table.  What Spark itself marks as non-deterministic is refused, too, even if no line names it.  What a plan does not
show (a file that a function reads, a table that does not stream) is left to the digest of each epoch's rows, at run
time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.query.plan import UNPINNED, class_of, distinct, is_random, nodes, seq
from epochal.sinks.rows.projection import is_salted

Path = Sequence[Any]
"""An expression and all expressions around it: the outermost first, the expression itself last."""


@dataclass(frozen=True)
class Line:
    """One line of the table.  ``expressions`` and ``operators``: classes in Spark's plan, by their simple names.

    ``where``: a further condition on (the operator of the plan, the path of the expression in it).
    """

    functions: tuple[str, ...]  # as users write them
    why: str
    instead: str
    expressions: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    where: Callable[[Any, Path], bool] = lambda operator, path: True  # noqa: ARG005
    only: str = ""  # the condition ``where`` in words


@dataclass(frozen=True)
class Found:
    """Something in a plan that is not repeatable."""

    what: str
    line: Line

    def __str__(self) -> str:
        return f"{self.what} {self.line.why}"


_BY_ROW = re.compile(r"Project|Filter|SubqueryAlias|EventTimeWatermark")
_SORTING = {"SortArray", "ArraySort"}
_MOMENTS = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_TIMES = {"date", "timestamp", "timestamp_ntz"}


def _not_over_a_scan(operator: Any, path: Path) -> bool:  # noqa: ARG001
    """Return whether the operator is not right above the source.

    While rows pass one by one from the source, the file name belongs to the row.  After a shuffle it does not.
    """
    return any(seq(node.children()) and not _BY_ROW.fullmatch(class_of(node)) for node in nodes(operator))


def _unsorted(operator: Any, path: Path) -> bool:  # noqa: ARG001
    """Return whether the result is not sorted by the expressions around it and has no ORDER BY of its own."""
    own_order = class_of(path[-1]) == "ListAgg" and path[-1].orderExpressions().nonEmpty()
    return not own_order and not any(class_of(outer) in _SORTING for outer in path[:-1])


def _by_rows(operator: Any, path: Path) -> bool:  # noqa: ARG001
    """Return whether this is an aggregate over a ROWS frame that is not the whole partition."""
    frame = path[-1].windowSpec().frameSpecification()
    if class_of(path[-1].windowFunction()) != "AggregateExpression" or str(frame.frameType()) != "RowFrame":
        return False
    ends = (class_of(frame.lower()).rstrip("$"), class_of(frame.upper()).rstrip("$"))
    return ends != ("UnboundedPreceding", "UnboundedFollowing")


def _without_sort(operator: Any, path: Path) -> bool:  # noqa: ARG001
    """Return whether the rows are not sorted: the first operator below that changes rows is not a sort of all rows."""
    below = operator
    while re.fullmatch(r"Project|SubqueryAlias|GlobalLimit|LocalLimit|Offset|Tail", class_of(below)):
        below = below.children().apply(0)
    return not (class_of(below) == "Sort" and getattr(below, "global")())


def _of_the_moment(operator: Any, path: Path) -> bool:  # noqa: ARG001
    """Return whether this casts a text like 'now', which Spark reads as the time of the evaluation."""
    cast, text = path[-1], path[-1].children().apply(0)
    if cast.dataType().typeName() not in _TIMES or class_of(text) != "Literal" or text.value() is None:
        return False
    return _MOMENTS.match(str(text.value())) is not None


RANDOM = Line(
    ("rand", "randn", "random", "uniform", "randstr", "uuid", "shuffle"),
    "has another value in every evaluation",
    "derive it from the row, for example with xxhash64(id) or sha2(id, 256), or take it from the source",
    frozenset({"Rand", "Randn", "Uniform", "RandStr", "Uuid", "Shuffle"}),
)
SALTED = Line(
    ("aes_encrypt",),
    "is salted, with other bytes in every evaluation",
    "give it an initialisation vector that is derived from the row, or mode 'ECB', or encrypt before the source",
    frozenset({"AesEncrypt"}),
    where=lambda operator, path: is_salted(path[-1]),  # noqa: ARG005
    only="without an initialisation vector of its own, in a mode other than ECB",
)
PLACE = Line(
    ("monotonically_increasing_id", "spark_partition_id"),
    "depends on how rows are split into partitions, which Spark does not repeat",
    "use a key that the rows have",
    frozenset({"MonotonicallyIncreasingID", "SparkPartitionID"}),
)
FILE = Line(
    ("input_file_name",),
    "is empty, or the name of any file, after rows were shuffled, joined or aggregated",
    "take it in a select right after the source",
    frozenset({"InputFileName"}),
    where=_not_over_a_scan,
    only="not right after the source",
)
BLOCK = Line(
    ("input_file_block_start", "input_file_block_length"),
    "depends on how files are split, which settings and cores decide",
    "leave it out",
    frozenset({"InputFileBlockStart", "InputFileBlockLength"}),
)
ORDER = Line(
    ("first", "last", "any_value", "collect_list", "collect_set", "array_agg", "listagg", "string_agg"),
    "depends on the order of rows, which a shuffle does not repeat",
    "use min, max, or sort_array(collect_list(...)), listagg(...) WITHIN GROUP (ORDER BY ...)",
    frozenset({"First", "Last", "AnyValue", "CollectList", "CollectSet", "ListAgg"}),
    where=_unsorted,
    only="without order",
)
TIES = Line(
    ("min_by", "max_by", "mode"),
    "takes any one of several equal candidates",
    "use min or max of a struct: max(struct(at, value)).value",
    frozenset({"MinBy", "MaxBy", "Mode"}),
)
WINDOW = Line(
    ("row_number", "ntile", "lag", "lead", "nth_value"),
    "depends on the order of rows that are equal in its ORDER BY",
    "use rank or dense_rank, or an aggregate over the peers",
    frozenset({"RowNumber", "NTile", "Lag", "Lead", "NthValue"}),
)
FRAME = Line(
    ("sum(n) OVER (ORDER BY at ROWS ...)",),
    "includes some of the rows that are equal in its ORDER BY; another evaluation may include others",
    "use RANGE, which includes all of them, or the whole partition",
    frozenset({"WindowExpression"}),
    where=_by_rows,
    only="any aggregate, over some of the rows",
)
SKETCH = Line(
    ("percentile_approx", "approx_percentile", "histogram_numeric"),
    "depends on the order in which partial results are merged",
    "use percentile, or count by ranges",
    frozenset({"ApproximatePercentile", "HistogramNumeric"}),
)
REFLECTION = Line(
    ("reflect", "java_method", "try_reflect"),
    "calls any method of Java",
    "use a function of Spark",
    frozenset({"CallMethodViaReflection", "TryReflect"}),
)
MOMENT = Line(
    ("cast('now' AS timestamp)", "date 'today'"),
    "is the time of the evaluation",
    "use current_timestamp() or current_date() in the query, which Spark pins per batch",
    frozenset({"Cast"}),
    where=_of_the_moment,
)
NOW = Line(
    ("now", "current_time"),
    "is the time of the evaluation; Spark pins current_timestamp per batch, but not this function",
    "use current_timestamp(), which Spark pins per batch",
    UNPINNED,
)
LIMIT = Line(
    ("limit", "offset", "tail"),
    "takes any rows",
    "filter by a value, or sort first (in a function of your own, on the batch)",
    operators=frozenset({"GlobalLimit", "Offset", "Tail"}),
    where=_without_sort,
    only="without order",
)
SAMPLE = Line(
    ("sample",),
    "takes other rows when the partitions differ",
    "filter by a hash of a key: where(pmod(xxhash64(id), 10) = 0)",
    operators=frozenset({"Sample"}),
)
ANY = Line(
    ("whatever else Spark marks as non-deterministic",),
    "may give another value in every evaluation",
    "compute it from the row's own columns, or take it from the source",
)
FUNCTION = Line(
    ("Python and Scala functions, also in mapInPandas, applyInPandas and their like",),
    "is a function of your own, and Spark cannot see what it reads",
    "if it depends on its arguments alone, list its name: Pipeline(deterministic=[...])",
    only="not in deterministic=[...]",
)
CLOSURE = Line(
    ("typed operations of Scala (map, flatMap, mapGroups, ...)",),
    "is a function of your own that has no name",
    "use a named function, or expressions",
    operators=frozenset(
        {"MapPartitions", "MapElements", "TypedFilter", "MapGroups", "CoGroup", "AppendColumns"}
        | {"MapGroupsWithState", "FlatMapGroupsWithState", "TransformWithState", "MapPartitionsInR"}
        | {"FlatMapGroupsInR", "FlatMapGroupsInRWithArrow", "AppendColumnsWithObject"}
    ),
)
BATCH_TIME = Line(
    ("current_timestamp", "current_date", "localtimestamp", "unix_timestamp()"),
    "is the time of the evaluation there",
    "compute it in the query, before foreachBatch: there Spark pins it per batch, also on replay",
    frozenset({"CurrentTimestamp", "CurrentTimestampNanos", "CurrentDate", "LocalTimestamp", "LocalTimestampNanos"}),
    only="in a function of your own, on the batch",
)

_IN_WORDS = (FUNCTION, CLOSURE, ANY)

TABLE = (
    *(RANDOM, SALTED, PLACE, FILE, BLOCK, ORDER, TIES, WINDOW, FRAME),
    *(SKETCH, REFLECTION, MOMENT, NOW, LIMIT, SAMPLE),
)
"""The lines that apply to every plan.  The other lines of ``WHOLE_TABLE`` have conditions of their own."""
WHOLE_TABLE = (*TABLE, BATCH_TIME, FUNCTION, CLOSURE, ANY)

_PYTHON = re.compile(r"\w*Python(UDF|UDTF|UDAF)")
_FUNCTIONS = re.compile(
    rf"{_PYTHON.pattern}|Scala(UDF|UDAF|Aggregator)|Hive\w*(UD[AT]?F\w*|UDAFFunction)|UserDefinedGenerator"
    r"|ApplyFunctionExpression|V2Aggregator|TypedAggregateExpression|\w*TypedAggregateExpression"
)


def check(plan: Any, *, deterministic: Collection[str] = (), batch: bool = False) -> None:
    """Raise ``Misconfigured`` that names everything in a logical plan that is not repeatable.

    Reading the plan through py4j takes 5 to 160 ms.  ``deterministic``: the user's functions that depend only on their
    arguments.  ``batch``: the plan is what the user's function made of a micro-batch; there Spark pins no time.
    """
    found = distinct(list(find(plan, deterministic=deterministic, batch=batch)))
    if not found:
        return
    first = found[0]
    raise Misconfigured(
        f"{first}, so idempotent mode cannot give every sink the same rows, nor the same again on replay",
        state="; ".join(map(str, found)),
        help=f'{first.line.instead}; or leave mode="idempotent" out: an epoch is then evaluated once',
    )


def find(plan: Any, *, deterministic: Collection[str] = (), batch: bool = False) -> Iterator[Found]:
    """Yield everything that is not repeatable, in the order of the plan, from its end to its sources."""
    lines = (*TABLE, BATCH_TIME) if batch else TABLE
    for operator in nodes(plan):
        yield from _in_operator(operator, lines)
        for path in _paths(operator):
            yield from _in_expression(operator, path, lines, deterministic)
        for inner in seq(operator.subqueries()):
            yield from find(inner, deterministic=deterministic, batch=batch)


def _in_operator(operator: Any, lines: Sequence[Line]) -> Iterator[Found]:
    name = class_of(operator)
    for line in (*lines, CLOSURE):
        if name in line.operators and line.where(operator, ()):
            yield Found(f"{name} in the plan", line)


def _in_expression(operator: Any, path: Path, lines: Sequence[Line], deterministic: Collection[str]) -> Iterator[Found]:
    expression = path[-1]
    name = class_of(expression)
    if _FUNCTIONS.fullmatch(name):
        called = function_name(expression)
        if is_random(expression):
            yield Found(f"{called}, declared non-deterministic,", ANY)
        elif called not in deterministic:
            yield Found(called, FUNCTION)
        return
    named = [line for line in lines if name in line.expressions]
    yield from (Found(expression.sql(), line) for line in named if line.where(operator, path))
    if not named and is_random(expression):
        yield Found(expression.sql(), ANY)


def function_name(expression: Any) -> str:
    """Return the name of a user's function, or its class if it has no name."""
    named = _PYTHON.fullmatch(class_of(expression)) or class_of(expression) == "ScalaUDF"
    return str(expression.name() if named else expression.prettyName())


def _paths(operator: Any) -> Iterator[Path]:
    """Yield every expression of an operator, with the expressions around it."""

    def below(path: Path) -> Iterator[Path]:
        yield path
        for child in seq(path[-1].children()):
            yield from below((*path, child))

    for expression in seq(operator.expressions()):
        yield from below((expression,))


def markdown() -> str:
    """Return the table in Markdown, as the docs show it."""
    rows = ["| refused | because it | instead |", "|---|---|---|"]
    for line in WHOLE_TABLE:
        names = ", ".join(line.functions if line in _IN_WORDS else (f"`{name}`" for name in line.functions))
        rows.append(f"| {names}{f' ({line.only})' if line.only else ''} | {line.why} | {line.instead} |")
    return "\n".join(rows) + "\n"
