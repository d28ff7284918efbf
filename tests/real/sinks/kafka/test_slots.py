"""Several transactions per epoch on a real broker: who shows what, growth, shrinking, and zombies in every slot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from epochal.chaos import servers
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Decision, Epoch, Marker
from epochal.coordinator.model.errors import CheckpointMismatch, Fenced, MarkerLost, Misconfigured
from epochal.coordinator.model.failpoints import FailpointError, Point
from epochal.sinks.kafka import KafkaSink, committing, fencing, marker, produce
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.marker import MarkerTopic, PreviousEpoch, State
from epochal.sinks.kafka.produce import AttemptResult, Outcome, Plan
from epochal.sinks.kafka.transaction import Row, Transaction
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY, TWO
from tests.real.sinks.kafka.support import APP, OPTIONS, hanging, read_topic

THREE = Actor(3, 33)


class Slots:
    """One topic of four partitions with a sink of so many slots on it, fenced by ``ONE``, and plans for each slot."""

    def __init__(self, bootstrap: str, topic: str, slots: int = 2) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.sink = self.of(slots)
        self.marker_topic, self.link = MarkerTopic(APP, topic), Link(bootstrap, topic, 30, OPTIONS)
        self.sink.create(QUERY, None)
        self.sink.look(QUERY)
        self.sink.fence(QUERY, ONE)

    def of(self, slots: int, **more: Any) -> KafkaSink:
        """The same sink with so many slots."""
        settings = {"topic": self.topic, "name": self.topic, "options": OPTIONS, "partitions": 4, **more}
        return KafkaSink(self.bootstrap, slots=slots, **settings)

    def plan(
        self, epoch: int, slot: int, values: Sequence[str], *, span: int = 2, before_span: int = 2, by: Actor = ONE
    ) -> Plan:
        """Of epoch n of ``ONE`` at position n + 1, what one slot does."""
        before = marker_of(epoch - 1) if epoch else None
        return Plan(
            link=self.link,
            marker_topic=self.marker_topic.of_slot(slot),
            topics=(self.topic,),
            by=by,
            decision=decision(epoch).id,
            position=epoch + 1,
            epoch=epoch,
            rows=len(values),
            partitioner="murmur2_random",
            max_message_bytes=(1_000_000,),
            transaction_timeout=60,
            about={"decision": decision(epoch).to_json()},
            span=span,
            before=PreviousEpoch(before, before_span if before is not None else 0),
        )

    def write(self, epoch: int, slot: int, *values: str, **more: Any) -> AttemptResult:
        """One attempt; rows of a slot go to the partition of its number."""
        records: list[Row] = [(v.encode(), v.encode(), (None, slot, None)) for v in values]
        return produce.attempt(self.plan(epoch, slot, values, **more), [records])

    def seen(self) -> list[tuple[int, str]]:
        """Partition and value of all that a read_committed consumer sees."""
        return [(r.partition, (r.value or b"").decode()) for r in read_topic(self.bootstrap, self.topic)]

    def positions(self) -> list[int | None]:
        """Where each slot stands."""
        records = read_topic(self.bootstrap, self.marker_topic.topic)
        newest = {r.partition: marker.parse(self.marker_topic, r.value).marker for r in records}
        return [found.position if found is not None else None for _, found in sorted(newest.items())]


def decision(epoch: int) -> Decision:
    return Decision("q1", epoch, ONE, f"fingerprint-{epoch}")


def marker_of(epoch: int) -> Marker:
    return Marker(epoch + 1, decision(epoch).id)


@pytest.fixture
def two(kafka_server: servers.Kafka, topic: str) -> Slots:
    return Slots(kafka_server.bootstrap, topic)


class Held:
    """The first attempt that comes to ``point`` stands there until it is let go."""

    def __init__(self, point: Point) -> None:
        self._point, self._reached, self._go = point, threading.Event(), threading.Event()
        self._first = threading.Lock()

    def start(self, pool: ThreadPoolExecutor, attempt: Callable[[], AttemptResult]) -> Future[AttemptResult]:
        running = pool.submit(attempt)
        assert self._reached.wait(60)
        return running

    def let_go(self) -> None:
        self._go.set()

    def __call__(self, at: Point, _sink: str, _epoch: int) -> None:
        if at is self._point and self._first.acquire(blocking=False):
            self._reached.set()
            assert self._go.wait(120)


# what is shown


def test_an_epoch_is_shown_when_every_slot_has_it(two: Slots) -> None:
    for slot, shown in ((1, None), (0, marker_of(0))):
        assert two.write(0, slot, f"a{slot}") == AttemptResult(Outcome.COMMITTED)
        assert two.sink.look(QUERY).marker == two.sink.look(QUERY, by=ONE).marker == shown
    for slot, shown in ((0, marker_of(0)), (1, marker_of(1))):
        assert two.write(1, slot, f"b{slot}") == AttemptResult(Outcome.COMMITTED)
        assert two.sink.look(QUERY).marker == two.sink.look(QUERY, by=ONE).marker == shown
    assert two.seen() == [(0, "a0"), (0, "b0"), (1, "a1"), (1, "b1")]
    assert two.positions() == [2, 2]


def test_an_epoch_that_not_every_slot_shows_is_not_told(two: Slots) -> None:
    def told() -> list[int]:
        return [row.position for row in two.sink.epochs(QUERY.app)]

    two.write(0, 0, "a")
    assert told() == []
    two.write(0, 1)
    assert told() == [1]
    two.write(1, 0, "b")
    two.sink.fence(QUERY, TWO)
    assert told() == [1]
    two.write(1, 1, by=TWO)
    assert told() == [1, 2]
    keys = [(r.partition, r.key) for r in read_topic(two.bootstrap, two.marker_topic.topic) if r.key != b"fence"]
    assert keys == [(0, b"marker-1"), (0, b"marker-2"), (1, b"marker"), (1, b"marker")]


def test_a_fence_keeps_what_every_slot_shows(two: Slots) -> None:
    two.write(0, 0, "a")
    two.write(0, 1)
    two.write(1, 1, "b")
    two.sink.fence(QUERY, TWO)
    assert two.sink.look(QUERY, by=TWO).marker == marker_of(0)
    assert two.write(1, 1, "b", by=TWO).outcome is Outcome.ALREADY_COMMITTED
    assert two.write(1, 0, "c", by=TWO).outcome is Outcome.COMMITTED
    assert two.sink.look(QUERY, by=TWO).marker == marker_of(1)


def test_a_look_waits_for_no_slot(two: Slots) -> None:
    two.write(0, 0, "a")
    running = Transaction(two.link, two.marker_topic.of_slot(1), 60, {})
    running.init()
    running.begin()
    running.send_state(b"marker", State(ONE, marker_of(0), slots=2, span=2))
    running.flush()
    assert two.sink.look(QUERY).marker is None
    running.commit()
    running.drop()
    assert two.sink.look(QUERY, by=ONE).marker == marker_of(0)


# zombies and twins of a slot


@pytest.mark.parametrize("slot", [0, 1])
def test_a_late_twin_of_a_slot_finds_it_committed(two: Slots, slot: int) -> None:
    two.write(0, slot, "a")
    assert two.write(0, slot, "a") == AttemptResult(Outcome.ALREADY_COMMITTED)
    assert two.seen() == [(slot, "a")]


@pytest.mark.parametrize("slot", [0, 1])
def test_a_late_task_of_an_earlier_epoch_writes_nothing_in_its_slot(two: Slots, slot: int) -> None:
    for epoch in (0, 1):
        for each in (0, 1):
            two.write(epoch, each)
    answer = two.write(0, slot, "a")
    assert isinstance(answer.error, CheckpointMismatch)
    assert two.seen() == []


@pytest.mark.parametrize("slot", [0, 1])
def test_a_slot_that_lacks_the_epoch_before_writes_nothing(two: Slots, slot: int) -> None:
    answer = two.write(1, slot, "b")
    assert isinstance(answer.error, MarkerLost)
    assert two.seen() == []


def test_a_new_slot_that_is_not_new_writes_nothing(two: Slots) -> None:
    two.write(0, 1)
    answer = two.write(1, 1, "b", before_span=1)
    assert isinstance(answer.error, CheckpointMismatch)
    assert two.seen() == []


@pytest.mark.parametrize("slot", [0, 1])
def test_a_task_of_a_fenced_driver_writes_nothing_in_its_slot(two: Slots, slot: int) -> None:
    two.sink.fence(QUERY, TWO)
    assert isinstance(two.write(0, slot, "a").error, Fenced)
    assert two.seen() == []


@pytest.mark.parametrize("slot", [0, 1])
def test_a_fence_ends_the_transaction_of_an_older_task_in_every_slot(two: Slots, slot: int) -> None:
    held = Held(Point.BEFORE_PUBLISH)
    with failpoints.handler(held), ThreadPoolExecutor(1) as pool:
        old = held.start(pool, lambda: two.write(0, slot, "a"))
        two.sink.fence(QUERY, TWO)
        assert hanging(two.bootstrap, two.topic) == []
        held.let_go()
        assert isinstance(old.result().error, Fenced)
    assert two.seen() == []


def test_a_task_that_comes_while_the_fence_is_written_shows_nothing_after_it(
    two: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the older fence; its slot is barred once more, after the record."""
    held, send, old = Held(Point.BEFORE_PUBLISH), Transaction.send_state, list[Future[AttemptResult]]()
    with failpoints.handler(held), ThreadPoolExecutor(1) as pool:

        def late(transaction: Transaction, key: bytes, *state: Any) -> None:
            if key == b"fence" and not old:
                old.append(held.start(pool, lambda: two.write(0, 1, "a")))
            send(transaction, key, *state)

        monkeypatch.setattr(Transaction, "send_state", late)
        two.sink.fence(QUERY, TWO)
        held.let_go()
        assert isinstance(old[0].result().error, Fenced)
    assert two.seen() == []
    assert two.sink.look(QUERY, by=TWO).marker is None


