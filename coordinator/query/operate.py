"""What an operator decides about a stopped query: ``adopt``, ``retire``, ``rename``, ``resolve``.

The console commands of these names write the same records as the functions below (``resolve`` has four of them).  Each
function writes one record with the reason, and it may be called again after any failure.  ``assume`` returns the record
that an action would write, and writes nothing.  An action takes the steps of a start (``Coordinator.act``), so a query
that still runs ends with ``Fenced``.  An action may need the Spark session of this process: always with a
``DeltaSink``, and with any sink if an epoch is decided and its rows are in the durable copy.
"""

from __future__ import annotations

import datetime
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from epochal.checkpoints.log import Apply, Commit, Operator
from epochal.coordinator.model.epoch import EpochNumber, EpochRequest, Query
from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured
from epochal.coordinator.model.events import EventPublisher
from epochal.coordinator.protocol.actions import (
    Accept,
    Adopt,
    Evaluate,
    OperatorAction,
    Rename,
    Retire,
    RewriteMarker,
    Skip,
)
from epochal.coordinator.protocol.history import History
from epochal.coordinator.query.checkpoint import ask_at, located, needing
from epochal.coordinator.query.pipeline import Pipeline
from epochal.coordinator.query.spark import offsets_file
from epochal.sinks.epochs import ends_of
from epochal.sinks.inspection import inspection_of, newest, written
from epochal.sinks.protocol import MarkedSink, SessionSink, Sink
from epochal.sinks.spark.executors import running_session
from epochal.sinks.spark.stage import files_at, local_path


def adopt(pipeline: Pipeline, checkpoint: str, *, why: str, new: bool = False, uneven: bool = False) -> Operator:
    """Let the checkpoint go on where it lies now: it was moved or restored, or its log is empty.

    With an empty log, the query goes on from where the sinks end.
    ``new``: the checkpoint does not exist yet; create its folder on this disk, with the file that tells Spark the
    query's id.  ``uneven``: go on although the sinks do not all show the same epoch, or although Spark has planned its
    next epoch already.
    """
    return run(pipeline, checkpoint, Adopt(why=why, at=now()), new=new, uneven=uneven)


def retire(pipeline: Pipeline, checkpoint: str, sink: str, *, why: str, unreachable: bool = False) -> Operator:
    """Let the sink leave the pipeline after it shows the last epoch.  It may return later, just as it is now.

    ``unreachable``: the sink is not asked.  If it lacks a decided epoch, it never gets that epoch.
    """
    return run(pipeline, checkpoint, Retire(sink=sink, unreachable=unreachable, why=why, at=now()))


def rename(pipeline: Pipeline, checkpoint: str, old: str, new: str, *, why: str) -> Operator:
    """Let the sink ``old`` go on as ``new``.  The pipeline must have it under one of the two names."""
    return run(pipeline, checkpoint, Rename(old=old, new=new, why=why, at=now()))


def accept(pipeline: Pipeline, checkpoint: str, sink: str, *, why: str, drop: bool = False) -> Operator:
    """Let the sink go on from what it is and shows now.  It never gets the epochs of this log that it lacks.

    ``drop``: the next start may delete rows that the sink holds and does not show.
    """
    return run(pipeline, checkpoint, Accept(sink=sink, why=why, at=now()), drop=drop)


def remark(pipeline: Pipeline, checkpoint: str, sink: str, *, why: str) -> Operator:
    """Write the sink's marker, which is gone or older.  You have seen that the sink shows the log's last epoch."""
    return run(pipeline, checkpoint, RewriteMarker(sink=sink, why=why, at=now()))


def skip(pipeline: Pipeline, checkpoint: str, first: EpochNumber, last: EpochNumber, *, why: str) -> Operator:
    """Skip these epochs: they never reached the pipeline, and nobody needs them."""
    return run(pipeline, checkpoint, Skip(first=first, last=last, why=why, at=now()))


def evaluate(pipeline: Pipeline, checkpoint: str, sinks: Sequence[str], *, why: str) -> Operator:
    """Idempotent mode: let these sinks keep their rows of the last epoch.  The others get the rows of the next run."""
    return run(pipeline, checkpoint, Evaluate(sinks=tuple(sinks), why=why, at=now()))


def run(
    pipeline: Pipeline,
    checkpoint: str,
    act: OperatorAction,
    *,
    new: bool = False,
    uneven: bool = False,
    drop: bool = False,
) -> Operator:
    """Look, fence, look again, settle, then write the record, and return it.

    If an earlier attempt has written the record already, return that one.
    """
    with _Operation(pipeline, checkpoint, act, new=new, uneven=uneven, drop=drop) as operation:
        return operation.recorded() or operation.run()


