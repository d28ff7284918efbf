"""``select=`` and ``where=`` as random texts, beside what they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pyspark.sql import types as t

from epochal.sinks.spark.names import quoted
from tests.fuzz.frames import Column, Row

WRONG = (
    "rand() AS r",
    "no_such_column",
    "explode(array(1)) AS e",
    "sum(1) AS s",
    "1",
    "`",
    "current_date() AS d",
    "* AS x",
)


@dataclass(frozen=True)
class Item:
    """One column of the result: ``of`` is the number of the column that it copies, or None for the constant 1."""

    name: str
    of: int | None


@dataclass(frozen=True)
class Projected:
    """``names``: the columns of the query that the texts copy.  ``wrong``: no rows can fit the texts."""

    texts: tuple[str, ...]
    copies: tuple[tuple[str, str | None], ...]  # name, and the column that it copies; None: the constant 1
    star: bool = False
    wrong: bool = False

    def __repr__(self) -> str:
        return repr(list(self.texts))

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.copies if name is not None]

    def items(self, columns: Sequence[Column]) -> list[Item]:
        names = [c.name for c in columns]
        items = [Item(name, n) for n, name in enumerate(names)] if self.star else []
        return items + [Item(name, None if of is None else names.index(of)) for name, of in self.copies]


@dataclass(frozen=True)
class Where:
    """``keeps`` judges the value of the column ``of``.  ``wrong``: no rows can fit the text."""

    text: str
    of: str
    keeps: Callable[[Any], bool]
    wrong: bool = False

    def __repr__(self) -> str:
        return repr(self.text)


def projected(choose: Random, columns: Sequence[Column], serial: str) -> Projected:
    """A random list for ``select=``."""
    if choose.random() < 0.1:
        return Projected((choose.choice(WRONG),), (), wrong=True)
    star = choose.random() < 0.4 and "*" not in (c.name for c in columns)  # else it means that column
    taken = {c.name.lower() for c in columns}
    new = next(f"other{n}" for n in range(99) if f"other{n}" not in taken)
    texts: list[str] = ["*"] if star else []
    copies: list[tuple[str, str | None]] = []
    if not star:
        for column in columns:
            if column.name == serial or choose.random() < 0.9:
                texts.append(column.name if choose.random() < 0.6 else quoted(column.name))
                copies.append((column.name, column.name))
    if star or choose.random() < 0.4:
        if choose.random() < 0.5:
            texts.append(f"1 AS {new}")
            copies.append((new, None))
        else:
            column = choose.choice(columns)
            texts.append(f"{quoted(column.name)} AS {new}")
            copies.append((new, column.name))
    return Projected(tuple(texts), tuple(copies), star)


def where(choose: Random, serial: str) -> Where:
    """A random condition on the column of serial numbers."""
    name = quoted(serial)
    wrong = (f"{name}", "rand() > 0.5", f"{name} = (SELECT 1)", "`", f"{name} > 'x", "no_such_column > 0")
    if choose.random() < 0.1:
        return Where(choose.choice(wrong), serial, lambda _: False, wrong=True)
    return choose.choice(
        (
            Where(f"{name} % 2 = 0", serial, lambda n: n % 2 == 0),
            Where(f"{name} % 100 > 0", serial, lambda n: n % 100 > 0),
            Where("false", serial, lambda _: False),
            Where("true -- all", serial, lambda _: True),
            Where(f"if({name} % 2 = 1, NULL, true)", serial, lambda n: n % 2 == 0),
            Where(f"{name} IS NOT NULL", serial, lambda _: True),
        )
    )


def given(sink: Any, columns: Sequence[Column], rows: Sequence[Row]) -> tuple[list[Column], list[Row]]:
    """The columns and rows that a sink gets."""
    if sink.where is not None:
        at = [c.name for c in columns].index(sink.where.of)
        rows = [row for row in rows if sink.where.keeps(row[at])]
    if sink.select is None:
        return list(columns), list(rows)
    items = sink.select.items(columns)
    kinds = [
        Column(i.name, t.IntegerType(), False)
        if i.of is None
        else Column(i.name, columns[i.of].kind, columns[i.of].nullable, columns[i.of].exotic)
        for i in items
    ]
    return kinds, [tuple(1 if i.of is None else row[i.of] for i in items) for row in rows]
