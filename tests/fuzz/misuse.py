"""Random wrong arguments for whatever a user makes: each is taken, or is refused by a named error.

Python's own TypeError is right for an argument that a class does not have, and for one that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from epochal import Pipeline, Retry
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.hadoop import HadoopLog
from epochal.checkpoints.objects import ObjectLog
from epochal.checkpoints.postgres import PostgresLog
from epochal.coordinator.model.errors import EpochalError
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink, delta, postgres
from epochal.sinks.memory import MemoryServer, MemorySink


class Odd:
    """An object of no use, with a plain text."""

    def __repr__(self) -> str:
        return "Odd()"


JUNK: tuple[Any, ...] = (None, 0, -1, 1, 3, 1.5, 10**30, float("nan"), float("inf"), True, False, "", " ", "x", "a\0b")
JUNK += ("\ud800", "`", b"x", (), [], ["a"], [None], [1], [[]], ["a", "a"], {}, {"a": 1}, {1: 2}, {"a"}, object, Odd())
JUNK += (len, ("a", 1), "x" * 300, range(3), iter(()))


@dataclass(frozen=True)
class Kind:
    """What a user makes, with good arguments and the names of all others."""

    make: Callable[..., Any]
    good: Mapping[str, Any]
    others: Sequence[str] = ()


_SERVER = MemoryServer()
_POSTGRES: tuple[str, ...] = ("mode", "name", "view", "select", "where", "bad_rows", "schema_evolution", "connections")
_POSTGRES += ("connect_timeout", "lock_timeout", "answer_timeout", "bulk_timeout", "keep_epochs", "keep_days")
_KAFKA: tuple[str, ...] = ("topics", "key", "value", "headers", "partition", "tombstones", "slots", "select", "where")
_KAFKA += ("bad_rows", "name", "partitioner", "transaction_timeout", "request_timeout", "options", "partitions")
_KAFKA += ("replication", "topic_config", "keep_epochs", "keep_days")
_DELTA = ("table", "mode", "name", "partition_by", "merge_schema", "select", "where")
_KEYED = ("update", "delete_when", "order_by")

KINDS: Mapping[str, Kind] = {
    "PostgresSink": Kind(PostgresSink, {"dsn": "host=localhost", "table": "t"}, _POSTGRES),
    "KafkaSink": Kind(KafkaSink, {"bootstrap_servers": "localhost:1", "topic": "t"}, _KAFKA),
    "DeltaSink": Kind(DeltaSink, {"path": "/no/table"}, _DELTA),
    "MemorySink": Kind(MemorySink, {"name": "m", "server": _SERVER}),
    "Plain": Kind(lambda **given: PostgresSink("", table="t", mode=postgres.Plain(**given)), {}, ("trial",)),
    "Upsert": Kind(
        lambda **given: PostgresSink("", table="t", mode=postgres.Upsert(**given)), {"key": "k"}, (*_KEYED, "trial")
    ),
    "Merge": Kind(lambda **given: DeltaSink("/t", mode=delta.Merge(**given)), {"key": "k"}, _KEYED),
    "Retry": Kind(Retry, {}, ("attempts", "first", "most", "sleep")),
    "FilesLog": Kind(FilesLog, {"folder": "/no/log"}),
    "PostgresLog": Kind(PostgresLog, {"dsn": "", "name": "log"}, ("timeout",)),
    "HadoopLog": Kind(HadoopLog, {"folder": "hdfs://node/log"}),
    "ObjectLog": Kind(ObjectLog, {"folder": "s3a://bucket/log"}),
    "Pipeline": Kind(
        Pipeline,
        {"app": "app", "sinks": [MemorySink("m", _SERVER)]},
        ("mode", "deterministic", "log", "retry", "compact_every", "on_event"),
    ),
}


@dataclass(frozen=True)
class Try:
    """One call."""

    kind: str
    given: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"

    def refusal(self) -> str | None:
        """The raw error that came out, or None."""
        made = None
        try:
            made = KINDS[self.kind].make(**self.given)
            repr(made)
        except EpochalError as error:
            return None if error.help.strip() and str(error) else f"{error!r} helps nobody"
        except TypeError as error:
            return None if " argument" in str(error) and "keyword" in str(error) else repr(error)
        except Exception as error:
            return repr(error)
        return None


def call(seed: int, number: int) -> Try:
    """A call with two or three wrong arguments."""
    choose = Random(f"{seed} {number}")
    name = choose.choice(list(KINDS))
    kind = KINDS[name]
    arguments = [*kind.good, *kind.others]
    wrong = choose.sample(arguments, min(choose.choice((2, 3)), len(arguments)))
    return Try(name, {**kind.good, **{each: choose.choice(JUNK) for each in wrong}})


def every_single() -> list[Try]:
    """Every argument with every piece of junk, one at a time."""
    return [
        Try(name, {**kind.good, argument: junk})
        for name, kind in KINDS.items()
        for argument in (*kind.good, *kind.others)
        for junk in JUNK
    ]
