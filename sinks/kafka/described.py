"""The transactions of transactional ids, as their coordinators describe them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from epochal.sinks.inspection import Described
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.failures import failure
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import TRANSACTIONAL_ID_NOT_FOUND, AnswerNotUnderstood, BrokerError, NotByHand
from epochal.sinks.kafka.wire.messages import TransactionState

T = TypeVar("T")

MAY_COMMIT = ("Ongoing", "PrepareCommit")
OPEN = (*MAY_COMMIT, "PrepareAbort", "PrepareEpochFence")
"""The states in which readers wait for the end of a transaction."""


def of_ids(link: Link, ids: Iterable[str]) -> Sequence[Described] | None:
    """Return the newest transaction of each id; None: the link has options that only librdkafka has."""
    try:
        return _asking(link, lambda cluster: _of_ids(cluster, ids, link.deadline()))
    except NotByHand:
        return None


def at(bootstrap: str, prefix: str, timeout: float) -> Sequence[Described]:
    """Return the newest transaction of each id at these brokers that begins with ``prefix``."""
    link = Link(bootstrap, "kafka", timeout)

    def described(cluster: Cluster) -> Sequence[Described]:
        known = cluster.transactional_ids(link.deadline())
        return _of_ids(cluster, sorted(name for name in known if name.startswith(prefix)), link.deadline())

    return _asking(link, described)


def _asking(link: Link, ask: Callable[[Cluster], T]) -> T:
    try:
        with Cluster(link.by_hand()) as cluster:
            return ask(cluster)
    except (OSError, BrokerError, AnswerNotUnderstood) as error:
        raise failure(link, error, "for its transactions", stands="nothing was changed") from error


def _of_ids(cluster: Cluster, ids: Iterable[str], deadline: float) -> Sequence[Described]:
    return [_described(name, cluster.describe_transaction(name, deadline)) for name in ids]


def _described(name: str, told: TransactionState) -> Described:
    if told.error and told.error != TRANSACTIONAL_ID_NOT_FOUND:
        raise BrokerError(told.error, f"DescribeTransactions of {name!r}")
    is_open = told.state in OPEN
    return Described(
        name,
        told.state,
        is_open,
        told.state in MAY_COMMIT,
        (told.producer.id, told.producer.epoch),
        told.began_ms / 1000 if is_open and told.began_ms > 0 else None,
        told.timeout_ms / 1000,
        [f"{topic}[{number}]" for topic, number in sorted(told.partitions)],
    )
