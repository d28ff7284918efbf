"""What a person decides about a query: ``adopt``, ``retire``, ``rename``, ``resolve``.  The query is stopped.

Each is what the console command of that name runs, writes one record with the reason, and may be said again after
any failure.  ``assume`` shows the record that an act would write, and writes nothing.  The order is that of a start
(``Coordinator.act``), so a query that still runs ends with ``Fenced``.  What an act needs of Spark it takes from the
session of this process: a ``DeltaSink`` always, any sink where an epoch is decided and its rows are in the copy.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from epochal.checkpoints.log import Operator
from epochal.coordinator.acts import Accept, Act, Adopt, Evaluate, Remark, Rename, Retire, Skip
from epochal.coordinator.epoch import Ask, EpochNumber
from epochal.coordinator.errors import CheckpointMismatch, Misconfigured
from epochal.coordinator.pipeline import Pipeline, ask_at, located, needing
from epochal.sinks.executors import running_session
from epochal.sinks.protocol import AuditedSink, MarkedSink, Sink


def adopt(pipeline: Pipeline, checkpoint: str, *, why: str, uneven: bool = False) -> Operator:
    """The checkpoint goes on where it lies now: moved, restored, or a new one that begins where the sinks end.

    Of a new one Spark must have written its file ``metadata``: start the query once, it is refused.  Sinks that do not
    all show the same epoch of the checkpoint before it are refused, but with ``uneven``.
    """
    return run(pipeline, checkpoint, Adopt(why=why, at=now()), uneven=uneven)


def retire(pipeline: Pipeline, checkpoint: str, sink: str, *, why: str, unreachable: bool = False) -> Operator:
    """The sink leaves the pipeline, once it shows the last epoch; it may return just as it is.

    ``unreachable``: it is not asked, and what it lacks of an epoch that was decided stays out of it.
    """
    return run(pipeline, checkpoint, Retire(sink=sink, unreachable=unreachable, why=why, at=now()))


def rename(pipeline: Pipeline, checkpoint: str, old: str, new: str, *, why: str) -> Operator:
    """The sink ``old`` goes on as ``new``; the pipeline has it under one of the two names."""
    return run(pipeline, checkpoint, Rename(old=old, new=new, why=why, at=now()))


def accept(pipeline: Pipeline, checkpoint: str, sink: str, *, why: str) -> Operator:
    """The sink goes on from what it is and shows now; what it lacks of this log's epochs stays out of it."""
    return run(pipeline, checkpoint, Accept(sink=sink, why=why, at=now()))


def remark(pipeline: Pipeline, checkpoint: str, sink: str, *, why: str) -> Operator:
    """The sink's marker, which is gone, is written again: a person has seen that it shows the log's last epoch."""
    return run(pipeline, checkpoint, Remark(sink=sink, why=why, at=now()))


def skip(pipeline: Pipeline, checkpoint: str, first: EpochNumber, last: EpochNumber, *, why: str) -> Operator:
    """These epochs never reached the pipeline, and are not missed."""
    return run(pipeline, checkpoint, Skip(first=first, last=last, why=why, at=now()))


def evaluate(pipeline: Pipeline, checkpoint: str, sinks: Sequence[str], *, why: str) -> Operator:
    """Idempotent mode: these sinks keep their rows of the last epoch; the others are given those of the next run."""
    return run(pipeline, checkpoint, Evaluate(sinks=tuple(sinks), why=why, at=now()))


def run(pipeline: Pipeline, checkpoint: str, act: Act, *, uneven: bool = False) -> Operator:
    """Look, fence, look again, settle, then the record."""
    return _acted(pipeline, checkpoint, act, uneven=uneven, writes=True)


def assume(pipeline: Pipeline, checkpoint: str, act: Act, *, uneven: bool = False) -> Operator:
    """The record that this act would write if nothing changes until then; looks, judges and writes nothing."""
    return _acted(pipeline, checkpoint, act, uneven=uneven, writes=False)


def now() -> str:
    """When a person says something, by the clock of this machine."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _acted(pipeline: Pipeline, checkpoint: str, act: Act, *, uneven: bool, writes: bool) -> Operator:
    where = located(checkpoint)
    sinks = _sinks_for(act, pipeline.new_sinks())
    try:
        ask = ask_at(pipeline.app, where, needing(running_session))
        _refuse_unstarted(ask)
        if isinstance(act, Adopt) and not uneven:
            _refuse_uneven(ask, sinks)
        coordinator = pipeline.coordinator(ask.query, sinks, running_session)
        return coordinator.act(ask, act) if writes else coordinator.assume(ask, act)
    finally:
        for sink in sinks:
            sink.close()


def _sinks_for(act: Act, sinks: Sequence[Sink]) -> Sequence[Sink]:
    if isinstance(act, Retire) and act.unreachable:
        return [sink for sink in sinks if sink.name != act.sink]
    if isinstance(act, Rename):
        return [part for sink in sinks for part in _under_both_names(act, sink)]
    return sinks


def _under_both_names(act: Rename, sink: Sink) -> Sequence[Sink]:
    if sink.name not in (act.old, act.new):
        return [sink]
    if not isinstance(sink, MarkedSink):
        raise Misconfigured(
            "the sink's marker cannot be written under another name",
            sink=sink.name,
            state=f"{type(sink).__name__} has no method renamed",
            help="give it that method (epochal.sinks.protocol.MarkedSink)",
        )
    if sink.name == act.new:  # the code has it already; which of the two is new, the sink is told by what it was
        return _under_both_names(act, sink.renamed(act.old)[1])
    return sink.renamed(act.new)


def _refuse_unstarted(ask: Ask) -> None:
    if not ask.query.query_id:
        raise Misconfigured(
            f"no query has been started on {ask.query.checkpoint} yet, so the checkpoint has no identity",
            state="it has no file metadata",
            help="start the query once: it is refused, and Spark leaves the file",
        )


def _refuse_uneven(ask: Ask, sinks: Sequence[Sink]) -> None:
    """Sinks that another checkpoint left at different epochs: its last one was in doubt, and its log is gone."""
    newest = {sink.name: sink.epochs(ask.query.app, limit=1).newest for sink in sinks if isinstance(sink, AuditedSink)}
    shown = {name: (row.incarnation, row.epoch) for name, row in newest.items() if row is not None}
    of_this = [name for name, (incarnation, _) in shown.items() if incarnation == ask.query.query_id]
    if of_this or len(set(shown.values())) < 2:
        return
    told = ", ".join(f"{name}: epoch {epoch} of query {query}" for name, (query, epoch) in sorted(shown.items()))
    raise CheckpointMismatch(
        "the sinks do not all show the same epoch, so a new checkpoint cannot begin where all of them end",
        state=told,
        help="restore the old checkpoint if you can: its next start evens them; else bring the rows of the missing"
        " epochs into the sinks that lack them, or leave them out, and say that they are uneven (--uneven)",
    )


__all__ = [
    "accept",
    "adopt",
    "assume",
    "evaluate",
    "remark",
    "rename",
    "retire",
    "run",
    "skip",
]