def test_a_fence_that_broke_off_is_finished_when_it_is_repeated(two: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(Point.BEFORE_PUBLISH)
    with failpoints.handler(held), ThreadPoolExecutor(1) as pool:
        old = held.start(pool, lambda: two.write(0, 1, "a"))
        bar_producer = fencing.bar_producer

        def breaks(*_: object) -> None:
            monkeypatch.setattr(fencing, "bar_producer", bar_producer)
            raise FailpointError("boom")

        monkeypatch.setattr(fencing, "bar_producer", breaks)
        with pytest.raises(FailpointError):
            two.sink.fence(QUERY, TWO)
        two.sink.fence(QUERY, TWO)
        held.let_go()
        assert isinstance(old.result().error, Fenced)
    assert two.seen() == []


def test_a_slot_waits_for_no_other(two: Slots) -> None:
    """The first one holds its marker, not yet committed, in the partition where the fence is."""
    held = Held(Point.BEFORE_PUBLISH)
    with failpoints.handler(held), ThreadPoolExecutor(1) as pool:
        first = held.start(pool, lambda: two.write(0, 0, "a"))
        assert two.write(0, 1, "b") == AttemptResult(Outcome.COMMITTED)
        held.let_go()
        assert first.result() == AttemptResult(Outcome.COMMITTED)
    assert two.seen() == [(0, "a"), (1, "b")]


@pytest.mark.remedy(
    "slot … shows …; it must show the newest epoch or …",
    "a partition of the marker topic has lost records: restore it; nothing was written",
)
@pytest.mark.parametrize("slot", [0, 1])
def test_a_partition_that_has_lost_a_marker_is_noticed_before_anything_is_written(two: Slots, slot: int) -> None:
    for epoch in (0, 1, 2):
        for each in (0, 1):
            two.write(epoch, each)
    newest = [r.value for r in read_topic(two.bootstrap, two.marker_topic.topic) if r.partition == slot][-1]
    older = marker.record(two.marker_topic, State(ONE, marker_of(0), slots=2, span=2))
    plain = Producer({"bootstrap.servers": two.bootstrap, "acks": "all"})
    plain.produce(two.marker_topic.topic, older, b"marker", slot)
    assert plain.flush(20) == 0
    for by in (None, ONE):
        with pytest.raises(MarkerLost, match=f"slot {slot} shows position 1"):
            two.sink.look(QUERY, by=by)
    plain.produce(two.marker_topic.topic, newest, b"marker", slot)
    assert plain.flush(20) == 0
    assert two.sink.look(QUERY, by=ONE).marker == marker_of(2)


# growth and shrinking between starts


def start(sink: KafkaSink, by: Actor) -> KafkaSink:
    """As a start does: look, fence, look again."""
    sink.create(QUERY, None)
    sink.look(QUERY)
    sink.fence(QUERY, by)
    sink.look(QUERY, by=by)
    return sink


class Written:
    """Epochs of rows that Spark makes, through whichever sink."""

    def __init__(self, spark: SparkSession, stage: SparkStage) -> None:
        self.spark, self.stage, self.epoch = spark, stage, 0

    def prepare(self, sink: KafkaSink, by: Actor, rows: int = 40) -> Committable:
        n = self.epoch
        epoch = Epoch(Decision("q1", n, by, f"f{n}"), n + 1)
        first = n * 1000
        made = self.spark.range(first, first + rows, numPartitions=2).selectExpr(
            "if(id % 4 = 3, null, string(id)) AS k", "string(id) AS v"
        )
        copy = self.stage.write(n, by, made)
        self.epoch += 1
        return Committable.from_json(sink.prepare(replace(epoch, copy=copy), self.stage.read(copy), by).to_json())


@pytest.mark.timeout(600)
def test_slots_grow_and_shrink_between_starts_with_an_epoch_in_doubt(
    kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    """1 to 3 to 1 to 2: each epoch is finished with the slots that it was prepared with, by a start with others."""
    target = Slots(kafka_server.bootstrap, topic, 1)
    written, options = Written(spark, stage), {"key": "k", "value": "v"}
    one = target.of(1, **options)
    one.look(QUERY)
    assert one.commit(written.prepare(one, ONE), ONE) is CommitOutcome.COMMITTED
    with pytest.raises(Misconfigured, match="needs a partition for each of 3 slots"):
        target.of(3, **options).look(QUERY)

    three = start(target.of(3, **options), TWO)
    assert three.look(QUERY, by=TWO).marker is not None
    in_doubt = written.prepare(three, TWO)
    assert (len(in_doubt.payload["staged"]), in_doubt.payload["slots"]["span"]) == (3, 3)
    last = committing.plans_of(three._core, three._core.link(), target.marker_topic, in_doubt, TWO)[2]
    assert committing.attempt_once(three._core, last, in_doubt).outcome is Outcome.COMMITTED
    assert target.positions() == [1, 2]  # the first and the last slot; the other has none as yet

    shrunk = start(target.of(1, **options), THREE)
    before = shrunk.look(QUERY, by=THREE).marker
    assert before is not None
    assert before.position == 1
    assert shrunk.commit(in_doubt, THREE) is CommitOutcome.COMMITTED
    assert shrunk.commit(in_doubt, THREE) is CommitOutcome.ALREADY_COMMITTED
    for position in (3, 4):
        assert shrunk.commit(written.prepare(shrunk, THREE), THREE) is CommitOutcome.COMMITTED
        assert target.positions() == [position] * 3

    grown = start(target.of(2, **options), Actor(4, 44))
    assert grown.commit(written.prepare(grown, Actor(4, 44), rows=0), Actor(4, 44)) is CommitOutcome.COMMITTED
    assert grown.commit(written.prepare(grown, Actor(4, 44)), Actor(4, 44)) is CommitOutcome.COMMITTED
    assert target.positions() == [6] * 3
    assert sorted(int(value) for _, value in target.seen()) == [
        n for epoch in (0, 1, 2, 3, 5) for n in range(epoch * 1000, epoch * 1000 + 40)
    ]


@pytest.mark.timeout(600)
def test_rows_keep_partition_and_order_whatever_the_slots(
    kafka_server: servers.Kafka, topic: str, spark: SparkSession, stage: SparkStage
) -> None:
    """By key where one slot puts them; rows of one partition of the batch in their order."""
    target = Slots(kafka_server.bootstrap, topic, 1)
    options = {"key": "k", "value": "v"}
    one, three = target.of(1, **options), target.of(3, **options)
    rows = spark.range(0, 4, numPartitions=4).selectExpr("concat('key-', id) AS k", "explode(sequence(0, 9999)) AS n")
    rows = rows.selectExpr("k", "string(n) AS v")
    epoch = Epoch(Decision("q1", 0, ONE, "f0"), 1)
    copy = stage.write(0, ONE, rows)
    one.look(QUERY)
    assert one.commit(one.prepare(replace(epoch, copy=copy), stage.read(copy), ONE), ONE) is CommitOutcome.COMMITTED
    first = read_topic(kafka_server.bootstrap, topic)

    start(three, TWO)
    second = Epoch(Decision("q1", 1, TWO, "f1"), 2, copy=copy)
    committable = three.prepare(second, stage.read(copy), TWO)
    with AdminClient({"bootstrap.servers": kafka_server.bootstrap}) as admin:
        admin.create_partitions([NewPartitions(topic, 6)])[topic].result(120)  # decided rows stay where they were put
    assert three.commit(committable, TWO) is CommitOutcome.COMMITTED
    all_rows = read_topic(kafka_server.bootstrap, topic)
    for partition in range(4):
        mine = [(r.key, r.value) for r in all_rows if r.partition == partition]
        assert mine[: len(mine) // 2] == [(r.key, r.value) for r in first if r.partition == partition]
        for key in {key for key, _ in mine}:
            values = [int(value or b"") for k, value in mine if k == key]
            assert values == [*range(10_000), *range(10_000)]
    assert not [r for r in all_rows if r.partition > 3]


@pytest.mark.parametrize("now", [1, 2])
def test_the_marker_of_a_sink_that_ever_had_slots_is_not_written_by_hand(two: Slots, now: int) -> None:
    with pytest.raises(Misconfigured, match=r"was used with slots=2, each with a marker of its own"):
        two.of(now).check_mark(QUERY)
