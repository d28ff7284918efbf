"""Prepare by voting: write the epoch into an open transaction, and ask its leaders what they hold."""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epochal.coordinator.model.epoch import Actor, Committable, Copy, Epoch, EpochNumber
from epochal.coordinator.model.errors import EpochalError, PrepareRefused, SinkUnavailable
from epochal.sinks.conditions import before_the_decision, marker_of, refusing
from epochal.sinks.kafka import marker
from epochal.sinks.kafka.batches import frame, records
from epochal.sinks.kafka.batches.write import Layout
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.committing import plan_of, records_of
from epochal.sinks.kafka.core import WITH_TRANSACTION, Core, Shown, active_session
from epochal.sinks.kafka.delivery import encoding, index
from epochal.sinks.kafka.delivery.deliver import (
    Batch,
    Delivered,
    RowsGone,
    Stream,
    Transaction,
    deliver,
)
from epochal.sinks.kafka.delivery.encoding import Encoded
from epochal.sinks.kafka.delivery.producing import Delivery, DeliveryFailed, produce
from epochal.sinks.kafka.ending import Vote
from epochal.sinks.kafka.failures import of_vote
from epochal.sinks.kafka.marker import State
from epochal.sinks.kafka.produce import Plan
from epochal.sinks.kafka.topics import Topics
from epochal.sinks.kafka.wire import errors, reach
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import AnswerNotUnderstood, BrokerError
from epochal.sinks.kafka.wire.messages import Partition
from epochal.sinks.spark import parquet, stage
from epochal.sinks.spark.executors import first_cause

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SMALL_COPY_BYTES = 4 << 20
"""A copy of at most this many bytes is encoded by one task, however many files it has."""


def vote(sink: Core, epoch: Epoch, committable: Committable, now: Topics, by: Actor) -> Committable:
    """Write the epoch into an open transaction; return the committable, which names the transaction.

    ``SinkUnavailable``: the brokers did not answer, or another producer ended the transaction; nothing is visible and
    the call may be repeated.  ``PrepareRefused``: the brokers refuse the rows.
    """
    link = sink.link()
    if (encoded := staged_rows(sink, epoch)) is None:
        rows = records_of(sink, committable, 0)
        encoded = encoded_rows(sink, epoch, rows, layout_of(sink, link, now))
    if encoded.rows != committable.rows:
        told = f"{encoded.rows} rows were encoded, and {committable.rows} were judged"
        raise sink.refuse(epoch, told, "restart the query; if it happens again, report this as a bug of Epochal")
    marker_topic, _ = sink.seen()
    plan = plan_of(sink, link, marker_topic, committable, by)

    def judge(state: State) -> None:
        marker_topic.conditions.check_prepare(state, by, marker_of(epoch), epoch.number)

    with writing(plan, judge) as (cluster, clock):
        transaction, state = opened(sink, cluster, plan)
        judge(state)
        write(sink, cluster, plan, transaction, state, encoded, clock)
    held = Vote(transaction.transactional_id, transaction.producer, plan.marker)
    return replace(committable, payload={**committable.payload, "version": WITH_TRANSACTION, "votes": held.to_json()})


def write(
    sink: Core, cluster: Cluster, plan: Plan, transaction: Transaction, state: State, encoded: Encoded, clock: Clock
) -> None:
    """Write rows and marker into a new transaction, and ask the leaders whether they hold them.

    ``clock`` is set: the time of the transaction begins with its first partition.
    """
    deadline = clock.over_at = time.monotonic() + plan.transaction_timeout
    own = Partition(plan.marker_topic.topic, plan.marker_topic.slot)
    partitions = [*encoded.batches, own]
    cluster.add_partitions(transaction.transactional_id, transaction.producer, partitions, plan.link.deadline())
    delivered = dict(_produced(sink, plan, transaction, encoded, deadline))
    delivered |= send_marker(cluster, plan, transaction, state, own, deadline)
    check_held(cluster, plan, transaction, expected(encoded, delivered, own), deadline)
    sink.held = Shown(transaction.producer, plan.after(state))


def staged_rows(sink: Core, epoch: Epoch) -> Encoded | None:
    """Return the record batches that the durable copy consists of; None: it consists of rows.

    A copy that cannot be read refuses an epoch that is not decided.  ``CommitInDoubt``: an epoch that is.
    """
    assert epoch.copy is not None, "prepare has checked it"
    if epoch.copy.form != index.FORM:
        return None
    if sink.staged is not None and sink.staged[0] == epoch.decision.id:
        return sink.staged[1]
    with before_the_decision(sink.name, epoch):
        return index.read(epoch.copy, sink.name, epoch.number)


