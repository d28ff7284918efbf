"""Deliver encoded batches: owners, each a Spark task, send the batches of disjoint topic-partitions.

An epoch that lies in the tasks' answers alone is delivered by the driver: it has no file that another host could read,
and a Spark job would take longer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.kafka.delivery import libraries
from epochal.sinks.kafka.delivery.deliver import (
    Batch,
    Delivered,
    RecordsDamaged,
    RowsGone,
    Stream,
    Transaction,
    dealt,
    deliver,
)
from epochal.sinks.kafka.delivery.encoding import Encoded
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import AnswerNotUnderstood, BrokerError
from epochal.sinks.kafka.wire.messages import Partition
from epochal.sinks.kafka.wire.reach import Reach
from epochal.sinks.spark import workers

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Delivery:
    """Everything that an owner needs but its batches.  It can be pickled and holds secrets."""

    reach: Reach
    transaction: Transaction
    in_flight: int
    seconds: float  # how long an owner may take: what the transaction had left when the owners were sent to Spark
    sink: str
    epoch: EpochNumber


class DeliveryFailed(Exception):
    """An owner could not deliver.  ``code``: the broker's error code, None if no broker refused."""

    def __init__(self, kind: str, what: str, code: int | None) -> None:
        super().__init__(what)
        self.kind = kind
        self.code = code


def produce(session: SparkSession, delivery: Delivery, encoded: Encoded) -> Mapping[Partition, Delivered]:
    """Deliver all batches; return what the leaders acknowledged.

    Raises ``DeliveryFailed``, and ``PrepareRefused`` if an executor lacks a library.  Another error of Spark means that
    an owner died, and is raised as it is.
    """
    if not encoded.batches:
        return {}
    if encoded.is_small:
        return _told(_owned(delivery, encoded.batches, is_repeated=False))
    sizes = {where: sum(batch.length for batch in its) for where, its in encoded.batches.items()}
    shares = dealt(sizes, session.sparkContext.defaultParallelism)
    plan = [{where: encoded.batches[where] for where in share} for share in shares]
    owners = session.range(0, len(plan), numPartitions=len(plan))
    owned = owners.mapInArrow(partial(_task, delivery, plan), "answer string")
    with libraries.naming(delivery.sink, delivery.epoch):
        answers = owned.collect()
    delivered: dict[Partition, Delivered] = {}
    for row in answers:
        delivered |= _told(row["answer"])
    return delivered


def _task(
    delivery: Delivery, plan: Sequence[Mapping[Partition, Sequence[Batch]]], rows: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    libraries.check_here(delivery.sink)
    for _ in workers.promptly(rows):
        pass
    yield workers.answer(answer=_owned(delivery, plan[workers.task()], is_repeated=workers.is_repeated()))


def _owned(delivery: Delivery, batches: Mapping[Partition, Sequence[Batch]], *, is_repeated: bool) -> str:
    """Deliver these partitions; return what came of it as JSON, never as the text of an exception."""
    streams = {where: Stream(its) for where, its in batches.items()}
    try:
        with Cluster(delivery.reach) as cluster:
            told = deliver(
                cluster,
                delivery.transaction,
                streams,
                in_flight=delivery.in_flight,
                deadline=time.monotonic() + delivery.seconds,
                is_repeated=is_repeated,
                between=lambda: failpoints.hit(Point.IN_WRITE, delivery.sink, delivery.epoch),
            )
    except (OSError, BrokerError, AnswerNotUnderstood, RecordsDamaged, RowsGone) as error:
        code = error.code if isinstance(error, BrokerError) else None
        kind = "OSError" if isinstance(error, OSError) else type(error).__name__
        return json.dumps({"kind": kind, "what": f"{type(error).__name__}: {error}"[:500], "code": code})
    return json.dumps({"partitions": [[*where, *its] for where, its in told.items()]})


def _told(answer: str) -> Mapping[Partition, Delivered]:
    told: Any = json.loads(answer)
    if "kind" in told:
        raise DeliveryFailed(told["kind"], told["what"], told["code"])
    return {Partition(topic, number): Delivered(rows, first) for topic, number, rows, first in told["partitions"]}
