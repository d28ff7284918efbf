"""What is refused or reported on the way to a Kafka cluster, without a broker."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

from epochal.coordinator.model.epoch import Actor, Committable, Decision, Digest, Epoch, Marker, Query
from epochal.coordinator.model.errors import (
    CheckpointMismatch,
    CommitInDoubt,
    EpochalError,
    Fenced,
    MarkerLost,
    Misconfigured,
    SinkUnavailable,
)
from epochal.sinks import KafkaSink
from epochal.sinks.kafka import (
    applying,
    audit,
    client,
    committing,
    core,
    described,
    encode,
    fencing,
    marker,
    preparing,
    slots,
    topics,
)
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.core import PAYLOAD_VERSION
from epochal.sinks.kafka.inspection import KafkaInspection
from epochal.sinks.kafka.marker import MarkerTopic, PreviousEpoch, State
from epochal.sinks.kafka.topics import Topic, Topics
from epochal.sinks.kafka.transaction import Transaction
from epochal.sinks.kafka.wire import errors
from epochal.sinks.kafka.wire.errors import NotByHand
from epochal.sinks.kafka.wire.options import GUARANTEED, read
from epochal.sinks.protocol import Applied, CommitOutcome

LINK = Link("127.0.0.1:1", "out", 0.2)
PLACE = MarkerTopic("flights", "out")
ONE, TWO = Actor(1, 11), Actor(2, 22)
QUERY = Query("flights", "q1", "r1", "file:/checkpoint")


def test_an_answer_that_does_not_come_is_a_timeout_in_each_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until Python 3.10 that of a future was another error."""

    class Older(Exception):
        pass

    class Silent(Future[str]):
        def result(self, timeout: float | None = None) -> str:
            raise Older(timeout)

    def asked(link: Link) -> str:
        with link.admin() as admin:
            return link.answer(admin, Silent())

    monkeypatch.setattr(client, "FutureTimeout", Older)
    with pytest.raises(SinkUnavailable, match=r"did not answer the request for it within 0\.2 s: TimeoutError"):
        LINK.ask_anew("for it", asked)


@pytest.mark.parametrize("code", sorted(errors.NAMES))
def test_librdkafkas_errors_of_brokers_mean_what_their_codes_mean(code: int) -> None:
    """Both ways to Kafka stop at the same answers, and try again at the same ones."""
    error = KafkaError(code)
    assert (client.is_refused(error), client.is_fenced(error)) == (errors.is_refused(code), errors.is_fenced(code))


def test_librdkafkas_own_errors_are_none_of_brokers() -> None:
    own = [KafkaError(getattr(KafkaError, name)) for name in dir(KafkaError) if name.startswith("_") and name.isupper()]
    assert {each.name() for each in own if client.is_refused(each)} == {*client._REFUSED_HERE}
    assert {each.name() for each in own if client.is_fenced(each)} == {client._FENCED_HERE}


@pytest.mark.parametrize("value", ["all", "-1", -1, "ALL", True, "true", "t", "1", 1, "0", False, "x", None])
@pytest.mark.parametrize("name", GUARANTEED)
def test_a_fixed_option_is_taken_both_ways_or_refused(name: str, value: object) -> None:
    try:
        read({name: value})
        is_taken = value is not None
    except NotByHand:
        is_taken = False
    if is_taken:
        client.check_options({name: value}, "out")
    else:
        with pytest.raises(Misconfigured, match="is fixed"):
            client.check_options({name: value}, "out")


@pytest.mark.remedy("the Kafka client library is missing: …", "pip install 'epochal[kafka]'")
def test_a_missing_client_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(Misconfigured, match="the Kafka client library is missing") as refused:
        client.kafka()
    assert refused.value.help == "pip install 'epochal[kafka]'"
    monkeypatch.undo()  # as if it was installed
    assert client.kafka().__name__ == "confluent_kafka"


@pytest.mark.remedy(
    "the function of options= raised ……",
    "see that what it reads (the environment, a file, a vault) is there",
)
def test_a_function_of_options_that_fails_is_a_misconfiguration_without_its_text() -> None:
    def options() -> dict[str, Any]:
        raise ValueError("open-Sesame-42")

    with pytest.raises(Misconfigured, match="the function of options= raised ValueError") as refused:
        client.read_options(options, "out")
    assert "Sesame" not in str(refused.value)
    with pytest.raises(Misconfigured, match="raised KeyError 'KAFKA_USER'"):
        client.read_options(lambda: dict[str, Any]()["KAFKA_USER"], "out")
    there = {"KAFKA_USER": "me"}
    assert client.read_options(lambda: {"sasl.username": there["KAFKA_USER"]}, "out") == {"sasl.username": "me"}


