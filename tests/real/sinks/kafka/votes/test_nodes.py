"""Votes on three brokers of which one at a time is killed, paused or relieved, in each step of an epoch."""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos.servers.kafka_nodes import TRANSACTIONS, KafkaNodes, state_partition
from epochal.chaos.servers.process import wait_until
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Committable
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.kafka import KafkaSink, topics
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.marker import MarkerTopic
from epochal.sinks.kafka.topics import Declared
from epochal.sinks.kafka.wire import messages
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.connection import Connection
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, PATIENT_S
from tests.real.sinks.kafka.support import APP, OPTIONS, bar, hanging, read_topic
from tests.real.sinks.kafka.votes.test_votes import ALREADY, COMMITTED, Votes

pytestmark = pytest.mark.wide
PARTITIONS = 4
FEW = 200
"""So few rows that the driver delivers them."""
MANY = 8_000
"""So many rows, more than 1 MB, that tasks deliver them."""
BATCHES = {**OPTIONS, "batch.num.messages": 6, "batch.size": 20_000}
"""Options with which each partition gets some dozens of batches."""
SEEN_S = 60.0
Strike = Callable[[], object]


class Wide(Votes):
    """Rows of 200 bytes, and what both kinds of readers see of them."""

    nodes: KafkaNodes

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.spans: list[tuple[int, int]] = []  # of ids, one per epoch

    def rows(self, first: int, last: int) -> DataFrame:
        self.spans.append((first, last))
        return super().rows(first, last).selectExpr("*", "repeat('x', 200) as wide")

    @property
    def transactional_id(self) -> str:
        return f"epochal-{APP}-{self.topic}"

    def leader(self) -> int:
        return self.nodes.leader_of(self.topic, 0)

    def coordinator(self) -> int:
        return self.nodes.coordinator_of(self.transactional_id)

    def epoch(self, number: int, first: int, last: int, **options: Any) -> None:
        decided = self.prepare(number, first, last, **options)
        assert decided.payload["version"] == 2
        assert self.sink.commit(decided, ONE) in (COMMITTED, ALREADY)

    def check(self, rows: int, positions: int, *, written_once: bool = True) -> None:
        """Ids up to ``rows`` are there once, in order.  ``written_once``: no transaction was begun a second time."""
        names = [self.topic, f"__epochal.{APP}.{self.topic}"]
        assert wait_until(lambda: None if hanging(self.bootstrap, *names) else True, SEEN_S), "something hangs"
        # A leader that was just elected may show less for a moment: it does not know yet what its followers have.
        assert wait_until(lambda: len(self.seen()) >= rows or None, SEEN_S), f"{rows - len(self.seen())} rows lost"
        found = read_topic(self.bootstrap, self.topic)
        assert sorted(int(r.key or b"") for r in found) == list(range(rows))
        for partition in {r.partition for r in found}:
            self.check_order([int(r.key or b"") for r in found if r.partition == partition])
        assert self.position() == positions
        if written_once:
            assert read_topic(self.bootstrap, self.topic, "read_uncommitted") == found

    def check_order(self, ids: list[int]) -> None:
        """Of one partition: epoch after epoch, and of each Spark partition row after row."""
        epochs = [bisect_right([first for first, _ in self.spans], i) for i in ids]
        assert epochs == sorted(epochs)
        for first, last in self.spans:
            for part in range(4):
                span = range(first + part * (last - first) // 4, first + (part + 1) * (last - first) // 4)
                mine = [i for i in ids if i in span]
                assert mine == sorted(mine)


class Several(Wide):
    """Each row names one of two topics."""

    def another(self, **options: Any) -> KafkaSink:
        return KafkaSink(self.bootstrap, topic="place", name=self.topic, **{**self.options, **options})


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaNodes]:
    with KafkaNodes() as nodes:
        yield nodes


@pytest.fixture
def nodes(cluster: KafkaNodes) -> KafkaNodes:
    """All three nodes, with everything in sync, whatever the test before left."""
    for number, node in cluster.nodes.items():
        cluster.resume(number)
        if not node.running():
            cluster.restart(number)
    cluster.await_in_sync()
    return cluster


MakeWide = Callable[..., Wide]


