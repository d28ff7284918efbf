"""What the console command asks of a Kafka sink (``epochal.sinks.inspection``), its open transactions included.

The coordinator of a transactional id describes its transaction.  Other transactions show only in this: the last stable
offset of a partition does not move.  Everything below that offset is committed or aborted, and a transaction is open
from that offset on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from epochal.coordinator.model.epoch import Actor, Committable, EpochNumber, Json, Position
from epochal.coordinator.model.errors import SinkUnavailable
from epochal.sinks.inspection import Counted, Described, Leftover, Open, Value
from epochal.sinks.kafka import described, marker
from epochal.sinks.kafka.client import Link, kafka
from epochal.sinks.kafka.ending import Vote
from epochal.sinks.kafka.marker import MarkerTopic


class KafkaInspection:
    """Implements :class:`~epochal.sinks.inspection.Inspection`; ``bar`` calls init for a slot's transactional id."""

    unattributed = (
        "a topic does not tell which epoch a record is of (offsets per epoch are not kept), so records are neither"
        " counted nor compared by epoch"
    )
    complete = False
    cautions: Sequence[str] = ("nothing prepared lies in Kafka but open transactions: `epochal txns`",)
    content = "nothing"

    def __init__(
        self,
        link: Link,
        marker_topic: MarkerTopic,
        topics: Sequence[str],
        slots: Callable[[], int],
        projection: Json,
        bar: Callable[[MarkerTopic], None],
    ) -> None:
        self._link = link
        self._marker_topic = marker_topic
        self._topics = topics
        self._slots = slots
        self._bar = bar
        self.projection = projection

    def counts(self, first: Position, last: Position) -> Iterator[Counted]:
        """Yield nothing: see ``unattributed``."""
        del first, last
        yield from ()

    def columns(self) -> Mapping[str, str]:
        return {}

    def rows(self, position: Position, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        raise SinkUnavailable(
            f"the rows of position {position} cannot be found: {self.unattributed}",
            sink=self._marker_topic.sink,
            state=f"columns {list(columns)}",
            help="compare the row counts that epochs(app) of each sink returns",
        )

    def leftovers(self) -> Sequence[Leftover]:
        """Return nothing: the only prepared work in Kafka is open transactions, which ``epochal txns`` shows."""
        return []

    def remove(self, newest: Actor) -> Sequence[str]:
        """Remove nothing: see ``leftovers``."""
        del newest
        return []

    def close(self) -> None:
        """Do nothing: nothing is held open."""

    @property
    def ids(self) -> Sequence[str]:
        """The transactional ids of all slots that were ever used."""
        return [self._marker_topic.of_slot(slot).transactional_id for slot in range(self._slots())]

    def transactions(self) -> Sequence[Open]:
        """Return every partition of the marker topic and of the targets in which a transaction is open now."""
        slots = range(self._slots())
        ours = [self._open(self._marker_topic.topic, n, self._marker_topic.of_slot(n).transactional_id) for n in slots]
        theirs = [self._open(topic, n, "") for topic in self._topics for n in self._partitions(topic)]
        return [found for found in (*ours, *theirs) if found is not None]

    def described(self) -> Sequence[Described] | None:
        """Return the newest transaction of every id, as its coordinator describes it."""
        return described.of_ids(self._link, self.ids)

    def is_prepared(self, found: Described, committable: Committable) -> bool:
        """Whether this is the transaction that the committable names."""
        vote = Vote.of(committable)
        return vote is not None and (vote.transactional_id, tuple(vote.producer)) == (
            found.transactional_id,
            found.producer,
        )

    def epoch_inside(self) -> EpochNumber | None:
        """Return the epoch whose marker lies above the last stable offset of the marker topic."""
        doing = f"for the open records of {self._marker_topic.topic}"
        return self._link.ask(doing, lambda: marker.epoch_above_stable(self._link, self._marker_topic))

    def abort(self) -> Sequence[str]:
        """Call init for every id: Kafka aborts its open transaction, and bars its producer if one lives."""
        for slot in range(self._slots()):
            self._bar(self._marker_topic.of_slot(slot))
        return self.ids

    def _partitions(self, topic: str) -> Sequence[int]:
        with self._link.asking(f"for the partitions of {topic}"), self._link.admin() as admin:
            known = admin.list_topics(topic, timeout=self._link.timeout).topics[topic].partitions
        return sorted(known)

    def _open(self, topic: str, partition: int, transactional_id: str) -> Open | None:
        doing = f"for the ends of {topic}[{partition}]"
        stable = self._link.ask(doing, lambda: self._end(topic, partition, "read_committed"))
        high = self._link.ask(doing, lambda: self._end(topic, partition, "read_uncommitted"))
        if stable >= high:
            return None
        began = self._link.ask(doing, lambda: self._timestamp(topic, partition, stable))
        again = self._link.ask(doing, lambda: self._end(topic, partition, "read_committed"))
        return Open(topic, partition, stable, high, began, transactional_id) if again == stable else None

    def _end(self, topic: str, partition: int, isolation: str) -> int:
        with self._link.consumer(isolation) as consumer:
            marks = consumer.get_watermark_offsets(kafka().TopicPartition(topic, partition), timeout=self._link.timeout)
        if marks is None:
            raise TimeoutError(f"no offsets of {topic}")
        return int(marks[1])

    def _timestamp(self, topic: str, partition: int, offset: int) -> float | None:
        """When the first open record was produced, in seconds since 1970, by the producer's clock or the broker's."""
        with self._link.consumer("read_uncommitted") as consumer:
            consumer.assign([kafka().TopicPartition(topic, partition, offset)])
            message = consumer.poll(max(0.0, min(5.0, self._link.timeout)))
            if message is None or message.error() is not None:
                return None
            kind, milliseconds = message.timestamp()
            return milliseconds / 1000 if kind != kafka().TIMESTAMP_NOT_AVAILABLE else None
