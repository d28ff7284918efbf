"""Choose the partition of every row, as librdkafka's partitioners do."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from epochal.sinks.kafka.batches import hashes
from epochal.sinks.kafka.batches.columns import lengths_of, nulls

if TYPE_CHECKING:
    import pyarrow

    from epochal.sinks.kafka.batches.columns import Numbers

murmur2 = hashes.murmur2

_HASHES: dict[str, Callable[[pyarrow.Array], Numbers] | None] = {
    "murmur2_random": hashes.murmur2,
    "murmur2": hashes.murmur2,
    "consistent_random": hashes.crc32,
    "consistent": hashes.crc32,
    "fnv1a_random": hashes.fnv1a,
    "fnv1a": hashes.fnv1a,
    "random": None,
}
VECTORISED = tuple(_HASHES)
"""The partitioners that are implemented here: all that librdkafka has."""


class Partitioner:
    """A partitioner for some topics, in one task.

    Rows whose partition is random all go into one partition until about a batch is full, then into the next one, so
    that batches are large.  The first one is random, for each topic.
    """

    def __init__(self, name: str, partitions: Sequence[int], batch_bytes: Sequence[int]) -> None:
        """``partitions`` and ``batch_bytes``: how many partitions each topic has, and how large its batches get."""
        self._name, self._hash = name, _HASHES[name]
        self._partitions, self._batch_bytes = partitions, batch_bytes
        self._begun = [random.randrange(count) * full for count, full in zip(partitions, batch_bytes, strict=True)]

    def choose(self, key: pyarrow.Array, topics: Numbers | int, sizes: Numbers) -> Numbers:
        """Return the partitions of rows of ``sizes`` bytes; ``topics``: the number of each row's, or of all of them."""
        import numpy as np

        by_chance = self._by_chance(key)
        if self._hash is None or by_chance.all():
            chosen = np.zeros(len(sizes), np.int64)
        else:
            chosen = (self._hash(key) % self._counts(topics)).astype(np.int64)
        if by_chance.any():
            self._spread(chosen, by_chance, topics, sizes)
        return chosen

    def _counts(self, topics: Numbers | int) -> Numbers:
        import numpy as np

        counts: Numbers = np.array(self._partitions, np.uint32)[topics]
        return counts

    def _by_chance(self, key: pyarrow.Array) -> Numbers:
        """Return the rows whose partition no key decides.  Only ``consistent_random`` takes an empty key for none."""
        import numpy as np

        if self._name == "random":
            return np.ones(len(key), bool)
        if self._name == "consistent_random":
            empty: Numbers = lengths_of(key, of_null=0) == 0
            return empty
        missing = nulls(key) if self._name.endswith("_random") else None
        return np.zeros(len(key), bool) if missing is None else missing

    def _spread(self, chosen: Numbers, by_chance: Numbers, topics: Numbers | int, sizes: Numbers) -> None:
        """Fill one partition after the other with the rows ``by_chance``."""
        import numpy as np

        for topic in (topics,) if isinstance(topics, int) else np.unique(topics[by_chance]).tolist():
            rows = by_chance if isinstance(topics, int) else by_chance & (topics == topic)
            ends = np.cumsum(sizes[rows], dtype=np.int64) + self._begun[topic]
            full, count = self._batch_bytes[topic], self._partitions[topic]
            chosen[rows] = (ends - sizes[rows]) // full % count
            self._begun[topic] = int(ends[-1]) % (full * count)
