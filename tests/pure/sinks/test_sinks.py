"""What the real sinks refuse, show and put back without a server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from epochal.coordinator.model.epoch import UNKNOWN_DECISION, Marker, Query
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.postgres import Plain, Upsert
from epochal.sinks.postgres.core import State
from epochal.sinks.spark import settings as spark_settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"topic": ""}, "no broker takes '' as the name of a topic"),
        ({"topic": ".."}, "no broker takes '..' as the name of a topic"),
        ({"topic": "."}, "no broker takes '.' as the name of a topic"),
        ({"topic": "a topic"}, "no broker takes 'a topic' as the name of a topic"),
        ({"topic": "x" * 250}, f"no broker takes '{'x' * 250}' as the name of a topic"),
        ({"partitioner": "md5"}, "there is no partitioner 'md5'"),
        ({"name": "a b"}, "sink name 'a b' is not of the form"),
        ({"topic": "x" * 249}, f"sink name 'kafka-{'x' * 249}' is not of the form"),
        ({"slots": 0}, "slots=0 is not a number of transactions"),
        ({"slots": True}, "slots=True is not a number"),
        ({"slots": 65}, "slots=65 is not a number"),
        ({"slots": 2, "partitioner": "fnv1a"}, "partitioner 'fnv1a' exists in librdkafka only"),
        ({"tombstones": True}, "tombstones=True has no effect: the value is the JSON of the row, which is never empty"),
        ({"topics": []}, "topics=[] is not a list of different topics"),
        ({"topics": "ab"}, "topics='ab' is not a list of different topics"),
        ({"topics": ["a", "a"]}, "topics=['a', 'a'] is not a list of different topics"),
        ({"topics": ["a", "b c"]}, "no broker takes 'b c' as the name of a topic"),
        ({"topics": ["a", "b"]}, "a sink with several topics has no name by itself"),
        ({"bad_rows": KafkaSink("localhost:1", topic="bad"), "value": dict}, "bad_rows= does not go with a function"),
    ],
)
def test_a_kafka_sink_that_can_never_work_is_refused_when_it_is_made(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(Misconfigured, match="Help: ") as refused:
        KafkaSink("localhost:1", **{"topic": "flights", **settings})
    assert refused.value.what.startswith(says)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PostgresSink("postgresql://127.0.0.1:1/nowhere", table="flights", name="a b"),
        lambda: DeltaSink("/lake/flights", name="a b"),
        lambda: MemorySink("a b", MemoryServer()),
    ],
)
def test_a_name_that_not_every_sink_can_keep_is_refused_when_the_sink_is_made(make: Callable[[], object]) -> None:
    with pytest.raises(Misconfigured, match="sink name 'a b' is not of the form"):
        make()


@pytest.mark.parametrize(
    "asked",
    [
        lambda app: PostgresSink("postgresql://127.0.0.1:1/nowhere", table="t", name="out").look(app),
        lambda app: KafkaSink("127.0.0.1:1", topic="t", name="out").look(app),
        lambda app: DeltaSink("/lake/t", name="out").look(app),
        lambda app: DeltaSink("/lake/t", name="out").epochs(app.app),
        lambda app: DeltaSink("/lake/t", name="out").create(app, StructType()),
        lambda app: DeltaSink("/lake/t", name="out").check(app, StructType()),
        lambda app: DeltaSink("/lake/t", name="out").inspection(app),
        lambda app: MemorySink("out", MemoryServer()).epochs(app.app),
    ],
)
def test_an_app_that_not_every_sink_can_keep_is_refused_before_a_server_is_asked(
    asked: Callable[[Query], object],
) -> None:
    with pytest.raises(Misconfigured, match="app 'a b' is not of the form"):
        asked(Query("a b", "q1", "r1", "file:/checkpoint"))


@pytest.mark.remedy("the marker topic's name … has more than … characters", "give the app or the sink a shorter name")
def test_app_and_sink_that_are_too_long_for_a_topic_are_refused_before_a_broker_is_asked() -> None:
    sink = KafkaSink("127.0.0.1:1", topic="t", name="x" * 120)
    with pytest.raises(Misconfigured, match="has more than 249 characters"):
        sink.look(Query("y" * 120, "q1", "r1", "file:/checkpoint"))
    for app, name in (("y" * 60, "x" * 120), ("y" * 120, "x" * 60)):
        shorter = KafkaSink("127.0.0.1:1", topic="t", name=name)
        assert len(shorter._core.marker_topic(Query(app, "q1", "r1", "file:/checkpoint")).topic) <= 249


def test_options_of_a_function_are_checked_as_those_of_a_dictionary() -> None:
    query = Query("app", "q1", "r1", "file:/checkpoint")
    for options in ({"acks": "1"}, lambda: {"acks": "1"}):
        with pytest.raises(Misconfigured, match="acks"):
            KafkaSink("127.0.0.1:1", topic="t", options=options).look(query)


def test_the_guarantee_of_a_kafka_sink_names_topics_and_slots() -> None:
    sink = KafkaSink("localhost:1", topic="dest", topics=["a", "b"], name="out")
    assert "every epoch is in topics 'a', 'b', as column 'dest' says, exactly once" in sink.guarantee()
    assert repr(sink) == "KafkaSink('localhost:1', topic='dest', topics=['a', 'b'], name='out')"
    text = KafkaSink("localhost:1", topic="t", slots=3).guarantee()
    assert "exactly once, in 3 Kafka transactions side by side, each with its own partitions: if a start dies" in text


def test_the_longest_topic_of_a_kafka_sink() -> None:
    assert KafkaSink("localhost:1", topic="x" * 249, name="out", partitioner="murmur2").name == "out"


def test_a_sink_shows_what_it_is_and_no_secret() -> None:
    secret = "open-Sesame-42"
    postgres = PostgresSink(f"postgresql://u:{secret}@h/db", table="flights", name="out")
    kafka = KafkaSink("h:9092", topic="flights", options={"sasl.password": secret})
    assert repr(postgres) == "PostgresSink(table='flights', name='out')"
    assert repr(kafka) == "KafkaSink('h:9092', topic='flights', name='kafka-flights')"
    assert repr(DeltaSink("/lake/flights")) == "DeltaSink('/lake/flights', name='delta-flights')"


@pytest.mark.remedy("…= names the column …, which is not in the rows", "select it in the query, or name another")
def test_sql_for_a_key_that_the_table_does_not_have_is_refused() -> None:
    sink = PostgresSink(
        "postgresql://127.0.0.1:1/nowhere", table="flights", name="out", mode=Upsert(key="id", order_by="at")
    )
    with pytest.raises(Misconfigured, match=r"order_by= names the column 'at', which is not in the rows"):
        sink.script("app", StructType().add("id", LongType()))
    assert sink.script("app", StructType().add("id", LongType()).add("at", LongType())).ddl
    another = PostgresSink("host=h", table="flights", name="out", mode=Upsert(key="id"))
    assert another.script("app", StructType().add("id", LongType())).ddl


@pytest.mark.remedy("readers cannot filter by …: the table has no such columns", "name columns of the table")
def test_sql_for_a_column_that_the_table_does_not_have_is_refused() -> None:
    schema = StructType().add("id", LongType())
    sink = PostgresSink("postgresql://127.0.0.1:1/nowhere", table="flights", name="out")
    with pytest.raises(Misconfigured, match=r"cannot filter by \['at'\].*no such columns"):
        sink.script("app", schema, ["id", "at"])
    assert sink.script("app", schema, ["id"]).indexes == ['CREATE INDEX CONCURRENTLY ON "flights__rows" ("id")']


@pytest.mark.parametrize(
    ("published", "decision", "marker"),
    [(0, None, None), (3, 7, Marker(3, 7)), (3, None, Marker(3, UNKNOWN_DECISION)), (0, 7, Marker(0, 7))],
)
def test_the_marker_of_a_postgres_sink_is_where_its_readers_stand(
    published: int, decision: int | None, marker: Marker | None
) -> None:
    """A decision that was deleted by hand does not make the next write begin at position 1 again."""
    assert State("", None, published, decision).marker == marker


class Conf:
    """Spark's `RuntimeConfig`."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def get(self, key: str, default: str | None) -> str | None:
        return self.values.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def unset(self, key: str) -> None:
        del self.values[key]


