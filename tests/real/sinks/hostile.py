"""Names that people may give to columns, and that also stand in our SQL, in Spark's, or in that of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, DateType, LongType, StructField, StructType

SIGNS: tuple[str, ...] = (
    "a.b",
    "a.b.c",
    "a`b",
    "`",
    "``",
    "`a`",
    '"',
    'a"b',
    "'",
    "a'b",
    "*",
    "a.*",
    "\\",
    "a\\",
    "%s",
    "$1",
    "{0}",
    "{}",
)
SIGNS += (
    "?",
    ":x",
    "--",
    "/*",
    ";",
    " ",
    " a ",
    "a b",
    "a\tb",
    "a\nb",
    "a,b",
    "a=b",
    "(a)",
    "x[0]",
    "_1",
    "1",
    "-",
    "#",
    "/",
)
ALIASES: tuple[str, ...] = (
    "place",
    "shown",
    "new",
    "old",
    "ranked",
    "staged",
    "excluded",
    "k0",
    "tree",
    "newest",
    "count",
    "left",
    "rank",
)
ALIASES += (
    "attempt",
    "app",
    "sink",
    "position",
    "published",
    "decision",
    "token",
    "epochal",
    "epochal place",
    "nulls0",
)
ALIASES += (
    "epochal_source",
    "key0",
    "order0",
    "times",
    "keys",
    "rows",
    "low",
    "high",
    "bad0",
    "shown0",
    "c0",
    "c1",
    "flag0",
)
ALIASES += (
    "key",
    "value",
    "topic",
    "partition",
    "headers",
    "slot",
    "failure",
    "number",
    "source",
    "target",
    "item",
    "entry",
)
KEYWORDS: tuple[str, ...] = (
    "select",
    "from",
    "where",
    "group",
    "order",
    "user",
    "table",
    "all",
    "end",
    "case",
    "null",
    "true",
    "default",
)
KEYWORDS += ("returning", "on", "distinct", "desc", "and", "not", "is", "values", "insert", "merge", "_metadata", "oid")
PLANES = ("é", "ß", "İ", "日本", "ключ", "\u200b", "\ufeff", "\U0001f600", "\U00020000", "\U000e0041", "\U0010fffd")
LONGEST = ("n" * 63, "é" * 31 + "x", "\U0001f600" * 15 + "abc")  # 63 bytes each

NAMES: tuple[str, ...] = (*SIGNS, *ALIASES, *KEYWORDS, *PLANES, *LONGEST)
SOME = (*SIGNS[:22], *ALIASES[::3], *KEYWORDS[::4], *PLANES[::2], LONGEST[0])
"""A part of them, for what takes long with many columns."""

FIRST = date(2000, 1, 1)


def day(number: int, column: int) -> date:
    """The value of a column: no two columns of a row have the same."""
    return FIRST + timedelta(days=1000 * number + column)


def schema(names: Sequence[str], *flags: str) -> StructType:
    """Dates, which every sink has to look at before it writes them; ``flags`` are booleans."""
    return StructType([StructField(name, BooleanType() if name in flags else DateType()) for name in names])


def days(spark: SparkSession, names: Sequence[str], *numbers: int) -> DataFrame:
    """One row per number."""
    rows = [tuple(day(number, n) for n in range(len(names))) for number in numbers]
    return spark.createDataFrame(rows, schema(names)).coalesce(1)


def numbers(spark: SparkSession, names: Sequence[str]) -> DataFrame:
    """One row of whole numbers, which sinks write as they are."""
    kinds = StructType([StructField(name, LongType()) for name in names])
    return spark.createDataFrame([tuple(range(len(names)))], kinds)


class Feed:
    """Rows of a change feed whose columns have these names; each name gets the role that ``turn`` gives to it."""

    MOST_KEYS = 30  # an index of Postgres has at most 32 columns

    def __init__(self, names: Sequence[str], turn: int = 0, most_keys: int = MOST_KEYS) -> None:
        self.names = list(names)
        at = turn % len(self.names)
        turned = self.names[at:] + self.names[:at]
        self.gone, rest = turned[0], turned[1:]
        third = min(len(rest) // 3, most_keys)
        self.key, self.order, self.values = rest[:third], rest[third : 2 * third], rest[2 * third :]
        self.written = [name for name in self.names if name != self.gone]

    @property
    def options(self) -> Mapping[str, Any]:
        """For ``Upsert`` and ``Merge``."""
        return {"key": self.key, "order_by": self.order, "update": self.values, "delete_when": self.gone}

    def row(self, key: int, order: int, value: int, *, gone: bool = False) -> tuple[Any, ...]:
        of = {**dict.fromkeys(self.key, key), **dict.fromkeys(self.order, order), **dict.fromkeys(self.values, value)}
        return tuple(gone if name == self.gone else day(of[name], n) for n, name in enumerate(self.names))

    def kept(self, key: int, order: int, value: int) -> tuple[Any, ...]:
        """The same row as a reader sees it."""
        return tuple(v for v, name in zip(self.row(key, order, value), self.names, strict=True) if name != self.gone)

    def frame(self, spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
        return spark.createDataFrame(list(rows), schema(self.names, self.gone)).coalesce(1)

    def first(self, spark: SparkSession) -> DataFrame:
        """Key 1 twice, of which the second counts; 2 stays; 3 is deleted at once."""
        return self.frame(
            spark,
            self.row(1, 1, 1),
            self.row(1, 2, 2),
            self.row(2, 1, 1),
            self.row(3, 1, 1),
            self.row(3, 2, 1, gone=True),
        )

    def second(self, spark: SparkSession) -> DataFrame:
        """Key 1 has new values, 2 is deleted, 4 is new."""
        return self.frame(spark, self.row(1, 3, 3), self.row(2, 3, 3, gone=True), self.row(4, 1, 1))

    @property
    def left(self) -> list[tuple[Any, ...]]:
        """What both leave; ``update=`` leaves the columns of the order as they were."""
        return [self.kept(1, 2, 3), self.kept(4, 1, 1)]