def test_a_commit_without_a_spark_session_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "running_session", lambda: None)
    with pytest.raises(Misconfigured, match="no Spark session runs in this process"):
        core.active_session("out")


@pytest.mark.parametrize("returned", ["text", 7, {}])
def test_a_value_that_is_not_bytes_is_a_failure_of_its_row(returned: Any) -> None:
    values, failures = encode._Values(lambda: lambda _row, _topic: returned).of([{"id": 1}], ["flights"])
    assert values == [None]
    assert failures == [f"TypeError: a value is bytes or None, and it returned {type(returned).__name__}"]


def test_a_task_writes_for_the_owner_of_the_fence_alone() -> None:
    judge = fencing.judged_by_owner(PLACE, ONE)
    assert judge(State(ONE))
    with pytest.raises(Fenced):
        judge(State(TWO))


@pytest.mark.remedy(
    "two … are named … and …",
    "rename one of them: a column with withColumnRenamed before a join, a field where its struct is made",
)
def test_two_fields_of_one_name_are_refused() -> None:
    """P9: Spark allows it in a struct; a JSON object has each name once, and so has what a function is given."""
    twice = StructType().add("a", LongType()).add("a", LongType())
    nested = {"s": twice, "l": ArrayType(twice), "m": MapType(StringType(), twice)}
    functions: tuple[Any, ...] = (None, lambda: None)
    for value in functions:
        sink = KafkaSink("127.0.0.1:1", topic="flights", name="out", value=value)
        with pytest.raises(Misconfigured, match="two columns are named 'a' and 'a'"):
            sink._core.check_schema(twice)
        for (name, kind), path in zip(nested.items(), ("s.a", "l.element.a", "m.value.a"), strict=True):
            with pytest.raises(Misconfigured, match=f"two fields are named '{path}' and '{path}'"):
                sink._core.check_schema(StructType().add(name, kind))
    cased = StructType().add("s", StructType().add("a", LongType()).add("A", LongType()))
    KafkaSink("127.0.0.1:1", topic="flights", name="out")._core.check_schema(cased)


def test_a_topic_does_not_tell_the_rows_of_a_position() -> None:
    inspection = KafkaInspection(LINK, PLACE, ["flights"], lambda: 1, {}, lambda _: None)
    with pytest.raises(SinkUnavailable, match="the rows of position 3 cannot be found"):
        list(inspection.rows(3, ["id"]))


@pytest.mark.parametrize(
    ("state", "error", "what"),
    [
        (State(ONE, targets={"flights": "old"}), CheckpointMismatch, "topic 'flights' is not the one"),
        (State(ONE, slots=2), Misconfigured, "needs a partition for each of 2 slots"),
    ],
)
def test_a_look_compares_the_topics_with_what_the_marker_says(
    monkeypatch: pytest.MonkeyPatch, state: State, error: type[EpochalError], what: str
) -> None:
    now = Topics("c", {"flights": Topic("flights", "new", 1, 1, None, {})}, Topic("m", "id", 1, 1, None, {}))
    monkeypatch.setattr(topics, "describe", lambda *_: now)
    monkeypatch.setattr(slots, "read_all", lambda *_: state)
    with pytest.raises(error, match=what):
        KafkaSink("127.0.0.1:1", topic="flights", name="out").look(QUERY)