def assume(
    pipeline: Pipeline,
    checkpoint: str,
    act: OperatorAction,
    *,
    new: bool = False,
    uneven: bool = False,
    drop: bool = True,
) -> Operator:
    """Return the record that this action would write if nothing changes until then.  This looks and judges, but writes
    nothing."""
    with _Operation(pipeline, checkpoint, act, new=new, uneven=uneven, drop=drop) as operation:
        return operation.assume()


def hidden(pipeline: Pipeline, checkpoint: str, sink: str) -> list[str]:
    """Return one line for each thing that the sink holds beyond its marker.  The next start deletes these things.

    This writes nothing.
    """
    act = Accept(sink=sink, why="to look", at=now())
    with _Operation(pipeline, checkpoint, act, new=False, uneven=False, drop=True) as operation:
        return operation.hidden()


def now() -> str:
    """Return the time of an operator's record, by the clock of this machine."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


class _Operation:
    """One action on one checkpoint, with its own sink objects."""

    def __init__(
        self, pipeline: Pipeline, checkpoint: str, act: OperatorAction, *, new: bool, uneven: bool, drop: bool
    ) -> None:
        self._act, self._uneven, self._drop = act, uneven, drop
        self._sinks = _sinks_for(act, pipeline.new_sinks())
        self._ask = ask_at(pipeline.app, located(checkpoint), needing(running_session))
        self._new = not self._ask.query.query_id
        if self._new:
            self._ask = _begun(self._ask, new=new and isinstance(act, Adopt))
        telling = EventPublisher(self._ask.query, pipeline.consumers())
        self._coordinator = pipeline.coordinator(self._ask.query, self._sinks, running_session, telling)
        self._log = pipeline.log_at(self._ask.query.checkpoint, running_session)

    def __enter__(self) -> _Operation:
        return self

    def __exit__(self, *_: object) -> None:
        for sink in self._sinks:
            sink.close()

    def assume(self) -> Operator:
        self._check()
        return self._coordinator.assume(self._ask, self._act)

    def run(self) -> Operator:
        """Run the action.  What can be refused is refused before anything is written."""
        self._check()
        self._refuse_without_session()
        self._coordinator.assume(self._ask, self._act)
        if self._new:
            _write_metadata(self._ask.query)
        return self._coordinator.act(self._ask, self._act, before_record=self._check)

    def recorded(self) -> Operator | None:
        """Return the record of an earlier attempt whose answer was lost, else None.

        It is the newest operator record, if it is about the same action and no epoch came after it.
        """
        for entry in reversed(self._log.read()):
            if isinstance(entry.record, (Commit, Apply)):
                return None
            if isinstance(entry.record, Operator):
                return entry.record if entry.record.said == self._act.said and self._stands(entry.record) else None
        return None

    def _stands(self, record: Operator) -> bool:
        """Return whether a record about what a sink shows is still true: the sink may have lost its marker again."""
        if not isinstance(self._act, (Accept, RewriteMarker)):
            return True
        return self._coordinator.assume(self._ask, self._act).stands == record.stands

    def _check(self) -> None:
        """Refuse what the rules over the log cannot see, but the sinks' audits and prepared rows show."""
        history = History.of(self._log.read())
        if isinstance(self._act, Adopt) and not self._uneven and history.last is None and not history.stands:
            _refuse_uneven(self._ask, self._sinks)
        if isinstance(self._act, Skip) and history.expected == self._act.first:
            _refuse_going_back(self._ask.query, self._act, history)
        if isinstance(self._act, Accept):
            sink = next((sink for sink in self._sinks if sink.name == self._act.sink), None)
            if sink is not None and self._act.sink not in {*history.members, *history.stands}:
                _refuse_written_by_this(self._ask, sink)
            if not self._drop and (found := self.hidden()):
                raise Misconfigured(
                    f"the sink holds what it does not show: {', '.join(found)}",
                    sink=self._act.sink,
                    state="the next start deletes it",
                    help="if these rows were visible and only the marker is wrong, `epochal resolve --marker"
                    f" {self._act.sink}`; if the rows may be deleted, add --drop"
                    if history.took_part(self._act.sink)
                    else "if these rows may be deleted, add --drop; else point the sink at a table of its own",
                )

    def hidden(self) -> list[str]:
        """Return what the accepted sink holds beyond its marker.  It may have been visible before."""
        sinks = [sink for sink in self._sinks if isinstance(self._act, Accept) and sink.name == self._act.sink]
        return [told for sink in sinks for told in _hidden(self._ask, sink)]

    def _refuse_without_session(self) -> None:
        if any(isinstance(written(sink), SessionSink) for sink in self._sinks):
            needing(running_session)()