def layout_of(sink: Core, link: Link, now: Topics) -> Layout:
    """Return how the rows are cut into batches, for the topics as the vote has judged them."""
    targets = now.targets.values()
    codec, level = reach.codec_of(link.options)
    size, rows = reach.batch_limits(link.options)
    return Layout(
        topics=tuple(target.name for target in targets),
        partitions=tuple(target.partitions for target in targets),
        limits=tuple(target.batch_bytes for target in targets),
        partitioner=sink.encoding.partitioner,
        codec=codec,
        level=level,
        batch_bytes=size,
        batch_rows=rows,
    )


def encoded_rows(sink: Core, epoch: Epoch, rows: DataFrame, layout: Layout) -> Encoded:
    """Encode the records into files beside the durable copy, which consists of rows."""
    assert epoch.copy is not None, "prepare has checked it"
    root = stage.local_path(epoch.copy.root)
    assert root is not None, "votes need a local copy"
    folder = os.path.join(root, f"{sink.name}-{uuid.uuid4().hex}")
    is_small = sum(file.length for file in epoch.copy.files) <= SMALL_COPY_BYTES
    job = encoding.Job(layout, folder, sink.name, epoch.number)
    files = [os.path.join(root, file.path) for file in epoch.copy.files]
    plain = None if is_small else plain_columns(sink, epoch.copy, files)
    try:
        if plain is not None:
            return encoding.encode_files(rows.sparkSession, files, plain, job, sink.bounds)
        return encoding.encode(rows, job, sink.bounds, {} if is_small else encoding.A_FILE_A_TASK)
    except EpochalError:
        raise
    except Exception as error:
        raise not_encoded(sink, epoch, error) from error


def plain_columns(sink: Core, copy: Copy, files: Sequence[str]) -> encoding.Columns | None:
    """Return the columns that a worker can read from the copy's files, if they make up the whole record; else None."""
    from pyspark.sql.types import StructType

    made = sink.encoding
    if sink.keeps_records or not made.takes_rows_as_they_are or made.value is None:
        return None
    columns = encoding.Columns(made.key, made.value)
    schema = StructType.fromJson(json.loads(copy.schema))
    can_read = parquet.can_read(schema, columns.names) and parquet.is_readable(files, columns.names)
    return columns if can_read else None


def not_encoded(sink: Core, epoch: Epoch, error: Exception) -> PrepareRefused:
    return PrepareRefused(
        f"the epoch could not be encoded: {first_cause(error)}",
        sink=sink.name,
        epoch=epoch.number,
        state="nothing of the epoch was decided, and nothing was sent",
        help="correct the query, the disk of the checkpoint (space, rights) or the executors, whichever caused the"
        " error, and restart: the epoch is evaluated again",
    )


def opened(sink: Core, cluster: Cluster, plan: Plan) -> tuple[Transaction, State]:
    """Bar every older producer; return the new transaction, and the fence and the marker as they are then.

    Every InitProducerId raises the producer epoch.  If it is one above that of the transaction that this process has
    committed, nobody has written fence or marker since, and they need not be read.
    """
    link, marker_topic = plan.link, plan.marker_topic
    milliseconds = int(plan.transaction_timeout * 1000)
    producer = cluster.init_producer(marker_topic.transactional_id, milliseconds, link.deadline())
    known, sink.shown = sink.shown, None
    if known is not None and known.producer == (producer.id, producer.epoch - 1):
        state = known.state
    else:
        state = marker.read(link, marker_topic, final=True)
    return Transaction(marker_topic.transactional_id, producer, int(time.time() * 1000)), state


def _produced(
    sink: Core, plan: Plan, transaction: Transaction, encoded: Encoded, deadline: float
) -> Mapping[Partition, Delivered]:
    link = plan.link
    delivery = Delivery(
        link.by_hand(),
        transaction,
        reach.in_flight_of(link.options),
        deadline - time.monotonic(),
        sink.name,
        plan.epoch,
    )
    try:
        return produce(active_session(sink.name), delivery, encoded)
    except (DeliveryFailed, EpochalError):
        raise
    except Exception as error:
        raise SinkUnavailable(
            f"the Spark job that delivers {encoded.rows} rows failed: {first_cause(error)}",
            sink=sink.name,
            epoch=plan.epoch,
            state="the transaction was not committed, nothing of the epoch is visible",
            help="see why executors or their Python workers die (memory, a killed process), then restart the query",
        ) from error


