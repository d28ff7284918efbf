"""How to walk a streaming plan in the JVM, and what the plan says about replays.

Plans and expressions are objects of Spark's Catalyst, reached through py4j.  This file knows classes by their simple
names, because Spark keeps these from version to version.  ``lint.py`` names many more classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.rows.projection import is_salted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")

_STATEFUL = re.compile(
    r"Aggregate|Distinct|Deduplicate(WithinWatermark)?|GlobalLimit|FlatMapGroups\w*State\w*|TransformWithState\w*"
    r"|MapGroupsWithState"
)
UNPINNED = frozenset({"Now", "CurrentTime"})
"""Functions of time that Spark does not pin per batch.  It pins others to the time in ``offsets/N``; seen on 4.2.0."""
# Their values depend on the order of rows.  Spark itself marks some of them as deterministic.
_ORDER_DEPENDENT = {"First", "Last", "CollectList", "CollectSet", "MinBy", "MaxBy"}


@dataclass(frozen=True)
class PlanFacts:
    """What a streaming plan says about replays."""

    unrepeatable: tuple[tuple[str, str], ...]  # (non-deterministic expression, the stateful operator that it feeds)
    python_functions: tuple[str, ...]  # Python functions that feed a stateful operator
    order_dependent: tuple[str, ...] = ()  # functions in a stateful operator whose value depends on row order
    static_sides: tuple[str, ...] = ()  # inputs of a stateful operator that do not stream

    def check(self) -> None:
        """Raise ``Misconfigured`` if operator state could get other content when Spark replays an epoch."""
        if self.unrepeatable:
            expression, operator = self.unrepeatable[0]
            raise Misconfigured(
                f"{expression} feeds the stateful operator {operator} and has another value when Spark replays"
                " an epoch, so operator state would not match what the sinks show",
                state=f"non-deterministic upstream of state: {sorted({e for e, _ in self.unrepeatable})}",
                help="compute it after the stateful operator, or inside your foreachBatch function before"
                " `pipeline(df, epoch)`, or take it from the source's columns",
            )


def read_plan(logical: Any) -> PlanFacts:
    """Walk a logical plan in the JVM and return its facts.  Through py4j this takes 5 to 160 ms."""
    unrepeatable: list[tuple[str, str]] = []
    python: list[str] = []
    ordered: list[str] = []
    static: list[str] = []
    for node in nodes(logical):
        if not is_stateful(node):
            continue
        operator = class_of(node)
        python += [e.name() for e in expressions(node) if class_of(e) == "PythonUDF"]
        ordered += [e.prettyName() for e in expressions(node) if class_of(e) in _ORDER_DEPENDENT]
        for below in (n for child in seq(node.children()) for n in nodes(child)):
            if not below.isStreaming() and not seq(below.children()):
                static.append(class_of(below))
            for expression in expressions(below):
                if is_random(expression) or is_salted(expression) or class_of(expression) in UNPINNED:
                    unrepeatable.append((expression.sql(), operator))
                elif class_of(expression) == "PythonUDF":
                    python.append(expression.name())
    return PlanFacts(
        unrepeatable=distinct(unrepeatable),
        python_functions=distinct(python),
        order_dependent=distinct(ordered),
        static_sides=distinct(static),
    )


def is_stateful(node: Any) -> bool:
    """Return whether the operator has state from one epoch to the next."""
    if not node.isStreaming():
        return False
    if class_of(node) == "Join":
        return all(child.isStreaming() for child in seq(node.children()))
    return _STATEFUL.fullmatch(class_of(node)) is not None


def is_random(expression: Any) -> bool:
    """Return whether the expression itself is random: it is not deterministic, but all its parts are."""
    return not expression.deterministic() and all(c.deterministic() for c in seq(expression.children()))


def nodes(plan: Any) -> Iterator[Any]:
    """Yield every operator of a plan, from the plan's end to its sources."""
    yield plan
    for child in seq(plan.children()):
        yield from nodes(child)


def expressions(node: Any) -> Iterator[Any]:
    """Yield every expression of an operator, and all their parts."""

    def below(expression: Any) -> Iterator[Any]:
        yield expression
        for child in seq(expression.children()):
            yield from below(child)

    for expression in seq(node.expressions()):
        yield from below(expression)


def analyzed(df: DataFrame) -> Any:
    """Return the logical plan of a DataFrame with resolved names."""
    return df._jdf.queryExecution().analyzed()


def seq(scala: Any) -> list[Any]:
    """Return a Scala sequence as a Python list."""
    return [scala.apply(i) for i in range(scala.length())]


def class_of(thing: Any) -> str:
    """Return the simple class name of a JVM object."""
    return str(thing.getClass().getSimpleName())


def distinct(items: Sequence[T]) -> tuple[T, ...]:
    """Return the items without repetitions, in their first order."""
    return tuple(dict.fromkeys(items))


def check_streaming(df: DataFrame) -> None:
    if not df.isStreaming:
        raise Misconfigured(
            "the DataFrame is not streaming",
            state="df.isStreaming=False",
            help="read it with spark.readStream, and write it with writeStream.foreachBatch(pipeline)",
        )