@pytest.fixture
def votes(spark: SparkSession, nodes: KafkaNodes, topic_name: str, stage: SparkStage) -> Iterator[MakeWide]:
    def make(kind: type[Wide] = Wide, **options: Any) -> Wide:
        made = kind(
            spark,
            nodes.bootstrap,
            topic_name,
            stage,
            **{"partitions": PARTITIONS, "options": BATCHES, "request_timeout": PATIENT_S, **options},
        )
        made.nodes = nodes
        return made

    yield make
    if nodes.running():
        bar(nodes.bootstrap, topic_name)


# how a strike comes at its moment


@contextmanager
def at(point: Point, strike: Strike, nth: int = 1) -> Iterator[None]:
    """Strike when this process is at ``point`` for the nth time; the block must come there."""
    hits = 0

    def handle(hit: Point, _sink: str, _epoch: int) -> None:
        nonlocal hits
        hits += hit is point
        if hit is point and hits == nth:
            strike()

    with failpoints.handler(handle):
        yield
    assert hits >= nth, f"{point} was passed {hits} times"


@contextmanager
def in_a_task(one: Wide, folder: Path, strike: Strike, nth: int = 5) -> Iterator[None]:
    """Strike while a task that delivers waits after its nth answer."""
    folder.mkdir()
    blocked, go = folder / "0.blocked", folder / "0.go"
    rule = f"in-write@{one.topic}#{nth}=barrier"

    def act() -> None:
        try:
            assert wait_until(lambda: blocked.exists() or None, SEEN_S), "no task came there"
            assert json.loads(blocked.read_text())["pid"] > 0
            strike()
        finally:
            go.touch()

    environment = one.spark.sparkContext.environment
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
        patch.setitem(environment, failpoints.ENVIRONMENT, rule)
        patch.setitem(environment, failpoints.FOLDER, str(folder))
        struck = thread.submit(act)
        yield
        struck.result(SEEN_S)


@contextmanager
def before_partitions_are_added(strike: Strike) -> Iterator[None]:
    """Strike between InitProducerId and the first AddPartitionsToTxn."""
    add, left = Cluster.add_partitions, [strike]

    def struck(self: Cluster, *arguments: Any, **named: Any) -> None:
        while left:
            left.pop()()
        add(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "add_partitions", struck)
        yield
    assert not left


@contextmanager
def after_sending_the_end(strike: Strike) -> Iterator[None]:
    """Strike when the first EndTxn was sent and before its answer is read."""
    send, left = Connection.send, [strike]

    def struck(self: Connection, api: int, *arguments: Any, **named: Any) -> None:
        send(self, api, *arguments, **named)
        while api == messages.END_TXN.api and left:
            left.pop()()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "send", struck)
        yield
    assert not left


