"""Arguments that are refused when an object is made: each help, followed to the letter, makes one that is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.objects import ObjectLog
from epochal.checkpoints.postgres import PostgresLog
from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.protocol.retry import Retry
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink, delta, postgres
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.postgres import Plain, Upsert

Make = Callable[..., object]
Given = dict[str, Any]

AS_THE_HELP_SAYS: list[Given] = [{"select": ["id", "price * 2 AS twice"]}, {"where": "price > 0"}, {}]


def kafka(**given: Any) -> object:
    return KafkaSink("localhost:1", **{"topic": "flights", **given})


def in_postgres(**given: Any) -> object:
    return PostgresSink("host=h", **{"table": "flights", "name": "out", **given})


def in_delta(**given: Any) -> object:
    return DeltaSink("/lake/flights", **given)


def sorting_into(bad: Any) -> PostgresSink:
    return PostgresSink("host=h", table="flights", bad_rows=bad)


def keyed(**given: Any) -> object:
    return in_postgres(mode=Upsert(**{"key": "a", **given}))


def pipeline(**given: Any) -> object:
    return Pipeline(**{"app": "app", "sinks": [MemorySink("a", MemoryServer())], **given})


def sinks(*names: str) -> list[MemorySink]:
    return [MemorySink(name, MemoryServer()) for name in names]


@pytest.mark.parametrize(
    ("make", "wrong", "ways_out"),
    [
        pytest.param(
            kafka,
            {"topic": "a topic"},
            [{"topic": "a-topic"}],
            marks=pytest.mark.remedy(
                "no broker takes … as the name of a topic", "topic= is of the form …, and neither '.' nor '..'"
            ),
        ),
        pytest.param(
            kafka,
            {"partitioner": "md5"},
            [{"partitioner": "murmur2_random"}],
            marks=pytest.mark.remedy(
                "there is no partitioner …", "take one of …; murmur2_random is what Java's producer does"
            ),
        ),
        pytest.param(
            kafka,
            {"slots": 0},
            [{"slots": 1}, {"slots": 64}],
            marks=pytest.mark.remedy("slots=… is not a number of transactions", "take 1 to …"),
        ),
        pytest.param(
            kafka,
            {"slots": 2, "partitioner": "fnv1a"},
            [{"slots": 2, "partitioner": "murmur2"}],
            marks=pytest.mark.remedy("partitioner … exists in librdkafka only", "with several slots take one of …"),
        ),
        pytest.param(
            kafka,
            {"tombstones": True},
            [{"tombstones": True, "value": "body"}, {"tombstones": True, "value": lambda: dict}],
            marks=pytest.mark.remedy(
                "tombstones=True has no effect: the value is the JSON of the row, which is never empty",
                "name a column with value=, or pass a function; a row whose value is NULL or None is then a tombstone",
            ),
        ),
        pytest.param(
            kafka,
            {"topics": "ab"},
            [{"topic": "kind", "topics": ["a", "b"], "name": "out"}],
            marks=pytest.mark.remedy(
                "topics=… is not a list of different topics",
                "topics=['a', 'b'] lists all topics that a row may name, topic= names the column that says which",
            ),
        ),
        pytest.param(
            kafka,
            {"topic": "kind", "topics": ["a", "b"]},
            [{"topic": "kind", "topics": ["a", "b"], "name": "out"}],
            marks=pytest.mark.remedy(
                "a sink with several topics has no name by itself", "give it a name= that stays the same over restarts"
            ),
        ),
        pytest.param(
            kafka,
            {"bad_rows": DeltaSink("/lake/bad"), "value": lambda: dict},
            [{"bad_rows": DeltaSink("/lake/bad"), "value": "made"}],
            marks=pytest.mark.remedy(
                "bad_rows= does not go with a function as value=, which would be called twice and may answer"
                " differently",
                "make the value in the query, before the pipeline, and name its column with value=",
            ),
        ),
        pytest.param(
            kafka,
            {"bad_rows": "skip"},
            [{"bad_rows": DeltaSink("/lake/bad")}, {"bad_rows": "fail"}],
            marks=pytest.mark.remedy(
                "bad_rows=… is no sink",
                'pass the sink that gets these rows, as bad_rows=DeltaSink("..."), or "fail", which is the default',
            ),
        ),
        *(
            pytest.param(
                pipeline,
                {"sinks": [sorting_into(bad)]},
                [
                    {"sinks": [sorting_into(PostgresSink("host=h", table="bad"))]},
                    {"sinks": [sorting_into(DeltaSink("/lake/bad", mode=delta.Append()))]},
                ],
                marks=pytest.mark.remedy(
                    "bad_rows=… …", "take a PostgresSink without bad_rows=, or a DeltaSink that appends"
                ),
            )
            for bad in (
                KafkaSink("localhost:1", topic="bad"),
                DeltaSink("/lake/bad", mode=delta.Overwrite()),
                sorting_into(PostgresSink("host=h", table="worse")),
            )
        ),
        pytest.param(
            kafka,
            {"name": "a b"},
            [{"name": "a-b"}],
            marks=pytest.mark.remedy(
                "… … is not of the form …",
                "choose a plain name that stays the same over restarts; name= sets the name of a sink",
            ),
        ),
        pytest.param(
            in_postgres,
            {"bulk_timeout": 0},
            [{"bulk_timeout": 0.5}, {}],
            marks=pytest.mark.remedy("…=… is not above 0", "give …= a number above 0, or leave it out"),
        ),
        pytest.param(
            in_postgres,
            {"mode": "upsert"},
            [{"mode": postgres.Append()}, {"mode": Plain()}, {"mode": Upsert(key="a")}],
            marks=pytest.mark.remedy(
                "mode=… is none of the modes of epochal.sinks.postgres",
                "give Append(), Plain() or Upsert(key=...) of epochal.sinks.postgres",
            ),
        ),
        pytest.param(
            in_delta,
            {"mode": "append"},
            [{"mode": delta.Append()}, {"mode": delta.Overwrite()}, {"mode": delta.Merge(key="a")}],
            marks=pytest.mark.remedy(
                "mode=… is none of the modes of epochal.sinks.delta",
                "give Append(), Overwrite() or Merge(key=...) of epochal.sinks.delta",
            ),
        ),
        pytest.param(
            in_postgres,
            {"mode": Plain(), "view": "v"},
            [{"mode": Plain()}],
            marks=pytest.mark.remedy(
                "view=…: readers of a … sink read the table itself",
                "leave view= out; a view of your own on top of the table is fine",
            ),
        ),
        pytest.param(
            in_postgres,
            {"table": "x" * 64},
            [{"table": "x" * 50}],
            marks=pytest.mark.remedy("… is no Postgres name of 1 to 63 bytes", "choose another table or view name"),
        ),
        pytest.param(
            keyed,
            {"key": ()},
            [{"key": ("a", "b")}],
            marks=pytest.mark.remedy("…(key=...) names no column", "name the columns that identify a row"),
        ),
        pytest.param(
            keyed,
            {"update": ["b", "b"]},
            [{"update": ["b"]}],
            marks=pytest.mark.remedy("…= names … twice", "name it once"),
        ),
        pytest.param(
            keyed,
            {"update": ["b", "a"]},
            [{"update": ["b"]}],
            marks=pytest.mark.remedy(
                "…= names …, which is in the key", "leave it out of …=: within one key it is always the same"
            ),
        ),
        pytest.param(
            keyed,
            {"update": ["b", "gone"], "delete_when": "gone"},
            [{"update": ["b"], "delete_when": "gone"}, {"update": ["b", "gone_too"], "delete_when": "gone"}],
            marks=pytest.mark.remedy(
                "update= names …, which delete_when= keeps out of the table",
                "leave it out of update=, or select it a second time under another name",
            ),
        ),
        pytest.param(
            in_postgres,
            {"select": "id"},
            AS_THE_HELP_SAYS,
            marks=pytest.mark.remedy(
                "select=… is not a list of texts",
                "select=['id', 'price * 2 AS twice'] is a list of columns and SQL expressions, where='price > 0' a"
                " condition in SQL; leave them out for every column and every row",
            ),
        ),
        pytest.param(
            kafka,
            {"select": []},
            AS_THE_HELP_SAYS,
            marks=pytest.mark.remedy(
                "select=… …",
                "select=['id', 'price * 2 AS twice'] is a list of columns and SQL expressions, where='price > 0' a"
                " condition in SQL; leave them out for every column and every row",
            ),
        ),
        pytest.param(
            in_delta,
            {"where": ""},
            AS_THE_HELP_SAYS,
            marks=pytest.mark.remedy(
                "where=… is not a condition",
                "select=['id', 'price * 2 AS twice'] is a list of columns and SQL expressions, where='price > 0' a"
                " condition in SQL; leave them out for every column and every row",
            ),
        ),
        pytest.param(
            in_postgres,
            {"keep_epochs": 0},
            [{"keep_epochs": 1_000}, {"keep_epochs": None}],
            marks=pytest.mark.remedy(
                "keep_epochs=… is not a number of epochs from …",
                "give a whole number, … or more, or None to keep the audit of every epoch",
            ),
        ),
        pytest.param(
            kafka,
            {"keep_days": 0},
            [{"keep_days": 30}, {"keep_days": None}],
            marks=pytest.mark.remedy(
                "keep_days=… is not a number of days above 0",
                "give a number of days, or None to keep the audit of epochs of any age",
            ),
        ),
        pytest.param(
            Retry,
            {"attempts": 0},
            [{"attempts": 1}],
            marks=pytest.mark.remedy("Retry(attempts=…)", "the first attempt counts: give at least 1"),
        ),
        pytest.param(
            pipeline,
            {"sinks": []},
            [{"sinks": sinks("a")}],
            marks=pytest.mark.remedy("the pipeline has no sink", "pass at least one sink"),
        ),
        pytest.param(
            pipeline,
            {"sinks": sinks("a", "a")},
            [{"sinks": sinks("a", "b")}],
            marks=pytest.mark.remedy("two sinks are named …", "give each a name= of its own"),
        ),
        pytest.param(
            pipeline,
            {"sinks": ["postgres"]},
            [{"sinks": [PostgresSink("host=h", table="flights")]}],
            marks=pytest.mark.remedy("… is not a sink", "pass objects from epochal.sinks"),
        ),
        pytest.param(
            pipeline,
            {"mode": "at-least-once"},
            [{}, {"mode": "two-phase"}, {"mode": "idempotent"}],
            marks=pytest.mark.remedy("mode … is not known", "leave mode out, or pass one of …"),
        ),
        pytest.param(
            pipeline,
            {"mode": "idempotent", "deterministic": "parse"},
            [{"mode": "idempotent", "deterministic": ["parse"]}],
            marks=pytest.mark.remedy(
                "deterministic=… is no list of names", 'pass the names of functions: deterministic=["parse"]'
            ),
        ),
        pytest.param(
            pipeline,
            {"deterministic": ["parse"]},
            [{}, {"mode": "idempotent", "deterministic": ["parse"]}],
            marks=pytest.mark.remedy(
                "deterministic=… has no effect in mode …, which evaluates an epoch once",
                'leave it out, or pass mode="idempotent"',
            ),
        ),
        pytest.param(
            pipeline,
            {"compact_every": 0},
            [{"compact_every": 1}],
            marks=pytest.mark.remedy("compact_every=…", "pass a number of records, 1 or more"),
        ),
        pytest.param(
            pipeline,
            {"log": "/checkpoint/log"},
            [
                {},
                {"log": PostgresLog("host=h", "log")},
                {"log": ObjectLog("s3a://lake/log")},
                {"log": FilesLog("/log")},
            ],
            marks=pytest.mark.remedy(
                "log=… is no epoch log", "pass a PostgresLog, ObjectLog, FilesLog or HadoopLog, or leave it out"
            ),
        ),
        pytest.param(
            pipeline,
            {"retry": 3},
            [{}, {"retry": Retry(attempts=3)}],
            marks=pytest.mark.remedy("retry=… is no Retry", "pass an epochal.Retry, or leave it out"),
        ),
        pytest.param(
            in_postgres,
            {"connections": "4"},
            [{"connections": 4}],
            marks=pytest.mark.remedy("…=… is not …", "give …= …"),
        ),
        pytest.param(
            pipeline,
            {"on_event": "print"},
            [{"on_event": print}],
            marks=pytest.mark.remedy("on_event=… cannot be called", "pass a function of one argument"),
        ),
    ],
)
def test_the_help_makes_what_is_accepted(make: Make, wrong: Given, ways_out: list[Given]) -> None:
    with pytest.raises(Misconfigured):
        make(**wrong)
    for given in ways_out:
        make(**given)
