"""Turn errors of brokers and connections into errors of a sink, for an epoch in an open transaction.

Nothing of the epoch is visible then.  Where it is decided already (``again.py``), the caller says so.
"""

from __future__ import annotations

from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.errors import EpochalError, Misconfigured, PrepareRefused, SinkUnavailable
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.delivery.producing import DeliveryFailed
from epochal.sinks.kafka.wire import errors
from epochal.sinks.kafka.wire.errors import BrokerError


def failure(
    link: Link,
    error: Exception,
    doing: str,
    code: int | None = None,
    stands: str = "nothing of the epoch is visible",
) -> EpochalError:
    """Return ``Misconfigured`` for what a new try cannot change, else ``SinkUnavailable``.

    ``stands``: what is true of the epoch then.
    """
    if isinstance(error, BrokerError):
        code = error.code
    text = link.scrub(
        f"{error}" if isinstance(error, (BrokerError, DeliveryFailed)) else f"{type(error).__name__}: {error}"
    )
    if code is not None and errors.is_refused(code):
        return Misconfigured(
            f"Kafka refuses the request {doing}: {text:.300}",
            sink=link.sink,
            state=f"bootstrap servers {link.bootstrap}",
            help="correct what Kafka names: the user's rights (ACLs), a topic's setting, or options= of KafkaSink",
        )
    if code is not None and errors.is_fenced(code):
        return SinkUnavailable(
            f"another producer ended the transaction of the epoch: {text:.300}",
            sink=link.sink,
            state=f"bootstrap servers {link.bootstrap}; {stands}",
            help="start one query per app and sink, and end what else uses the transactional id",
        )
    return SinkUnavailable(
        f"Kafka at {link.bootstrap} did not answer the request {doing} in time: {text:.300}",
        sink=link.sink,
        state=f"bootstrap servers {link.bootstrap}; {stands}",
        help="start the brokers, or make them reachable from driver and executors under the addresses that they"
        " advertise (advertised.listeners); if they are up and slow, raise request_timeout=",
    )


def of_vote(link: Link, epoch: EpochNumber, error: Exception, timeout: float, *, is_over: bool) -> EpochalError:
    """Return the error for an epoch that could not be written.  ``is_over``: its transaction's time was over then."""
    why = link.scrub(f"{error}" if isinstance(error, DeliveryFailed) else f"{type(error).__name__}: {error}")
    if isinstance(error, (BrokerError, DeliveryFailed)) and error.code == errors.UNKNOWN_TOPIC_OR_PARTITION:
        return PrepareRefused(
            f"a topic was deleted while the epoch was written into it: {why:.300}",
            sink=link.sink,
            epoch=epoch,
            state="nothing of the epoch is visible, and nothing was decided",
            help="if it was deleted by mistake, create it again and restart the query, whose error then says how to go"
            " on; if it is not wanted any more, let the sink leave (epochal retire --unreachable)",
        )
    if is_over:
        return PrepareRefused(
            f"the epoch could not be written within the transaction timeout of {timeout:g} s: {why:.300}",
            sink=link.sink,
            epoch=epoch,
            state="nothing of the epoch is visible, and nothing was decided",
            help="raise transaction_timeout= (and the broker's transaction.max.timeout.ms), speed up the brokers or the"
            " link to them, and restart the query; make epochs smaller with the source's limit per trigger",
        )
    kind = error.kind if isinstance(error, DeliveryFailed) else type(error).__name__
    if kind in ("RecordsDamaged", "RowsGone", "AnswerNotUnderstood"):
        return PrepareRefused(
            f"the epoch could not be written: {why:.300}",
            sink=link.sink,
            epoch=epoch,
            state="nothing of the epoch is visible, and nothing was decided",
            help="restart the query: the epoch is written again; if it happens again, the file system of the checkpoint"
            " or the brokers lose what they have acknowledged",
        )
    return failure(link, error, "to write an epoch", error.code if isinstance(error, DeliveryFailed) else None)