class Later:
    """Things to do in a thread, while something else waits for them."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def do(self, *steps: Strike) -> None:
        def run() -> None:
            for step in steps:
                step()

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(2 * SEEN_S)
            assert not thread.is_alive()


# a leader is killed


@pytest.mark.parametrize("rows", [FEW, MANY])
def test_a_leader_is_killed_in_mid_delivery(votes: MakeWide, nodes: KafkaNodes, tmp_path: Path, rows: int) -> None:
    one = votes()
    one.epoch(0, 0, 40)
    victim = one.leader()

    def kill() -> None:
        nodes.kill(victim)

    with in_a_task(one, tmp_path / "faults", kill) if rows == MANY else at(Point.IN_WRITE, kill, nth=5):
        decided = one.prepare(1, 40, rows)
    assert one.sink.commit(decided, ONE) is COMMITTED
    one.check(rows, 2)
    nodes.restart(victim)
    nodes.await_in_sync()
    one.epoch(2, rows, rows + 40)
    one.check(rows + 40, 3)


# the coordinator is killed


@pytest.mark.parametrize("step", ["init", "delivery", "tasks", "vote", "before-end", "end-sent", "end-answered"])
def test_the_coordinator_is_killed(votes: MakeWide, nodes: KafkaNodes, tmp_path: Path, step: str) -> None:
    one = votes()
    one.epoch(0, 0, 40)
    victim = one.coordinator()

    def kill() -> None:
        nodes.kill(victim)

    in_prepare = {
        "init": lambda: before_partitions_are_added(kill),
        "delivery": lambda: at(Point.IN_WRITE, kill, nth=5),
        "tasks": lambda: in_a_task(one, tmp_path / "faults", kill),
        "vote": lambda: at(Point.BEFORE_VOTE, kill),
    }
    in_commit = {
        "before-end": lambda: at(Point.BEFORE_PUBLISH, kill),
        "end-sent": lambda: after_sending_the_end(kill),
        "end-answered": lambda: at(Point.AFTER_PUBLISH, kill),
    }
    last = MANY if step == "tasks" else FEW
    if step in in_prepare:
        with in_prepare[step]():
            decided = one.prepare(1, 40, last)
        outcome = one.sink.commit(decided, ONE)
    else:
        decided = one.prepare(1, 40, last)
        with in_commit[step]():
            outcome = one.sink.commit(decided, ONE)
    assert outcome is COMMITTED
    assert one.sink.commit(decided, ONE) is ALREADY
    one.check(last, 2)
    nodes.restart(victim)
    nodes.await_in_sync()
    one.epoch(2, last, last + 40)
    one.check(last + 40, 3)


# a node is paused, or away


@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize("who", ["leader", "coordinator"])
def test_a_node_that_is_paused_in_mid_delivery_answers_late(
    votes: MakeWide, nodes: KafkaNodes, tmp_path: Path, who: str, rows: int
) -> None:
    one, later = votes(), Later()
    one.epoch(0, 0, 40)
    victim = one.leader() if who == "leader" else one.coordinator()

    def pause() -> None:
        nodes.pause(victim)
        later.do(lambda: nodes.await_leader_other_than(victim, one.topic, 0), lambda: nodes.resume(victim))

    with in_a_task(one, tmp_path / "faults", pause) if rows == MANY else at(Point.IN_WRITE, pause, nth=5):
        decided = one.prepare(1, 40, rows)
    assert one.sink.commit(decided, ONE) is COMMITTED
    later.wait()
    one.check(rows, 2)
    nodes.await_in_sync()
    one.check(rows, 2)


def test_a_coordinator_that_is_paused_when_the_end_was_sent_answers_late(votes: MakeWide, nodes: KafkaNodes) -> None:
    one, later = votes(), Later()
    decided = one.prepare(0, 0, FEW)
    victim = one.coordinator()

    def pause() -> None:
        nodes.pause(victim)
        later.do(
            lambda: nodes.await_leader_other_than(victim, TRANSACTIONS, state_partition(one.transactional_id)),
            lambda: nodes.resume(victim),
        )

    with after_sending_the_end(pause):
        assert one.sink.commit(decided, ONE) in (COMMITTED, ALREADY)
    later.wait()
    one.epoch(1, FEW, 2 * FEW)
    nodes.await_in_sync()
    one.check(2 * FEW, 2)


@pytest.mark.parametrize("rows", [FEW, MANY])
def test_a_leader_that_vanishes_in_mid_delivery_costs_a_part_of_the_time(
    votes: MakeWide, nodes: KafkaNodes, tmp_path: Path, rows: int
) -> None:
    """It keeps its connections, and never answers: a host without power."""
    one = votes()
    one.epoch(0, 0, 40)
    victim = one.leader()

    def pause() -> None:
        nodes.pause(victim)

    began = time.monotonic()
    with in_a_task(one, tmp_path / "faults", pause) if rows == MANY else at(Point.IN_WRITE, pause, nth=5):
        decided = one.prepare(1, 40, rows)
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert time.monotonic() - began < 250  # the transaction has 300 s, and a busy machine takes half of it
    one.check(rows, 2)
    nodes.resume(victim)
    nodes.await_in_sync()
    one.check(rows, 2)


def test_epochs_go_on_while_a_node_is_away_for_a_minute(votes: MakeWide, nodes: KafkaNodes) -> None:
    one = votes()
    one.epoch(0, 0, 40)
    last, number, began = 40, 1, time.monotonic()
    with nodes.without(one.leader()):
        while time.monotonic() < began + 60:
            one.epoch(number, last, last + FEW)
            last, number = last + FEW, number + 1
        one.check(last, number)
    one.epoch(number, last, last + FEW)
    one.check(last + FEW, number + 1)


@pytest.mark.parametrize("again", range(3))
def test_topics_are_described_while_brokers_still_name_a_dead_one(
    nodes: KafkaNodes, topic_name: str, again: int
) -> None:
    """For some seconds the others tell clients to ask the dead one: such an answer costs a part of the time."""
    link = Link(nodes.bootstrap, topic_name, 30.0)
    nodes.create_topic(topic_name)
    marker_topic = MarkerTopic(APP, topic_name)
    nodes.create_topic(marker_topic.topic)
    victim = 1 + again
    nodes.kill(victim)
    for _ in range(8):
        began = time.monotonic()
        topics.describe(link, Declared((topic_name,)), marker_topic)
        assert time.monotonic() - began < 25
    nodes.restart(victim)
    nodes.await_in_sync()


# leaders move, and stay alive


@pytest.mark.parametrize("step", ["init", "delivery", "tasks", "vote", "end-answered"])
def test_leaders_move_to_their_preferred_replicas(
    votes: MakeWide, nodes: KafkaNodes, tmp_path: Path, step: str
) -> None:
    one = votes()
    one.epoch(0, 0, 40)
    with nodes.without(one.leader()):
        one.epoch(1, 40, 80)
    steps = {
        "init": lambda: before_partitions_are_added(nodes.await_preferred),
        "delivery": lambda: at(Point.IN_WRITE, nodes.await_preferred, nth=5),
        "tasks": lambda: in_a_task(one, tmp_path / "faults", nodes.await_preferred),
        "vote": lambda: at(Point.BEFORE_VOTE, nodes.await_preferred),
        "end-answered": lambda: at(Point.AFTER_PUBLISH, nodes.await_preferred),
    }
    last = MANY if step == "tasks" else FEW
    with steps[step]():
        one.epoch(2, 80, last)
    one.check(last, 3)


# the targets change, or differ


def test_a_partition_is_added_between_epochs(votes: MakeWide, nodes: KafkaNodes) -> None:
    one = votes()
    one.epoch(0, 0, FEW)
    for number in range(1, 4):
        grown = NewPartitions(one.topic, PARTITIONS + number)
        with AdminClient({"bootstrap.servers": nodes.bootstrap}) as admin:
            admin.create_partitions([grown], request_timeout=60)[one.topic].result(70)
        one.epoch(number, number * FEW, (number + 1) * FEW)
    one.check(4 * FEW, 4)
    assert {r.partition for r in read_topic(one.bootstrap, one.topic)} == set(range(PARTITIONS + 3))


def test_topics_with_different_limits_in_one_transaction(
    votes: MakeWide, nodes: KafkaNodes, tmp_path: Path, topic_name: str
) -> None:
    small, large = f"{topic_name}-small", f"{topic_name}-large"
    nodes.create_topic(small, 3, {"max.message.bytes": "2000"})
    nodes.create_topic(large, 3, {"max.message.bytes": "500000"})
    one = votes(Several, topics=[small, large], partitions=None)

    def prepare(number: int, first: int, last: int) -> Committable:
        where = f"if(n % 2 = 0, '{small}', '{large}') as place"
        return one.prepared(number, one.rows(first, last).selectExpr("*", where))

    assert one.sink.commit(prepare(0, 0, FEW), ONE) is COMMITTED
    victim = nodes.leader_of(small, 0)
    with in_a_task(one, tmp_path / "faults", lambda: nodes.kill(victim)):
        decided = prepare(1, FEW, MANY)
    assert one.sink.commit(decided, ONE) is COMMITTED
    ids: list[int] = []
    for topic in (small, large):
        assert wait_until(lambda topic=topic: None if hanging(one.bootstrap, topic) else True, SEEN_S)  # type: ignore[misc]
        found = read_topic(one.bootstrap, topic)
        assert found == read_topic(one.bootstrap, topic, "read_uncommitted")
        ids += [int(r.key or b"") for r in found]
    assert sorted(ids) == list(range(MANY))


# many first batches at once


def test_several_owners_open_many_partitions_of_one_broker_at_once(votes: MakeWide) -> None:
    """Brokers answer NOT_ENOUGH_REPLICAS to first batches that they could not verify side by side."""
    one = votes(partitions=24)
    for number in range(5):
        one.epoch(number, number * MANY, (number + 1) * MANY)
    one.check(5 * MANY, 5)
