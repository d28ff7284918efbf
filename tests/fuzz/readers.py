"""What outside readers find in the sinks: psycopg, a consumer of committed records.  ``tables.py`` reads Delta."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition
from psycopg import sql
from pyspark.sql import types as t

from tests.fuzz import values
from tests.fuzz.expected import Found, Record
from tests.fuzz.frames import Column
from tests.fuzz.values import Value

_WHOLE = Context(prec=100)
"""Of calculations that must lose no digit."""
_NESTED = (t.ArrayType, t.MapType, t.StructType)


class Unlike(str):
    """Stands in a row for what is no value of its type."""


# --- Postgres -------------------------------------------------------------------------------------


def postgres(dsn: str, schema: str, relation: str, columns: Sequence[Column]) -> list[Found]:
    """All rows that a reader of the table or view sees; the values of those columns that it has."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=60) as connection:
        place = sql.Identifier(schema, relation)
        there = {
            c.name for c in connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(place)).description or ()
        }
        read = [c for c in columns if c.exotic is None and c.name in there]
        parts = sql.SQL(", ").join([_selected(c) for c in read] or [sql.SQL("1")])
        found = connection.execute(sql.SQL("SELECT {} FROM {}").format(parts, place)).fetchall()
        return [{c.name: _of_postgres(v, c.kind) for c, v in zip(read, row, strict=bool(read))} for row in found]


def _selected(column: Column) -> sql.Composable:
    name, kind = sql.Identifier(column.name), column.kind
    form = "{}"
    if isinstance(kind, t.DateType):
        form = "{} - date '1970-01-01'"
    elif isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        # not extract(epoch ...) of all of it: at the last days of Spark's calendar Postgres rounds that
        at = "({} AT TIME ZONE 'UTC')" if isinstance(kind, t.TimestampType) else "{}"
        day = f"({at}::date - date '1970-01-01')::bigint * 86400000000"
        form = f"({day} + extract(epoch from {at}::time) * 1000000)::text"
    elif isinstance(kind, (t.FractionalType, *_NESTED)):
        form = "{}::text"
    return sql.SQL(form).format(*[name] * form.count("{}"))


def _of_postgres(value: Any, kind: t.DataType) -> Value:
    if value is None:
        return None
    if isinstance(kind, _NESTED):
        return of_json(_parsed(value), kind)
    if isinstance(kind, t.StringType):
        return value.encode()
    if isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        return int(Decimal(value))
    if isinstance(kind, t.DecimalType):
        return Decimal(value)
    if isinstance(kind, t.FloatType):
        return values.single(float(value))
    return float(value) if isinstance(kind, t.DoubleType) else value


# --- JSON -----------------------------------------------------------------------------------------


class _Number(str):
    pass


def _parsed(text: str | bytes) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number, object_pairs_hook=lambda pairs: ("object", pairs))


def of_json(parsed: Any, kind: t.DataType) -> Value:
    """The value that a piece of JSON stands for."""
    if parsed is None:
        return None
    try:
        return _of_json(parsed, kind)
    except (ValueError, TypeError, AssertionError, ArithmeticError) as error:
        return Unlike(f"{parsed!r} is no {kind.simpleString()}: {error!r}")


def _of_json(parsed: Any, kind: t.DataType) -> Value:
    if isinstance(kind, t.ArrayType):
        return [of_json(part, kind.elementType) for part in parsed]
    if isinstance(kind, (t.MapType, t.StructType)):
        word, pairs = parsed
        assert word == "object"
        if isinstance(kind, t.MapType):
            return values.as_map((key.encode(), of_json(part, kind.valueType)) for key, part in pairs)
        assert [key for key, _ in pairs] == kind.names
        return tuple(of_json(part, field.dataType) for (_, part), field in zip(pairs, kind.fields, strict=True))
    if isinstance(kind, t.BooleanType):
        assert isinstance(parsed, bool)
        return parsed
    if isinstance(kind, t.NumericType):
        assert isinstance(parsed, _Number)
        return _number(parsed, kind)
    assert isinstance(parsed, str)
    assert not isinstance(parsed, _Number)
    return _text(parsed, kind)


