"""Which topics, partitions, batches and codec an epoch is written with."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from functools import cached_property

BATCH_BYTES = 1_000_000
"""How large a batch gets where neither the user nor its topic says it: librdkafka's ``batch.size``."""


@dataclass(frozen=True)
class Layout:
    """Where rows go and how they are written.  It can be pickled."""

    topics: tuple[str, ...]
    partitions: tuple[int, ...]  # of each topic
    limits: tuple[int, ...]  # the largest batch in bytes that each topic takes
    partitioner: str
    codec: str | None
    level: int | None
    batch_bytes: int | None
    batch_rows: int | None

    @cached_property
    def _firsts(self) -> list[int]:
        """The code of the first partition of each topic, and one more than the last code."""
        return [0, *itertools.accumulate(self.partitions)]

    def code_of(self, topic: int, partition: int) -> int:
        """Return the number of a topic-partition, counted over all topics."""
        return self._firsts[topic] + partition

    def partition_of(self, code: int) -> tuple[str, int]:
        """Return the topic and the partition of a code."""
        topic = self.topic_of(code)
        return self.topics[topic], code - self._firsts[topic]

    def topic_of(self, code: int) -> int:
        """Return the number of the topic of a code."""
        return bisect.bisect_right(self._firsts, code) - 1

    def batch_bytes_of(self, topic: int) -> int:
        """Return how large a batch of a topic gets, with its header."""
        return max(1, min(self.batch_bytes or BATCH_BYTES, self.limits[topic]))