def send_marker(
    cluster: Cluster, plan: Plan, transaction: Transaction, state: State, own: Partition, deadline: float
) -> Mapping[Partition, Delivered]:
    """Send tombstones for audit records that are no longer kept, then the marker, in a batch of its own."""
    gone = [(marker.key(plan.marker_topic, position), None) for position in plan.forgotten(state)]
    value = marker.record(plan.marker_topic, plan.after(state), plan.about)
    batches = [_batch(gone)] if gone else []
    batches.append(_batch([(marker.key(plan.marker_topic, plan.position), value)]))
    return deliver(cluster, transaction, {own: Stream(batches)}, in_flight=1, deadline=deadline)


def _batch(rows: Sequence[tuple[bytes | None, bytes | None]]) -> Batch:
    data = records.encode_one(rows)
    return Batch(data, 0, len(data), len(rows), 0, frame.checksum(data))


def expected(
    encoded: Encoded, delivered: Mapping[Partition, Delivered], own: Partition
) -> Mapping[Partition, Delivered]:
    """Return what each leader must hold: all rows that were encoded, at the offsets that were acknowledged."""
    rows = {where: sum(batch.rows for batch in its) for where, its in encoded.batches.items()}
    rows[own] = delivered[own].rows
    return {where: Delivered(number, delivered[where].first_offset) for where, number in rows.items()}


def check_held(
    cluster: Cluster, plan: Plan, transaction: Transaction, wanted: Mapping[Partition, Delivered], deadline: float
) -> None:
    """Ask each leader what it holds of the transaction; ``PrepareRefused`` unless that is every row.

    ``BrokerError``: the transaction was ended in the meantime.
    """
    producer = transaction.producer
    states = cluster.producers(list(wanted), deadline)
    for where, its in wanted.items():
        held, last = states[where].get(producer.id), (its.rows - 1) % frame.SEQUENCES
        if held is not None and held.epoch > producer.epoch:
            raise BrokerError(errors.INVALID_PRODUCER_EPOCH, f"{where.topic}[{where.partition}] has a newer epoch")
        if held is not None and held.epoch == producer.epoch and held.last_sequence >= 0 > held.first_offset:
            raise BrokerError(errors.INVALID_TXN_STATE, f"{where.topic}[{where.partition}]: the transaction was ended")
        if held is None or tuple(held) != (producer.epoch, last, its.first_offset):
            raise PrepareRefused(
                f"{where.topic}[{where.partition}] does not hold the {its.rows} rows that it acknowledged",
                sink=plan.marker_topic.sink,
                epoch=plan.epoch,
                state=f"producer {producer.id}: wanted epoch {producer.epoch}, last sequence {last}, first offset"
                f" {its.first_offset}; the leader has {tuple(held) if held is not None else 'nothing'}",
                help="restart the query: the epoch is written again; if it happens again, the brokers lose"
                " acknowledged rows (unclean leader election, min.insync.replicas)",
            )


@dataclass
class Clock:
    """When the transaction's timeout ends, a value of ``time.monotonic``; infinite before it has begun."""

    over_at: float = math.inf


@contextmanager
def writing(plan: Plan, judge: Callable[[State], object]) -> Iterator[tuple[Cluster, Clock]]:
    """Yield what a transaction is written with; errors inside become those of the vote.  ``judge``: see ``owned``."""
    with (
        named(plan.link, plan.epoch, plan.transaction_timeout) as clock,
        owned(plan, judge),
        Cluster(plan.link.by_hand()) as cluster,
    ):
        yield cluster, clock


@contextmanager
def owned(plan: Plan, judge: Callable[[State], object]) -> Iterator[None]:
    """Read the fence if the brokers say that the transaction was ended, and call ``judge``.

    ``judge`` raises ``Fenced`` if a newer start owns the sink.  This start must then not try again: its next
    InitProducerId would end a transaction of the newer one.
    """
    try:
        yield
    except (BrokerError, DeliveryFailed) as error:
        if error.code is not None and errors.is_fenced(error.code):
            judge(marker.read(plan.link, plan.marker_topic, final=False))
        raise


@contextmanager
def named(link: Link, epoch: EpochNumber, timeout: float = 0) -> Iterator[Clock]:
    """Turn errors of brokers and connections into errors of a sink.  ``timeout``: that of the transaction.

    Yields a clock, for ``write`` to set.
    """
    clock = Clock()
    with refusing(link.sink, epoch):
        try:
            yield clock
        except (DeliveryFailed, OSError, BrokerError, AnswerNotUnderstood, RowsGone) as error:
            raise of_vote(link, epoch, error, timeout, is_over=time.monotonic() >= clock.over_at) from error
