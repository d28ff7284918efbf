"""What a reader must find in a sink, computed in Python from the rows that the pipeline was given.

A row that a reader finds is a dict: the names of columns, and their values as ``values.py`` has them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import types as t

from tests.fuzz.frames import Column, Row
from tests.fuzz.plans import MAKERS, SinkPlan
from tests.fuzz.select import given
from tests.fuzz.values import Value

Found = Mapping[str, Value]


class MustRefuse(Exception):
    """Rows that the sink must refuse, by what its options promise."""


@dataclass(frozen=True)
class Record:
    """A record of Kafka; ``value`` is a dict where it is the JSON of a row.  ``partition``: None if it may be any."""

    topic: str
    partition: int | None
    key: bytes | None
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]


def seen(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[list[Column], list[Row]]:
    """The columns as readers know them: a text with a collation is a text."""
    texts = [column.exotic == "collated" for column in columns]
    kinds = [
        replace(c, kind=t.StringType(), exotic=None) if text else c for c, text in zip(columns, texts, strict=True)
    ]
    return kinds, [tuple(_as_text(v) if text else v for v, text in zip(row, texts, strict=True)) for row in rows]


def _as_text(value: Value) -> Value:
    return None if value is None else str(value).encode()


def as_rows(columns: Sequence[Column], rows: Iterable[Row]) -> list[Found]:
    """The rows by name, without the columns whose values no reader here understands."""
    return [{c.name: v for c, v in zip(columns, row, strict=True) if c.exotic is None} for row in rows]


def shown(
    sink: SinkPlan, columns: Sequence[Column], before: Sequence[Found], rows: Sequence[Row]
) -> tuple[list[Found], set[str]]:
    """What a table shows after an epoch, and the columns that it need not have."""
    if (sink.select is not None and sink.select.wrong) or (sink.where is not None and sink.where.wrong):
        raise MustRefuse("the texts of select= and where= fit no rows")
    kinds, kept = given(sink, columns, rows)
    new = as_rows(kinds, kept)
    if sink.mode == "Overwrite":
        return new, set()
    if sink.mode not in ("Upsert", "Merge"):
        return [*before, *new], set()
    return _merged(sink, kinds, before, new)


def _merged(
    sink: SinkPlan, columns: Sequence[Column], before: Sequence[Found], new: Sequence[Found]
) -> tuple[list[Found], set[str]]:
    kinds = {c.name: c.kind for c in columns}
    key, order, update = (_names(sink.keyed.get(what)) for what in ("key", "order_by", "update"))
    flag = sink.keyed.get("delete_when")
    if missing := {*key, *order, *update, *([flag] if flag else [])} - kinds.keys():
        raise MustRefuse(f"no columns {missing}")
    if flag is not None and not isinstance(kinds[flag], t.BooleanType):
        raise MustRefuse("delete_when= is no boolean")
    if any(row[name] is None for row in new for name in (*key, *order)):
        raise MustRefuse("NULL in key= or order_by=")
    table = {_key(row, key): dict(row) for row in before}
    for row in _last(new, key, order):
        _merge(table, row, key, flag, update if "update" in sink.keyed else None)
    return list(table.values()), set(order)


def _merge(
    table: dict[str, dict[str, Value]], row: Found, key: Sequence[str], flag: str | None, update: Sequence[str] | None
) -> None:
    at = _key(row, key)
    written = {name: value for name, value in row.items() if name != flag}
    if flag is not None and row[flag]:
        table.pop(at, None)
    elif at not in table:
        table[at] = written
    else:
        table[at] |= {n: v for n, v in written.items() if n not in key and (update is None or n in update)}


def _last(rows: Sequence[Found], key: Sequence[str], order: Sequence[str]) -> list[Found]:
    groups: dict[str, list[Found]] = {}
    for row in rows:
        groups.setdefault(_key(row, key), []).append(row)
    last = []
    for group in groups.values():
        best = max([_place(row[name]) for name in order] for row in group)
        winners = [row for row in group if [_place(row[name]) for name in order] == best]
        if len(winners) > 1:
            raise MustRefuse("a key that has no single last row")
        last += winners
    return last


def _key(row: Found, key: Sequence[str]) -> str:
    return repr([_same(row[name]) for name in key])


def _same(value: Value) -> Value:
    """One form for values that are equal in SQL."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, (list, tuple)):
        return [_same(part) for part in value]
    return value


def _place(value: Value) -> Any:
    """Sorts as SQL does: NULL first, NaN last."""
    if isinstance(value, (list, tuple)):
        return [(part is not None, _place(part) if part is not None else 0) for part in value]
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value + 0.0)
    return value


def _names(of: Any) -> list[str]:
    return [] if of is None else [of] if isinstance(of, str) else list(of)


def records(sink: SinkPlan, columns: Sequence[Column], rows: Sequence[Row], topic: str) -> list[Record]:
    """The records that an epoch adds."""
    if (sink.select is not None and sink.select.wrong) or (sink.where is not None and sink.where.wrong):
        raise MustRefuse("the texts of select= and where= fit no rows")
    kinds, kept = given(sink, columns, rows)
    return [_record(sink, kinds, row, topic) for row in kept]


def _record(sink: SinkPlan, columns: Sequence[Column], row: Row, topic: str) -> Record:
    of = {c.name: v for c, v in zip(columns, row, strict=True)}
    routes = [sink.options[role] for role in ("topic", "partition", "headers") if role in sink.options]

    def named(role: str) -> Any:
        return of.get(sink.options[role]) if role in sink.options else None

    to = (named("topic") or b"").decode("utf-8", "replace") if "topic" in sink.options else topic
    value: Any = named("value")
    if "value" not in sink.options:
        value = {c.name: of[c.name] for c in columns if c.exotic is None and c.name not in routes}
    elif (maker := sink.options["value"]) in MAKERS:
        value = to.encode() if MAKERS[maker] is ... else MAKERS[maker]
    headers = tuple((key.decode("utf-8", "replace"), item) for key, item in named("headers") or ())
    return Record(to, named("partition"), named("key"), value, headers)


def differences(found: Iterable[Any], wanted: Iterable[Any]) -> str:
    """What is there too much and what is missing, or an empty text."""
    there, asked = Counter(map(_told, found)), Counter(map(_told, wanted))
    more, less = there - asked, asked - there
    return f"found {sorted(more.elements())}, wanted {sorted(less.elements())}" if more or less else ""


def _told(one: Any) -> str:
    return repr(sorted(one.items())) if isinstance(one, Mapping) else repr(one)