def test_the_sessions_settings_are_put_back_as_they_were() -> None:
    """D1: also where two sinks write at once, and the first one that began is the first one that ends."""
    spark: Any = SimpleNamespace(
        conf=Conf(set="before"), _jsparkSession=SimpleNamespace(sessionUUID=lambda: "held in a test")
    )
    first, second = (
        spark_settings.held(spark, {"set": "now", "unset": "now"}),
        spark_settings.held(spark, {"set": "now"}),
    )
    with ExitStack() as one, ExitStack() as other:
        one.enter_context(first)
        other.enter_context(second)
        assert spark.conf.values == {"set": "now", "unset": "now"}
        one.close()
        assert spark.conf.values == {"set": "now"}
    assert spark.conf.values == {"set": "before"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "upsert"}, "mode='upsert' is none of the modes of epochal.sinks.postgres"),
        ({"mode": Plain(), "view": "v"}, "view='v': readers of a Plain sink read the table itself"),
        ({"mode": Upsert(key=()), "view": "v"}, "view='v': readers of a Upsert sink read the table itself"),
        ({"mode": Upsert(key=())}, "Upsert(key=...) names no column"),
        ({"mode": Upsert(key=["a", "b", "a"])}, "key= names 'a' twice"),
        ({"mode": Upsert(key="a", update=["b", "b"])}, "update= names 'b' twice"),
        ({"mode": Upsert(key="a", order_by=["b", "b"])}, "order_by= names 'b' twice"),
        ({"mode": Upsert(key="a", update=["b", "a"])}, "update= names 'a', which is in the key"),
        ({"mode": Upsert(key="a", order_by="a")}, "order_by= names 'a', which is in the key"),
        ({"mode": Upsert(key="a", delete_when="a")}, "delete_when= names 'a', which is in the key"),
        (
            {"mode": Upsert(key="a", update=["gone"], delete_when="gone")},
            "update= names 'gone', which delete_when= keeps out of the table",
        ),
        ({"mode": Plain(), "table": "x" * 57}, f"'{'x' * 57}__staged' is no Postgres name of 1 to 63 bytes"),
        ({"mode": Plain(), "table": "s."}, "'__staged' is no Postgres name of 1 to 63 bytes"),
    ],
)
def test_a_mode_of_postgres_that_can_never_work_is_refused_when_the_sink_is_made(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(Misconfigured, match="Help: ") as refused:
        PostgresSink("host=h", **{"table": "flights", "name": "out", **settings})
    assert refused.value.what == says


NUMBERS: list[tuple[str, float]] = [
    *((name, value) for name in ("transaction_timeout", "request_timeout", "partitions") for value in (0, -1)),
    ("replication", 0),
]


@pytest.mark.parametrize(("name", "value"), NUMBERS)
def test_a_number_of_kafka_that_has_to_be_above_zero(name: str, value: float) -> None:
    with pytest.raises(Misconfigured, match=f"{name}={value} is not above 0"):
        KafkaSink("h:1", topic="t", **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["connections", "connect_timeout", "lock_timeout", "answer_timeout", "bulk_timeout"])
def test_a_number_of_postgres_that_has_to_be_above_zero(name: str) -> None:
    """A time limit of 0 would be none in the server."""
    with pytest.raises(Misconfigured, match=f"{name}=0 is not above 0"):
        PostgresSink("host=h", table="t", **{name: 0})  # type: ignore[arg-type]


def test_a_name_and_a_list_of_one_are_the_same() -> None:
    one, listed = Upsert(key="id", update="a", order_by="b"), Upsert(key=["id"], update=["a"], order_by=["b"])
    assert (
        (one.keys, one.updates, one.order) == (listed.keys, listed.updates, listed.order) == (("id",), ("a",), ("b",))
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"select": "id"}, "select='id' is not a list of texts"),
        ({"select": ["id", 3]}, "select=['id', 3] is not a list of texts"),
        ({"select": []}, "select=[] is empty"),
        ({"select": ["id", " "]}, "select=['id', ' '] holds an empty text"),
        ({"where": ""}, "where='' is not a condition"),
        ({"where": 3}, "where=3 is not a condition"),
    ],
)
def test_a_projection_that_fits_no_rows_is_refused_when_the_sink_is_made(settings: dict[str, Any], says: str) -> None:
    for make in (
        lambda: KafkaSink("localhost:1", topic="flights", **settings),
        lambda: PostgresSink("postgresql://h/db", table="flights", **settings),
        lambda: DeltaSink("/lake/flights", **settings),
    ):
        with pytest.raises(Misconfigured, match="Help: ") as refused:
            make()
        assert refused.value.what == says