def _sinks_for(act: OperatorAction, sinks: Sequence[Sink]) -> Sequence[Sink]:
    if isinstance(act, Retire) and act.unreachable:
        return [sink for sink in sinks if sink.name != act.sink]
    if isinstance(act, Rename):
        if {act.old, act.new} <= {sink.name for sink in sinks}:
            raise Misconfigured(
                f"the name {act.new!r} is taken",
                sink=act.old,
                state="the pipeline has sinks of both names",
                help="choose a name that this app has not used, or take the sink of the new name out of the pipeline",
            )
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
    if sink.name == act.new:  # the user's code has the new name already: make the sink under its old name first
        return _under_both_names(act, sink.renamed(act.old)[1])
    return sink.renamed(act.new)


def _begun(ask: EpochRequest, *, new: bool) -> EpochRequest:
    """Return what Spark will ask for on a checkpoint that does not exist yet, under a new query id."""
    folder = local_path(ask.query.checkpoint)
    if not new or folder is None:
        raise Misconfigured(
            f"no query has been started on {ask.query.checkpoint}, so it is no checkpoint yet",
            state="it has no file metadata",
            help="to begin a new checkpoint on a local disk, `epochal adopt --new`; elsewhere start the query once: the"
            " start is refused, but Spark then has written the file",
        )
    if any(place.is_file() for place in (Path(folder), *Path(folder).parents)):
        raise Misconfigured(
            f"{ask.query.checkpoint} cannot be a checkpoint",
            state="it is a file, or lies below one",
            help="name a folder that is empty or does not exist",
        )
    if held := [name for name in ("offsets", "commits", "state", "epochal") if os.path.exists(f"{folder}/{name}")]:
        raise Misconfigured(
            f"{ask.query.checkpoint} is no new checkpoint",
            state=f"it has {', '.join(held)}, and no file metadata",
            help="restore the file metadata from a backup, or name a folder that is empty or does not exist",
        )
    return replace(ask, query=replace(ask.query, query_id=str(uuid.uuid4())))


def _write_metadata(query: Query) -> None:
    """Write the file as Spark's ``StreamMetadata`` does.  The rename makes it appear complete or not at all."""
    folder = local_path(query.checkpoint) or ""
    try:
        os.makedirs(folder, exist_ok=True)
        draft = os.path.join(folder, ".metadata.epochal")
        with open(draft, "w", encoding="utf-8") as file:
            json.dump({"id": query.query_id}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, os.path.join(folder, "metadata"))
    except OSError as error:
        raise Misconfigured(
            f"the new checkpoint cannot be made: {error}", state=folder, help="name a folder that you may write to"
        ) from error


def _refuse_uneven(ask: EpochRequest, sinks: Sequence[Sink]) -> None:
    """Refuse unless all sinks end with the same epoch and Spark will go on right after it.

    Sinks that show epochs of this checkpoint must all show the epoch before the one that Spark will ask for.
    """
    ends = {sink.name: newest(sink, ask.query.app) for sink in sinks}
    shown = {name: (row.incarnation, row.epoch) for name, row in ends.items() if row is not None}
    told = ", ".join(f"{name}: epoch {epoch} of query {query}" for name, (query, epoch) in sorted(shown.items()))
    expected = (ask.query.query_id, ask.epoch - 1)
    if any(query == ask.query.query_id for query, _ in shown.values()):
        if set(shown.values()) != {expected}:
            raise CheckpointMismatch(
                f"the sinks show epochs of this very checkpoint, and Spark will ask for epoch {ask.epoch}",
                state=f"{told}; the epoch log is empty",
                help="restore the epoch log (the folder epochal of the checkpoint) from a backup; if it is lost, begin"
                " a new checkpoint where the sinks end: `epochal adopt --new` (docs/runbook.md)",
            )
    elif shown and ask.fingerprint:
        raise CheckpointMismatch(
            f"Spark has already planned epoch {ask.epoch} of this new checkpoint, so the offsets where it begins are"
            " fixed",
            state=f"planned: {ask.offsets!r}; the sinks show {told}",
            help="move this checkpoint away, have the query read from where the sinks end, and begin another one:"
            " `epochal adopt --new`; if the planned epoch begins exactly where the sinks end, add --uneven",
        )
    elif len(set(shown.values())) > 1:
        raise CheckpointMismatch(
            "the sinks do not all show the same epoch, so a new checkpoint cannot begin where all of them end",
            state=told,
            help="restore the old checkpoint if you can: its next start brings all sinks to the same epoch; else write"
            " the rows of the missing epochs into the sinks that lack them, or go without them, and add --uneven",
        )


