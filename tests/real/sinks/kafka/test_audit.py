"""What the marker topic tells of the epochs: for how long, beside older records, and after a real compaction."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from epochal.chaos import servers
from epochal.chaos.servers.process import wait_until
from epochal.coordinator.model.epoch import Actor, Committable, Decision, Json, Marker
from epochal.coordinator.model.errors import EpochalError, Misconfigured
from epochal.sinks.epochs import KEPT_ALWAYS
from epochal.sinks.kafka import KafkaSink, audit, marker, produce
from epochal.sinks.kafka.marker import State
from epochal.sinks.kafka.produce import MOST
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.kafka.attempts import ONE, QUERY, TWO, Target
from tests.real.sinks.kafka.support import OPTIONS, Record, hanging, read_topic

DAY_MS = 86_400_000


class Run(Target):
    """Epochs without rows, of which the sink's own commit needs no Spark."""

    def start(self, by: Actor = ONE, **options: Any) -> KafkaSink:
        """Another start of the query, perhaps with another retention."""
        self.sink = KafkaSink(self.bootstrap, topic=self.topic, name=self.topic, options=OPTIONS, **options)
        self.sink.look(QUERY)
        self.sink.fence(QUERY, by)
        return self.sink

    def show(self, position: int, by: Actor = ONE) -> None:
        payload: Json = {
            "version": 1,
            "copy": {"root": "file:/none", "files": [], "schema": ""},
            "identity": self.sink.look(QUERY).identity,
            "topic": self.topic,
            "encoding": self.sink._core.encoding.to_json(),
            "about": {"offsets": f"[{position}]", "watermark": position},
        }
        c = Committable(self.sink.name, decision(position), position, 0, payload)
        assert self.sink.commit(c, by) is CommitOutcome.COMMITTED

    def told(self, **asked: Any) -> list[int]:
        """Positions, of a sink that nobody looked with."""
        fresh = KafkaSink(self.bootstrap, topic=self.topic, name=self.topic, options=OPTIONS)
        rows = fresh.epochs(QUERY.app, **asked).rows
        assert [(r.offsets, r.watermark) for r in rows] == [(f"[{r.position}]", r.position) for r in rows]
        return [row.position for row in rows]

    def records(self) -> list[Record]:
        return read_topic(self.bootstrap, self.marker_topic.topic)

    def alive(self) -> list[bytes | None]:
        """The keys that a compaction would keep."""
        newest = {r.key: r.value for r in self.records()}
        return [key for key, value in newest.items() if value is not None]

    def write(self, state: State, key: bytes, *, about: Json | None = None, at: int = 0) -> None:
        """One record by hand, as some other version or at some other time would have written it."""
        plain = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "log_level": 0})
        plain.produce(self.marker_topic.topic, marker.record(self.marker_topic, state, about), key, timestamp=at)
        assert plain.flush(20) == 0


def decision(position: int) -> Decision:
    return Decision("q1", position - 1, ONE, f"f{position}")


def about(position: int) -> Json:
    return {"decision": decision(position).to_json(), "rows": 0, "offsets": f"[{position}]", "watermark": position}


def stands_at(position: int, kept: int | None = None) -> State:
    return State(ONE, Marker(position, decision(position).id), kept=kept)


@pytest.fixture
def run(kafka_server: servers.Kafka, topic: str) -> Run:
    return Run(kafka_server.bootstrap, topic)


def test_as_many_epochs_are_kept_as_is_said_and_the_newest_record_still_tells_all(run: Run) -> None:
    run.start(keep_epochs=10)
    for position in range(1, 14):
        run.show(position)
    assert run.told() == list(range(4, 14))
    assert (run.told(limit=2), run.told(first=5, last=6), run.told(first=1, last=4)) == ([12, 13], [5, 6], [4])
    assert run.alive() == [b"fence", *(b"marker-%d" % position for position in range(4, 14))]
    assert run.state() == replace(stands_at(13), kept=4)
    gone, newest = run.records()[-2:]
    assert (gone.key, gone.value, newest.key) == (b"marker-3", None, b"marker-13")
    written = json.loads(newest.value or b"")
    assert (written.pop("kept"), written.pop("epoch")["offsets"], written) == (
        4,
        "[13]",
        {
            "version": 1,  # an older Epochal reads it, and looks at no key
            "app": QUERY.app,
            "sink": run.topic,
            "fence": ONE.to_json(),
            "marker": {"position": 13, "decision": decision(13).id},
        },
    )


def test_a_fence_keeps_what_is_known_of_the_audit(run: Run) -> None:
    run.start(keep_epochs=10)
    for position in range(1, 12):
        run.show(position)
    run.start(TWO, keep_epochs=10)
    assert run.state().kept == 2
    run.show(12, TWO)
    assert run.told() == list(range(3, 13))


@pytest.mark.wide
def test_a_lower_number_is_come_to_over_some_epochs_and_a_higher_one_at_once(run: Run) -> None:
    run.start(keep_epochs=100)
    for position in range(1, MOST + 22):
        run.show(position)
    run.start(keep_epochs=10)
    run.show(MOST + 22)
    assert run.told()[0] == MOST + 1
    run.show(MOST + 23)
    assert run.told() == list(range(MOST + 14, MOST + 24))
    run.start(keep_epochs=None)
    run.show(MOST + 24)
    assert len(run.told()) == 11


def test_an_attempt_that_is_not_committed_forgets_nothing(run: Run) -> None:
    run.start(keep_epochs=10)
    for position in range(1, 11):
        run.show(position)
    short = replace(run.plan(10, []), keep_from=2, rows=7)
    assert produce.attempt(short, []).error is not None
    assert run.told() == list(range(1, 11))
    assert run.state().kept == 1