def test_the_guarantee_tells_what_a_sink_gets() -> None:
    some: dict[str, Any] = {"select": ["id"], "where": "n > 1"}
    for whole, part in (
        (KafkaSink("h:1", topic="t"), KafkaSink("h:1", topic="t", **some)),
        (PostgresSink("", table="t"), PostgresSink("", table="t", **some)),
        (DeltaSink("/t"), DeltaSink("/t", **some)),
    ):
        assert part.guarantee() == whole.guarantee() + " Of every epoch: select=['id'], where='n > 1'."


@pytest.mark.parametrize("connections", [0, -1])
def test_a_postgres_sink_without_a_connection_is_refused(connections: int) -> None:
    with pytest.raises(Misconfigured, match=f"connections={connections}"):
        PostgresSink("", table="t", connections=connections)


def test_one_connection_is_enough() -> None:
    PostgresSink("", table="t", connections=1)


@pytest.mark.parametrize(("table", "view"), [(".t", None), ("t", ".v"), ("t", "s" * 64 + ".v")])
def test_a_schema_that_postgres_cannot_name_is_refused(table: str, view: str | None) -> None:
    with pytest.raises(Misconfigured, match="is no Postgres name of 1 to 63 bytes"):
        PostgresSink("", name="out", table=table, view=view)