def _refuse_going_back(query: Query, act: Skip, history: History) -> None:
    """Refuse to skip an epoch by which Spark goes back to before the last logged one.

    Spark's streaming checkpoint manager writes such an epoch if it repartitions the operator state after an epoch that
    is not in ``commits``: it leaves that epoch out, and copies the offsets of the newest one in ``commits``.  So
    Spark runs the epoch that was left out once more, under another number.
    """
    if history.last is None:
        return
    last = history.last.number
    known = _Planned.of(history.last.current.offsets)
    logged = {epoch.number: _Planned.of(epoch.current.offsets) for epoch in history.epochs}
    numbers = _files(query, "offsets") | logged.keys()  # Spark may have deleted the file of a logged epoch
    earlier = [logged.get(number) or _planned(query, number) for number in numbers if number < last]
    for epoch in range(act.first, act.last + 1):
        skipped = _planned(query, epoch)
        if skipped is None or known is None or skipped == known:
            continue
        if skipped.at >= known.at and skipped not in earlier:
            continue
        raise CheckpointMismatch(
            f"after epoch {act.last}, Spark would run epoch {last} once more, and give it another number",
            epoch=epoch,
            state=f"offsets/{epoch} was planned at {skipped.at}, before epoch {last} ({known.at}): Spark repartitioned"
            f" the operator state without epoch {last} (enforce_exactly_once_sink=False)",
            help=f"undo the repartition: stop the query, delete commits/{last} and above, offsets/{last + 1} and above,"
            f" each with its hidden .N.crc, and below state all files of version {last + 2} and above (the names begin"
            f" with it); restart, so that epoch {last} is finished; then stop the query and repartition once more",
        )


@dataclass(frozen=True)
class _Planned:
    """What identifies an ``offsets/N``: where it ends in each source, when it was planned (ms), and its watermark."""

    ends: Mapping[str, str | None]
    at: int
    watermark: int

    @classmethod
    def of(cls, offsets: str) -> _Planned | None:
        """Return what the text of the file says; None if it is not as Spark writes it."""
        try:
            about = json.loads(offsets.splitlines()[1])
            return cls(ends_of(offsets), int(about["batchTimestampMs"]), int(about["batchWatermarkMs"]))
        except (IndexError, KeyError, TypeError, ValueError):
            return None


def _planned(query: Query, epoch: EpochNumber) -> _Planned | None:
    """Return what Spark's file of the epoch says; None if there is none."""
    text = files_at(query.checkpoint, needing(running_session)).read(offsets_file(query.checkpoint, epoch))
    return None if text is None else _Planned.of(text.decode())


def _files(query: Query, folder: str) -> set[EpochNumber]:
    """Return the epochs that have a file in this folder of the checkpoint."""
    found = files_at(query.checkpoint, needing(running_session)).listing(f"{query.checkpoint}/{folder}")
    return {int(name) for name in found or () if name.isdigit()}


def _refuse_written_by_this(ask: EpochRequest, sink: Sink) -> None:
    """Refuse a sink that this very query has written and that the log does not know: the log is older than the sink."""
    end = newest(sink, ask.query.app)
    if end is not None and end.incarnation == ask.query.query_id:
        raise CheckpointMismatch(
            f"the sink shows epoch {end.epoch} of this very query, and the log does not know the sink",
            sink=sink.name,
            epoch=end.epoch,
            state=f"position {end.position}; Spark will ask for epoch {ask.epoch}",
            help="the checkpoint was rolled back to before the sink joined: restore the newest one (docs/runbook.md)",
        )


def _hidden(ask: EpochRequest, sink: Sink) -> list[str]:
    inspection = inspection_of(sink, ask.query)
    if inspection is None:
        return []
    try:
        return [f"{left.what}{f' ({left.rows} rows)' if left.rows else ''}" for left in inspection.leftovers()]
    finally:
        inspection.close()


__all__ = [
    "accept",
    "adopt",
    "assume",
    "evaluate",
    "hidden",
    "remark",
    "rename",
    "retire",
    "run",
    "skip",
]