# days


def test_epochs_that_are_too_old_go_and_the_newest_stay(run: Run) -> None:
    """As old as their records say; the query stood still between 15 and 16."""
    run.start(keep_epochs=None, keep_days=3)
    now = int(time.time() * 1000)
    for position in range(1, 31):
        state = stands_at(position, kept=1)
        run.write(
            state, marker.key(run.marker_topic, position), about=about(position), at=now - (40 - position) * DAY_MS
        )
    assert audit.kept_since(run.link, run.marker_topic, 3) == 27
    assert audit.kept_since(run.link, run.marker_topic, 1000) == 1
    run.show(31)
    assert run.told() == list(range(MOST + 1, 32))
    run.show(32)
    assert run.told() == list(range(32 - KEPT_ALWAYS + 1, 33))


def test_epochs_of_any_age_stay_where_no_days_are_given(run: Run) -> None:
    run.start(keep_epochs=None)
    for position in range(1, 13):
        run.write(stands_at(position, kept=1), marker.key(run.marker_topic, position), about=about(position), at=DAY_MS)
    run.show(13)
    assert run.told() == list(range(1, 14))


# records of others


def test_records_of_the_first_epochal_are_told_as_far_as_they_are_there(run: Run) -> None:
    for position in (1, 2, 3):
        run.write(stands_at(position), b"marker", about=about(position))
    assert run.told() == [1, 2, 3]
    run.start()
    assert run.told() == [1, 2, 3]
    run.show(4)
    assert run.told() == [4]  # what compaction may take is none of the audit
    assert run.state().kept == 4


def test_an_older_epochal_in_between_begins_the_audit_anew(run: Run) -> None:
    """It writes its one key, and drops what it does not know."""
    run.start(keep_epochs=10)
    run.show(1)
    run.write(stands_at(2), b"marker", about=about(2))
    assert run.told() == [1, 2]
    run.start(keep_epochs=10)
    run.show(3)
    assert run.told() == [3]


def test_a_marker_that_says_nothing_of_its_epoch_is_not_told(run: Run) -> None:
    run.write(stands_at(1), b"marker")
    assert run.told() == []


def test_where_there_is_no_topic_it_says_so(kafka_server: servers.Kafka, topic: str) -> None:
    sink = KafkaSink(kafka_server.bootstrap, topic=topic, name=topic)
    with pytest.raises(EpochalError) as refused:
        sink.epochs(QUERY.app)
    assert isinstance(refused.value, Misconfigured)


def test_the_newest_are_read_from_the_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Producer({"bootstrap.servers": run.bootstrap, "acks": "all", "log_level": 0})
    for position in range(1, 3 * marker.TAIL):
        value = marker.record(run.marker_topic, stands_at(position, kept=1), about(position))
        plain.produce(run.marker_topic.topic, value, marker.key(run.marker_topic, position))
    assert plain.flush(20) == 0
    records, starts = marker.records, list[int]()

    def noted(link: Any, marker_topic: Any, consumer: Any, start: int, end: int) -> Iterator[Any]:
        starts.append(start)
        return records(link, marker_topic, consumer, start, end)

    monkeypatch.setattr(marker, "records", noted)
    assert run.told(limit=1) == [3 * marker.TAIL - 1]
    assert min(starts) >= 2 * marker.TAIL - 1
    assert run.told(first=2, last=3) == [2, 3]
    assert min(starts) == 0


# compaction

COMPACTS = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.0", "delete.retention.ms": "0"}


@contextmanager
def compacting(bootstrap: str, topic: str) -> Iterator[None]:
    """The broker compacts that topic as soon as it can."""

    def alter(kind: ResourceType, name: str, operation: AlterConfigOpType, settings: dict[str, str]) -> None:
        entries = [ConfigEntry(key, value, incremental_operation=operation) for key, value in settings.items()]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            admin.incremental_alter_configs([resource])[resource].result(120)

    backoff = {"log.cleaner.backoff.ms": "200"}
    alter(ResourceType.TOPIC, topic, AlterConfigOpType.SET, COMPACTS)
    alter(ResourceType.BROKER, "1", AlterConfigOpType.SET, backoff)
    try:
        yield
    finally:
        alter(ResourceType.BROKER, "1", AlterConfigOpType.DELETE, backoff)


@pytest.mark.wide
def test_the_audit_survives_compaction_and_so_does_the_state(run: Run) -> None:
    run.start(keep_epochs=12)
    with compacting(run.bootstrap, run.marker_topic.topic):
        for position in range(1, 31):
            run.show(position)

        def compacted() -> bool | None:
            """The newest segment is never compacted, so it gets another one now and then."""
            run.sink.fence(QUERY, next(actors))
            there = [r.key for r in run.records() if r.value is not None and r.key != b"fence"]
            return there == [b"marker-%d" % n for n in range(19, 31)] or None

        actors = (Actor(n, n) for n in range(2, 1000))
        assert wait_until(compacted, 120), run.records()
    fence = run.state().fence
    assert fence is not None
    assert run.told() == list(range(19, 31))
    assert (run.state(), marker.read(run.link, run.marker_topic, final=True)) == (
        (expected := State(fence, Marker(30, decision(30).id), kept=19)),
        expected,
    )
    run.start(Actor(2000, 1), keep_epochs=12)
    run.show(31, Actor(2000, 1))
    assert run.told() == list(range(20, 32))
    assert hanging(run.bootstrap, run.marker_topic.topic) == []
