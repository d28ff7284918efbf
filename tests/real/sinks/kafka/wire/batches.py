"""Record batches as kafka-python makes them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kafka.record.memory_records import MemoryRecordsBuilder

from epochal.sinks.kafka.wire import messages
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import is_moved
from epochal.sinks.kafka.wire.messages import Partition, ProduceAnswer, Producer


def batch(producer: Producer, values: Sequence[bytes], sequence: int = 0) -> bytes:
    """A batch of rows without keys, in a transaction of this producer."""
    builder = MemoryRecordsBuilder(
        2,
        0,
        1 << 24,
        transactional=True,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
    )
    for value in values:
        assert builder.append(None, None, value) is not None
    builder.close()
    return bytes(builder.buffer())


def produce(cluster: Cluster, name: str, batches: dict[Partition, list[bytes]], deadline: float) -> list[ProduceAnswer]:
    """Hand over one batch for each partition, all led by one broker.

    As every producer must, repeat it while a partition is about to move: a broker answers so for a new topic, too.
    """
    request, body = messages.PRODUCE, messages.produce(name, batches, 30_000)
    while True:
        [node] = set(cluster.leaders(batches, deadline).values())
        answer = cluster.connection(node, deadline).call(request.api, request.version, *body, deadline=deadline)
        answers = messages.read_produce(answer)
        if not any(is_moved(each.error) for each in answers) or time.monotonic() > deadline:
            return answers
        cluster.forget_leaders()
        time.sleep(0.02)
