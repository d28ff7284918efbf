"""A broker that asks users who they are and lets them do what they are granted, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Actor, Committable, Decision, Epoch
from epochal.coordinator.model.errors import Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.sinks.kafka import KafkaSink
from epochal.sinks.kafka.client import Link, Options
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY, TWO
from tests.real.sinks.kafka.guarded import USER, GuardedKafka
from tests.real.sinks.kafka.support import APP, SECRET, hanging, read_topic

SCHEMA = StructType().add("k", "string").add("n", "long")
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": USER,
    "sasl.password": SECRET,
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[GuardedKafka]:
    with GuardedKafka() as server:
        yield server


@pytest.fixture
def topic(kafka: GuardedKafka, topic_name: str) -> Iterator[str]:
    """A topic with its marker topic, made by somebody who may; in the end nothing is open on them."""
    KafkaSink(kafka.bootstrap, topic=topic_name, name=topic_name).create(QUERY, SCHEMA)
    yield topic_name
    for name in (topic_name, f"__epochal.{APP}.{topic_name}"):
        assert hanging(kafka.bootstrap, name) == []


def sink_of(bootstrap: str, topic: str, options: Options | None = None, timeout: float | None = None) -> KafkaSink:
    return KafkaSink(bootstrap, topic=topic, name=topic, options=options, transaction_timeout=timeout)


def refusal(call: Callable[[], object]) -> Misconfigured:
    with pytest.raises(Misconfigured) as refused:
        call()
    assert SECRET not in str(refused.value)
    return refused.value


@pytest.mark.wide
@pytest.mark.remedy(
    "the user lacks the rights … on topic …", "grant them, and WRITE and DESCRIBE on the transactional id …"
)
@pytest.mark.remedy("Kafka refuses the request …: …", "correct what Kafka names: the user's rights (ACLs)")
def test_a_user_is_told_which_rights_it_lacks_until_it_has_them_all(
    kafka: GuardedKafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    marker, sink = f"__epochal.{APP}.{topic}", sink_of(kafka.guarded, topic, LOGIN, timeout=60)

    def check() -> None:
        sink.check(QUERY, SCHEMA)

    assert "TOPIC_AUTHORIZATION_FAILED" in str(refusal(check))
    for name in (topic, marker):
        kafka.grant(ResourceType.TOPIC, name, "DESCRIBE")
    assert refusal(check).what == f"the user lacks the rights ['WRITE'] on topic {topic!r}"
    kafka.grant(ResourceType.TOPIC, topic, "WRITE")
    told = refusal(check)
    assert told.what == f"the user lacks the rights ['READ', 'WRITE'] on topic {marker!r}"
    assert told.state == f"rights ['DESCRIBE'], bootstrap servers {kafka.guarded}"
    assert told.help == f"grant them, and WRITE and DESCRIBE on the transactional id epochal-{APP}-{topic}"
    kafka.grant(ResourceType.TOPIC, marker, "READ", "WRITE")
    check()

    sink.look(QUERY)
    told = refusal(lambda: sink.fence(QUERY, ONE))
    assert f"to init_transactions of epochal-{APP}-{topic}" in told.what
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in (told.state or "")
    kafka.grant(ResourceType.TRANSACTIONAL_ID, f"epochal-{APP}-{topic}", "WRITE", "DESCRIBE")
    sink.fence(QUERY, ONE)
    copy = stage.write(0, ONE, spark.range(10).selectExpr("cast(id as string) k", "id n"))
    epoch = Epoch(Decision("q1", 0, ONE, "f"), 1, copy=copy)
    assert sink.commit(sink.prepare(epoch, stage.read(copy), ONE), ONE) is CommitOutcome.COMMITTED
    sink.abort(QUERY, ONE)
    assert len(read_topic(kafka.bootstrap, topic)) == 10


def test_a_login_that_is_refused_is_named_and_not_shown(kafka: GuardedKafka, topic: str) -> None:
    wrong = {**LOGIN, "sasl.password": "open-Sesame-42"}
    sink = KafkaSink(kafka.guarded, topic=topic, name=topic, options=wrong, request_timeout=2)
    with pytest.raises((Misconfigured, SinkUnavailable), match="Authentication failed") as refused:
        sink.look(QUERY)
    assert "open-Sesame-42" not in str(refused.value)


# votes


@pytest.fixture
def granted(kafka: GuardedKafka, topic: str) -> str:
    """The topic, with the rights that a producer needs."""
    kafka.grant(ResourceType.TOPIC, topic, "WRITE", "DESCRIBE")
    kafka.grant(ResourceType.TOPIC, f"__epochal.{APP}.{topic}", "READ", "WRITE", "DESCRIBE")
    kafka.grant(ResourceType.TRANSACTIONAL_ID, f"epochal-{APP}-{topic}", "WRITE", "DESCRIBE")
    return topic


def voting(kafka: GuardedKafka, topic: str, by: Actor = ONE) -> KafkaSink:
    sink = KafkaSink(kafka.guarded, topic=topic, name=topic, options=LOGIN, transaction_timeout=60, votes=True)
    sink.look(QUERY)
    sink.fence(QUERY, by)
    return sink


def prepared(sink: KafkaSink, spark: SparkSession, stage: SparkStage, number: int, by: Actor = ONE) -> Committable:
    copy = stage.write(number, by, spark.range(10).selectExpr("cast(id as string) k", "id n"))
    epoch = Epoch(Decision("q1", number, by, f"f{number}"), number + 1, copy=copy)
    return sink.prepare(epoch, stage.read(copy), by)


@pytest.mark.wide
def test_a_user_who_may_not_read_the_topic_gets_no_vote(
    kafka: GuardedKafka, granted: str, spark: SparkSession, stage: SparkStage, caplog: pytest.LogCaptureFixture
) -> None:
    sink = voting(kafka, granted)
    first = prepared(sink, spark, stage, 0)
    assert first.payload["version"] == 1
    assert f"the user lacks READ on topic {granted!r}" in caplog.text
    assert sink.commit(first, ONE) is CommitOutcome.COMMITTED
    kafka.grant(ResourceType.TOPIC, granted, "READ")
    sink = voting(kafka, granted, TWO)
    second = prepared(sink, spark, stage, 1, TWO)
    assert second.payload["version"] == 2
    assert sink.commit(second, TWO) is CommitOutcome.COMMITTED
    assert len(read_topic(kafka.bootstrap, granted)) == 20


@pytest.mark.wide
@pytest.mark.remedy(
    "the broker answers … to the commit of transaction …",
    "correct what Kafka names (the user's rights on the transactional id), then restart the query",
)
def test_a_right_that_is_taken_between_vote_and_commit(
    kafka: GuardedKafka, granted: str, spark: SparkSession, stage: SparkStage
) -> None:
    kafka.grant(ResourceType.TOPIC, granted, "READ")
    sink = voting(kafka, granted)
    decided = prepared(sink, spark, stage, 0)
    kafka.revoke(ResourceType.TRANSACTIONAL_ID, f"epochal-{APP}-{granted}")
    for end in (lambda: sink.finish(decided), lambda: sink.commit(decided, ONE)):
        with pytest.raises(OutcomeUnknown, match="the broker answers TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            end()
    kafka.grant(ResourceType.TRANSACTIONAL_ID, f"epochal-{APP}-{granted}", "WRITE", "DESCRIBE")
    sink.finish(decided)
    assert voting(kafka, granted, TWO).commit(decided, TWO) is CommitOutcome.ALREADY_COMMITTED
    assert len(read_topic(kafka.bootstrap, granted)) == 10


# how long a transaction may last


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[float]:
    """The seconds that producers ask for."""
    producer, seconds = Link.producer, set[float]()

    def noting(link: Link, transactional_id: str, transaction_timeout: float, more: Options) -> object:
        seconds.add(transaction_timeout)
        return producer(link, transactional_id, transaction_timeout, more)

    monkeypatch.setattr(Link, "producer", noting)
    return seconds


def test_a_transaction_lasts_by_default_no_longer_than_the_broker_allows(
    kafka: GuardedKafka, topic: str, asked: set[float]
) -> None:
    sink = sink_of(kafka.bootstrap, topic)
    sink.check(QUERY, SCHEMA)
    sink.fence(QUERY, ONE)
    assert asked == {60}


def test_a_transaction_lasts_by_default_five_minutes_where_the_broker_allows_more(
    kafka_server: servers.Kafka, topic_name: str, asked: set[float]
) -> None:
    sink = sink_of(kafka_server.bootstrap, topic_name)
    sink.create(QUERY, SCHEMA)
    sink.fence(QUERY, ONE)
    assert asked == {300}


def test_a_user_who_may_not_ask_for_the_maximum_is_told_by_the_broker(kafka: GuardedKafka, topic: str) -> None:
    for name in (topic, f"__epochal.{APP}.{topic}"):
        kafka.grant(ResourceType.TOPIC, name, "READ", "WRITE")
    kafka.grant(ResourceType.TRANSACTIONAL_ID, f"epochal-{APP}-{topic}", "WRITE", "DESCRIBE")
    too_long = sink_of(kafka.guarded, topic, LOGIN)
    too_long.check(QUERY, SCHEMA)
    assert "INVALID_TRANSACTION_TIMEOUT" in str(refusal(lambda: too_long.fence(QUERY, ONE)))
    sink_of(kafka.guarded, topic, LOGIN, timeout=60).fence(QUERY, ONE)
