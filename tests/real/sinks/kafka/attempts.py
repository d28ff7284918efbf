"""Attempts at epochs without Spark: what a commit task does, called straight."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.coordinator.model.epoch import Actor, Decision, Query
from epochal.sinks.kafka import KafkaSink, marker, produce
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.marker import MarkerTopic, State
from epochal.sinks.kafka.produce import AttemptResult, Plan
from epochal.sinks.kafka.transaction import Row
from tests.real.sinks.kafka.support import APP, OPTIONS

ONE = Actor(1, 11)
TWO = Actor(2, 22)
PATIENT_S = 60.0
"""A limit that a machine which stands still for a while does not reach."""
QUERY = Query(APP, "q1", "r1", "memory:/checkpoint")


class Target:
    """One topic with a sink on it, fenced by ``ONE``, and plans for its epochs."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.sink = KafkaSink(
            bootstrap,
            topic=topic,
            name=topic,
            options=OPTIONS,
            partitions=1,
            request_timeout=PATIENT_S,
        )
        self.marker_topic = MarkerTopic(APP, topic)
        self.link = Link(bootstrap, topic, PATIENT_S, OPTIONS)
        self.sink.create(QUERY, None)
        self.sink.look(QUERY)
        self.sink.fence(QUERY, ONE)

    def set_timeout(self, seconds: float) -> None:
        """From now on a request may take so long, also of attempts that are under way.

        A test that waits for the limit makes it short when the wait begins.  Before, and after, it is long: what
        must succeed has time.
        """
        object.__setattr__(self.link, "timeout", seconds)
        self.sink._core.request_timeout = seconds

    def plan(self, epoch: int, rows: Sequence[Row], *, by: Actor = ONE) -> Plan:
        """Epoch n of ``ONE`` at position n + 1."""
        decision = Decision("q1", epoch, ONE, f"fingerprint-{epoch}")
        return Plan(
            link=self.link,
            marker_topic=self.marker_topic,
            topics=(self.topic,),
            by=by,
            decision=decision.id,
            position=epoch + 1,
            epoch=epoch,
            rows=len(rows),
            partitioner="murmur2_random",
            max_message_bytes=(1_000_000,),
            transaction_timeout=60,
            about={"decision": decision.to_json()},
        )

    def commit(self, epoch: int, rows: Sequence[Row]) -> AttemptResult:
        """One attempt at one epoch."""
        return produce.attempt(self.plan(epoch, rows), [rows])

    def state(self) -> State:
        return marker.read(self.link, self.marker_topic, final=False)

    def position(self) -> int:
        found = self.state().marker
        return found.position if found is not None else 0


def rows(*values: str) -> list[Row]:
    return [(v.encode(), v.encode()) for v in values]