def test_an_epoch_that_is_shown_is_told_so_once_older_producers_are_barred(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Spark session, no topic and no rows are needed for that, also where they are gone."""
    decision, barred = Decision("q1", 0, ONE, "f"), list[int]()
    sink = KafkaSink("127.0.0.1:1", topic="flights", name="out")
    vote = Committable("out", decision, 1, 10, {"version": PAYLOAD_VERSION})
    shown = State(ONE, Marker(1, decision.id), slots=2)
    sink._core.looked = PLACE, cast("Any", None)
    monkeypatch.setattr(slots, "read_all", lambda *_: shown)
    monkeypatch.setattr(committing, "bar_and_read", lambda *given: barred.append(given[3]))
    assert sink.commit(vote, ONE) is CommitOutcome.ALREADY_COMMITTED
    assert barred == [2]
    with pytest.raises(Fenced):
        sink.commit(vote, TWO)


def test_an_epoch_that_is_shown_is_not_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    epoch, digest = Epoch(Decision("q1", 0, ONE, "f"), 1), Digest(10, 7)
    shown = State(ONE, Marker(1, epoch.decision.id, digest))
    sink = KafkaSink("127.0.0.1:1", topic="flights", name="out")
    sink._core.looked = PLACE, cast("Any", None)
    monkeypatch.setattr(slots, "read_all", lambda *_: shown)
    monkeypatch.setattr(applying, "bar_and_read", lambda *_: shown)
    never = cast("Any", None)
    assert sink.apply(epoch, never, ONE, None) == Applied(CommitOutcome.ALREADY_COMMITTED, digest)
    with pytest.raises(Fenced):
        sink.apply(epoch, never, TWO, None)


def test_only_the_owner_of_the_fence_says_what_slots_show_before_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Marker(1, 7)
    monkeypatch.setattr(slots, "read_all", lambda *_: State(ONE, before, slots=2, span=2))
    sink, epoch = KafkaSink("127.0.0.1:1", topic="flights", name="out", slots=2), Epoch(Decision("q1", 1, ONE, "f"), 2)
    cut = preparing.cut_of(sink._core, PLACE, epoch, ONE)
    assert cut == {"span": 2, "before": PreviousEpoch(before, 2).to_json()}
    with pytest.raises(Fenced):
        preparing.cut_of(sink._core, PLACE, epoch, TWO)
    with pytest.raises(MarkerLost):
        preparing.cut_of(sink._core, PLACE, replace(epoch, position=4), ONE)


def test_a_vote_of_a_newer_epochal_is_refused_before_a_broker_is_asked() -> None:
    newer = Committable("out", Decision("q1", 0, ONE, "f"), 1, 10, {"version": PAYLOAD_VERSION + 1})
    with pytest.raises(CommitInDoubt, match="prepared by a newer Epochal"):
        KafkaSink("127.0.0.1:1", topic="flights", name="out").commit(newer, ONE)


@pytest.mark.remedy(
    "another start fenced the sink at the same time, in each of … attempts", "start one query per app and sink"
)
def test_a_fence_that_others_always_overtake_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Actor] = []

    def overtaken(*given: Any) -> bool:
        tried.append(given[3])
        return False

    monkeypatch.setattr(fencing, "write_fence", overtaken)
    monkeypatch.setattr(marker, "read", lambda *_, **__: State(ONE))
    monkeypatch.setattr("time.sleep", lambda _: None)
    sink = KafkaSink("127.0.0.1:1", topic="flights", name="out")
    with pytest.raises(SinkUnavailable, match="in each of 10 attempts"):
        sink.fence(QUERY, TWO)
    assert tried == [TWO] * fencing.FENCE_ATTEMPTS
    monkeypatch.setattr(fencing, "write_fence", lambda *_: True)  # nobody else any more
    monkeypatch.setattr(marker, "read", lambda *_, **__: State(TWO))
    sink.fence(QUERY, TWO)


@pytest.mark.remedy(
    "the marker could not be written in … attempts",
    "end what else uses the transactional id …, then repeat the command",
)
def test_a_marker_that_is_never_seen_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Marker | None] = []

    def refused(*given: Any) -> bool:
        tried.append(given[3])
        return False

    monkeypatch.setattr(fencing, "has_marked", refused)
    monkeypatch.setattr("time.sleep", lambda _: None)
    sink = KafkaSink("127.0.0.1:1", topic="flights", name="out")
    with pytest.raises(SinkUnavailable, match="the marker could not be written in 10 attempts"):
        sink.mark(QUERY, Marker(1, 7), ONE)
    assert tried == [Marker(1, 7)] * fencing.FENCE_ATTEMPTS
    monkeypatch.setattr(fencing, "has_marked", lambda *_: True)
    sink.mark(QUERY, Marker(1, 7), ONE)


# --- admin requests ----------------------------------------------------------------------------------------


class Asked(Link):
    """A link whose brokers answer with their nodes, and with this error when they are asked for settings."""

    code = KafkaError.UNKNOWN_TOPIC_OR_PART

    @contextmanager
    def admin(self) -> Iterator[Any]:
        yield SimpleNamespace(
            describe_cluster=lambda **_: SimpleNamespace(nodes=[SimpleNamespace(id=1)]),
            describe_configs=lambda resources, **_: dict.fromkeys(resources),
            create_partitions=lambda new, **_: {each.topic: "made" for each in new},
        )

    def answer(self, admin: Any, future: Any) -> Any:
        del admin
        if future is None:
            raise KafkaException(KafkaError(self.code))
        return future


class MayNotAsk(Asked):
    code = KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_the_longest_transaction_is_unknown_only_where_a_right_is_missing() -> None:
    assert topics._longest_transaction(MayNotAsk("127.0.0.1:1", "out", 0.2)) is None
    with pytest.raises(KafkaException):
        topics._longest_transaction(Asked("127.0.0.1:1", "out", 0.2))


def test_partitions_that_no_broker_reports_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_await", lambda _link, name: Topic(name, "id", 1, 1, None, {}))
    with pytest.raises(SinkUnavailable, match="topic 'flights' was given 2 partitions, and no broker reports them"):
        topics._grow(Asked("127.0.0.1:1", "out", 0.2), "flights", 2)


def test_with_options_of_librdkafka_alone_coordinators_are_not_asked() -> None:
    kerberos = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}
    assert described.of_ids(Link("127.0.0.1:1", "out", 0.2, kerberos), ["x"]) is None


class Silent(Link):
    """A link whose consumers get no answer in time."""

    @contextmanager
    def consumer(self, isolation: str = "read_committed") -> Iterator[Any]:
        del isolation
        yield SimpleNamespace(get_watermark_offsets=lambda *_, **__: None)


def test_offsets_that_no_broker_tells_in_time_are_an_error() -> None:
    """The client documents None for that."""
    link = Silent("127.0.0.1:1", "out", 0.2)
    with link.consumer() as consumer, pytest.raises(TimeoutError, match=r"no offsets of __epochal\.flights\.out"):
        marker._ends(link, PLACE, consumer)
    inspection = KafkaInspection(link, PLACE, ["flights"], lambda: 1, {}, lambda _: None)
    with pytest.raises(TimeoutError, match="no offsets of flights"):
        inspection._end("flights", 0, "read_committed")


class Refusing:
    """A consumer that gets this error first, and then the end of the partition."""

    def __init__(self, code: int) -> None:
        self._told = [KafkaError(code), KafkaError(KafkaError._PARTITION_EOF)]

    def assign(self, partitions: list[Any]) -> None:
        """Take any partition."""

    def poll(self, _seconds: float) -> Any:
        told = self._told.pop(0)
        return SimpleNamespace(error=lambda: told, offset=lambda: 1)


def test_a_broker_that_refuses_a_read_is_not_asked_again() -> None:
    """An error of the client itself (below 0) passes, and so does that of a group, which nobody joins."""

    def read(code: int) -> list[Any]:
        return list(marker.records(LINK, PLACE, cast("Any", Refusing(code)), 0, 1))

    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        read(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert read(KafkaError._TRANSPORT) == read(KafkaError.GROUP_AUTHORIZATION_FAILED) == []


class Untimed(Link):
    """A link whose brokers refuse to tell the offset of a time."""

    @contextmanager
    def consumer(self, isolation: str = "read_committed") -> Iterator[Any]:
        del isolation
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        yield SimpleNamespace(offsets_for_times=lambda *_, **__: [SimpleNamespace(error=error, offset=-1)])


def test_a_time_whose_offset_is_refused_is_an_error_and_no_reason_to_keep_all(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = SimpleNamespace(timestamp=lambda: (1, 1_000_000), offset=lambda: 7)
    monkeypatch.setattr(marker, "read_back", lambda *_: [[newest]])
    with pytest.raises(Misconfigured, match="TOPIC_AUTHORIZATION_FAILED"):
        audit.kept_since(Untimed("127.0.0.1:1", "out", 0.2), PLACE, 1)


# --- a producer --------------------------------------------------------------------------------------------


class Full:
    """A client whose brokers take nothing.  It ends a loop that has no end of its own."""

    polls = 0

    def produce(self, *_: Any) -> None:
        raise BufferError("Local: Queue full")

    def poll(self, _seconds: float) -> int:
        self.polls += 1
        assert self.polls < 1000, "the wait has no end"
        time.sleep(0.02)
        return 0

    def flush(self, _seconds: float) -> int:
        return self.poll(0) + 1


@pytest.fixture
def transaction() -> Iterator[Transaction]:
    made = Transaction(LINK, PLACE, 1.0, {"log_level": 0})
    yield made
    made.drop()


def test_a_producer_is_of_one_process(transaction: Transaction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: transaction._pid + 1)
    with pytest.raises(Misconfigured, match=r"was used in process .*, after a fork"):
        transaction.begin()
    monkeypatch.undo()


def test_a_dropped_producer_is_not_used(transaction: Transaction) -> None:
    transaction.drop()
    with pytest.raises(Misconfigured, match="a dropped producer was used"):
        transaction.begin()


@pytest.mark.parametrize("row", [(None, b"value"), (None, b"value", (None, 0, None))])
def test_brokers_that_take_nothing_are_waited_for_as_long_as_the_transaction_lasts(
    transaction: Transaction, row: Any
) -> None:
    full = Full()
    transaction._made, transaction._timeout, transaction._began = cast("Any", full), 0.2, time.monotonic()
    with pytest.raises(TimeoutError, match=r"the brokers took no row for 0\.2 s"):
        transaction.send("flights", [row])
    assert transaction.is_overdue
    assert full.polls > 1
    with pytest.raises(TimeoutError, match=r"the brokers had not taken all rows after 0\.2 s"):
        transaction.flush()
