"""Where do rows go: the topic-partition of each, as a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epochal.sinks.kafka.batches.columns import binary, integers_of, nulls, plain
from epochal.sinks.kafka.batches.layout import Layout
from epochal.sinks.kafka.batches.partitioner import Partitioner

if TYPE_CHECKING:
    import pyarrow

    from epochal.sinks.kafka.batches.columns import Numbers


class Places:
    """The topic-partition of each row, as a code."""

    def __init__(self, layout: Layout, partitioner: Partitioner) -> None:
        self._layout, self._partitioner = layout, partitioner

    def of(self, group: Mapping[str, pyarrow.Array], sizes: Numbers) -> Numbers:
        import numpy as np

        topics = self._topics(group["topic"]) if "topic" in group else 0
        named = group.get("partition")
        unnamed = np.ones(len(sizes), bool) if named is None else nulls(named)
        if unnamed is None:
            unnamed = np.zeros(len(sizes), bool)
        if unnamed.any():
            partitions = self._partitioner.choose(group["key"], topics, np.where(unnamed, sizes, 0))
        else:
            partitions = np.zeros(len(sizes), np.int64)
        if named is not None and not unnamed.all():
            partitions = np.where(unnamed, partitions, integers_of(named))
            self._check(topics, partitions)
        firsts = np.array([self._layout.code_of(topic, 0) for topic in range(len(self._layout.topics))], np.int64)
        codes: Numbers = firsts[topics] + partitions
        return codes

    def _topics(self, column: pyarrow.Array) -> Numbers | int:
        """Return the number of each row's topic; one number if all rows have the same."""
        import numpy as np
        import pyarrow.compute as pc

        declared = self._layout.topics
        lengths = np.array([len(topic.encode()) for topic in declared])
        known = binary(np.append(0, np.cumsum(lengths)).astype(np.int32), "".join(declared).encode())
        found = pc.index_in(plain(column), value_set=known)
        wrong = nulls(found) if found.null_count else nulls(column)
        if wrong is not None:
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(f"a row for topic {column[row].as_py()!r}; the topics are {', '.join(declared)}")
        numbers = np.frombuffer(found.buffers()[1], np.int32, len(found), found.offset * 4)
        first: int = numbers[0].item()
        return first if (numbers == first).all() else numbers

    def _check(self, topics: Numbers | int, partitions: Numbers) -> None:
        import numpy as np

        counts = np.array(self._layout.partitions)[topics]
        wrong = np.flatnonzero((partitions < 0) | (partitions >= counts))
        if len(wrong):
            row = int(wrong[0])
            topic = topics if isinstance(topics, int) else int(topics[row])
            raise ValueError(
                f"a row for partition {int(partitions[row])} of topic {self._layout.topics[topic]!r}; it has "
                f"{self._layout.partitions[topic]} partitions"
            )


def order_of(codes: Numbers) -> Any:
    """Return how to sort rows by code, those of one code as they came."""
    import numpy as np

    first, last = int(codes.min()), int(codes.max())
    if first == last:
        return slice(None)
    small = np.uint8 if last < 1 << 8 else np.uint16 if last < 1 << 16 else np.int64
    return np.argsort(codes.astype(small), kind="stable")  # numpy counts small numbers instead of comparing them
