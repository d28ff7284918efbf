"""Whether an epoch can be written as a vote.  If not, the sink produces it after the decision, in one process."""

from __future__ import annotations

import time

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.kafka.batches import frame
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.core import Core
from epochal.sinks.kafka.delivery import libraries
from epochal.sinks.kafka.topics import Topics
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import NotByHand
from epochal.sinks.spark import stage
from epochal.sinks.spark.executors import check_executors

REDONE = "epochs are produced after the decision, by one task"
"""What the log and ``guarantee()`` say where the sink does not vote, before the reason."""
WRITTEN = (
    "epochs are written into an open transaction before the decision, and one request commits it after the decision"
)
"""What the log says where the sink votes, before the form of the durable copy."""


def reason_of_arguments(sink: Core) -> str | None:
    """Return why the sink does not vote, as far as its arguments and this process tell; None: they allow it."""
    if callable(sink.options):
        return _reason_of_choice(sink) or _reason_of_libraries()
    return reason_against(sink, Link(sink.bootstrap, sink.name, sink.request_timeout, sink.options or {}))


def reason_against(sink: Core, link: Link, *, must: bool = False) -> str | None:
    """Return why the sink cannot vote, whatever the cluster is; None: nothing is against it.

    ``must``: also if the sink shall not begin another vote.
    """
    chosen = None if must else _reason_of_choice(sink)
    return chosen or _reason_of_libraries() or _reason_of_options(link)


def _reason_of_choice(sink: Core) -> str | None:
    if not sink.votes:
        return "votes=False"
    return f"slots={sink.slots}" if sink.slots > 1 else None


def _reason_of_libraries() -> str | None:
    lacking = frame.lacking()
    return f"the driver's Python cannot load {lacking}" if lacking else None


def _reason_of_options(link: Link) -> str | None:
    try:
        link.by_hand()
    except NotByHand as option:
        return f"option {option.option!r} is librdkafka's alone: {option.why}"
    return None


def reason_now(sink: Core, link: Link, now: Topics, folder: str) -> str | None:
    """Return why this epoch cannot be written as a vote; None: it can."""
    reason = reason_against(sink, link)
    if reason is not None:
        return reason
    if sink.ever_used > 1:
        return f"the sink was used with slots={sink.ever_used}"
    if stage.local_path(folder) is None:
        return f"the checkpoint lies where Python tasks cannot write: {folder}"
    for topic in now.targets.values():
        if topic.rights is not None and "READ" not in topic.rights:
            return f"the user lacks READ on topic {topic.name!r}, by which the leaders tell what they hold"
    return _old_brokers(sink, link) or _lacking_executor(sink)


def _lacking_executor(sink: Core) -> str | None:
    """Return what an executor lacks; one is asked once per start, unless the start's check has found nothing."""
    if sink.workers_lack is None:
        try:
            check_executors(sink.name, frame.LIBRARIES, libraries.PACKAGES, lacking=frame.lacking)
        except Misconfigured as lacking:
            sink.workers_lack = lacking.what
        except Exception:  # the job that writes the epoch fails for the same cause, and its error names it
            return None
        else:
            sink.workers_lack = ""
    return sink.workers_lack or None


def _old_brokers(sink: Core, link: Link) -> str | None:
    """Ask once per start which requests the brokers lack."""
    if sink.lacking is None:
        with Cluster(link.by_hand()) as cluster:
            sink.lacking = cluster.lacking(time.monotonic() + link.timeout)
    return "; ".join(sink.lacking) or None