def _number(text: str, kind: t.NumericType) -> Value:
    if isinstance(kind, t.IntegralType):
        return int(text)
    if isinstance(kind, t.DecimalType):
        return Decimal(text)
    return values.single(float(text)) if isinstance(kind, t.FloatType) else float(text)


def _text(text: str, kind: t.DataType) -> Value:
    if isinstance(kind, t.StringType):
        return text.encode()
    if isinstance(kind, t.BinaryType):
        return base64.b64decode(text, validate=True)
    if isinstance(kind, t.DateType):
        return values.days(text)
    assert text.endswith("Z") == isinstance(kind, t.TimestampType)
    moment = text.removesuffix("Z")
    assert len(moment.rpartition(":")[2]) == 9
    return values.microseconds(moment)


# --- Kafka ----------------------------------------------------------------------------------------


class KafkaReader:
    """A consumer of committed records, for any number of topics one after another."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "fuzz",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 5,
                "log_level": 0,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def read(self, topics: Sequence[str], columns: Sequence[Column] | None) -> list[Record]:
        """All records.  ``columns``: of the JSON values; None: the values are bytes."""
        known = {topic: self._consumer.list_topics(topic, timeout=60).topics[topic].partitions for topic in topics}
        left = {(topic, partition) for topic, partitions in known.items() for partition in partitions}
        self._consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in left])
        found = []
        while left:
            message = self._consumer.poll(30)
            assert message is not None, f"{topics}: no end within 30 s"
            error = message.error()
            if error is None:
                found.append(_record(message, columns))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard((message.topic(), message.partition()))
        self._consumer.unassign()
        return found


def _record(message: Any, columns: Sequence[Column] | None) -> Record:
    value = message.value()
    headers = tuple((key, item) for key, item in message.headers() or ())
    if columns is not None and value is not None:
        value = _json_row(value, columns)
    return Record(message.topic(), message.partition(), message.key(), value, headers)


def _json_row(value: bytes, columns: Sequence[Column]) -> Any:
    _, pairs = _parsed(value)
    if [name for name, _ in pairs] != [c.name for c in columns]:
        return Unlike(f"{value!r} has not the fields {[c.name for c in columns]}")
    return {c.name: of_json(part, c.kind) for (_, part), c in zip(pairs, columns, strict=True) if c.exotic is None}


# --- memory ---------------------------------------------------------------------------------------


def memory(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> list[Found]:
    """The rows of a memory sink, whose values are those of pyspark; a column that came later is NULL in older rows."""
    kinds = {c.name: c for c in columns if c.exotic is None}
    return [{n: _of_python(row.get(n), column.kind) for n, column in kinds.items()} for row in rows]


def _of_python(value: Any, kind: t.DataType) -> Value:
    if isinstance(value, Decimal):
        return value.quantize(Decimal(1).scaleb(-kind.scale), context=_WHOLE)  # type: ignore[attr-defined]
    if value is None or isinstance(kind, (t.NumericType, t.BooleanType)):
        return value
    if isinstance(kind, t.ArrayType):
        return [_of_python(part, kind.elementType) for part in value]
    if isinstance(kind, t.MapType):
        return values.as_map((_of_python(k, kind.keyType), _of_python(v, kind.valueType)) for k, v in value.items())
    if isinstance(kind, t.StructType):
        parts = zip(value.values(), kind.fields, strict=True)
        return tuple(_of_python(part, field.dataType) for part, field in parts)
    if isinstance(kind, t.DateType):
        return (value - date(1970, 1, 1)).days
    if isinstance(kind, t.TimestampType):
        return (value.astimezone(timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
    if isinstance(kind, t.TimestampNTZType):
        return (value - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    return value.encode() if isinstance(value, str) else bytes(value)
