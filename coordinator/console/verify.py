"""``epochal verify``: compares markers, audits and row counts of all sinks with the log and with each other.

It keeps a few numbers per epoch in memory, and one page of an audit at a time.  The sink's server counts rows; rows are
never read.  The answer lists what was checked and what could not be checked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Annotated

import typer
from rich.console import RenderableType

from epochal.checkpoints.log import Apply, Commit, EpochRecord, Operator
from epochal.coordinator.console import audit, render
from epochal.coordinator.console.load import load
from epochal.coordinator.console.options import CheckpointArgument, JsonOption, PipelineOption
from epochal.coordinator.console.render import FINE, UNKNOWN, WRONG, Answer, answering, line, table
from epochal.coordinator.console.standing import Standing, doubt, resolve, take
from epochal.coordinator.model.epoch import Digest, EpochNumber, Json, Position, Query
from epochal.coordinator.protocol.history import History
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.epochs import ShownEpoch
from epochal.sinks.inspection import Inspection, audited, inspection_of
from epochal.sinks.protocol import Sink

MOST_ROWS = 5_000_000
"""How many rows one statement counts at most, by the audit's row counts.  A larger epoch has its own statement."""
Key = tuple[str, EpochNumber]
"""Incarnation and epoch."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.  ``kind``: refused, in-doubt, gap, decision, offsets, count, digest."""

    kind: str
    what: str
    sink: str | None = None
    epoch: EpochNumber | None = None
    position: Position | None = None


@dataclass
class Account:
    """What was found, what was checked, and what was not."""

    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    seen: dict[Key, tuple[str, str, int, Digest | None]] = field(default_factory=dict)  # the first sink's audit

    def find(self, kind: str, what: str, row: ShownEpoch | None = None, **where: str | int | None) -> None:
        named = {"sink": row.sink, "epoch": row.epoch, "position": row.position} if row is not None else where
        self.findings.append(Finding(kind, what, **named))


@answering
def verify(
    checkpoint: CheckpointArgument,
    pipeline: PipelineOption = "",
    wait: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for a running query to commit an epoch that is in doubt.")
    ] = 5.0,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Compare all sinks' markers, audits and row counts with the log, and list what does not agree.

    It finds gaps, and wrong decisions, source offsets, counts and digests. The exit code is 1 if something is wrong; a
    decided epoch that a sink does not show counts as wrong, too. What was not checked is listed.

    Example: epochal verify /data/checkpoint --pipeline job.py:pipeline --json
    """
    where, sinks = resolve(checkpoint), load(pipeline)
    standing, account = examine(sinks, where, wait)
    return _answer(sinks, standing, account)


def examine(pipeline: Pipeline, where: str, wait: float = 0.0) -> tuple[Standing, Account]:
    """Do what ``verify`` does for this pipeline and the resolved checkpoint ``where``; return what was found."""
    standing = _settled(pipeline, where, wait)
    account = Account()
    _check_log(standing.history, account)
    _tell_said(standing.history, account)
    _check_standing(standing, account)
    logged = _by_epoch(standing.history)
    for sink in pipeline.sinks:
        if sink.name in standing.states:
            _check_sink(sink, standing, logged, account)
    return standing, account


def _settled(pipeline: Pipeline, where: str, wait: float) -> Standing:
    """Look until nothing is in doubt, or until ``wait`` seconds are over, and return the last look."""
    over = time.monotonic() + wait
    while (standing := take(pipeline, where)).in_doubt and standing.refusal is None and time.monotonic() < over:
        time.sleep(min(0.5, wait))
    return standing


def _answer(pipeline: Pipeline, standing: Standing, account: Account) -> Answer:
    unanswered = {name: render.told(error) for name, error in standing.unanswered.items()}
    code = WRONG if account.findings else UNKNOWN if unanswered else FINE
    data = {
        "checkpoint": standing.where,
        "app": pipeline.app,
        "findings": [asdict(finding) for finding in account.findings],
        "checked": account.checked,
        "unchecked": account.unchecked,
        "unanswered": unanswered,
    }
    return Answer("verify", data, code, _shown(data))


def _shown(data: Json) -> Sequence[RenderableType]:
    made = table("finding", "sink", "epoch", "position", "what")
    for finding in data["findings"]:
        made.add_row(
            *(render.shown(finding[name]) for name in ("kind", "sink", "epoch", "position", "what")), style="red"
        )
    lines: list[RenderableType] = [made] if data["findings"] else []
    lines += [line(f"checked: {text}") for text in data["checked"]]
    lines += [line(f"NOT checked: {text}", "yellow") for text in data["unchecked"]]
    lines += [line(f"did not answer: {name}: {error['what']}", "yellow") for name, error in data["unanswered"].items()]
    word = f"{len(data['findings'])} findings" if data["findings"] else "nothing wrong was found in what was checked"
    return [*lines, line(word, "bold red" if data["findings"] else "bold")]


# --- the log, and where sinks stand -----------------------------------------------------------------


def _by_epoch(history: History) -> Mapping[Key, list[EpochRecord]]:
    """Return the records of every epoch that the log still holds."""
    found: dict[Key, list[EpochRecord]] = {}
    for record in _records(history):
        found.setdefault((record.decision.incarnation, record.epoch), []).append(record)
    return found


def _records(history: History) -> Iterator[EpochRecord]:
    for entry in history.entries:
        if isinstance(entry.record, Commit | Apply):
            yield entry.record


def _check_log(history: History, account: Account) -> None:
    epochs = sorted({record.epoch for record in _records(history)})
    gaps = [(before + 1, after - 1) for before, after in pairwise(epochs) if after != before + 1]
    for first, last in gaps:
        if not _skipped_to(history, last + 1):
            account.find("gap", f"the log has no record of {_span(first, last)}", epoch=first)
    if epochs:
        whole = ", without a gap" if not gaps else ""
        account.checked.append(f"log: {len(epochs)} epochs, {epochs[0]} to {epochs[-1]}{whole}")
        if epochs[0] > 0:
            account.unchecked.append(f"log: decisions before epoch {epochs[0]}, which compaction has removed")
    else:
        account.unchecked.append("log: it has no epoch")


# --- differences that an operator's record explains are not findings --------------------------------


def _tell_said(history: History, account: Account) -> None:
    for record in history.operators:
        account.unchecked.append(f"what an operator decided, {record.at[:10]}: {_said(record)} ({record.why})")


def _said(record: Operator) -> str:
    return " ".join(str(word) for word in record.said.values() if word is not None and word is not False)


def _skipped_to(history: History, epoch: EpochNumber) -> bool:
    """Return whether an operator skipped the epochs before this one."""
    return any(record.expected == epoch for record in history.operators)


def _names(history: History, sink: str) -> Sequence[str]:
    """Return the sink's name and its earlier names, newest first.

    An operator's record of a rename has an entry for each of the two names.  Only that of the old name ``is_renamed``.
    """
    names = [sink]
    for record in reversed(history.operators):
        stand = record.stands.get(names[-1])
        if stand is not None and not stand.away:
            names += [old for old, left in record.stands.items() if left.is_renamed]
    return names


def _goes_on_from(history: History, names: Sequence[str], position: Position) -> bool:
    """Return whether an operator's record lets the sink go on from this position.

    A sink that was retired or accepted there may lack the epochs after it.
    """
    stands = [record.stands[name] for record in history.operators for name in names if name in record.stands]
    return any(marker is not None and marker.position == position for stand in stands for marker in stand.markers)


def _keeps_its_rows(history: History, names: Sequence[str], row: ShownEpoch) -> bool:
    """Return whether an operator let the sink keep the rows of an evaluation that the other sinks do not show."""
    if all(fence.query.query_id != row.incarnation for fence in history.fences):
        return False
    said = [record.evaluations for record in history.operators if record.evaluations is not None]
    return any(row.epoch == kept.epoch and set(names) & set(kept.sinks) for kept in said)


def _span(first: int, last: int) -> str:
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


def _check_standing(standing: Standing, account: Account) -> None:
    refusal = standing.refusal
    if refusal is not None:
        what = f"a start would end with {type(refusal).__name__}: {refusal.what}"
        account.find("refused", what, sink=refusal.sink, epoch=refusal.epoch)
    for name, epoch in standing.in_doubt.items():
        what = f"epoch {epoch.number} is {doubt(epoch)} and not shown; the next start finishes it"
        account.find("in-doubt", what, sink=name, epoch=epoch.number, position=epoch.position_of(name))
    rules = "all rules of a start" if not standing.unanswered else "only the rules that need no other sink"
    account.checked.append(f"fences and markers of {', '.join(sorted(standing.states)) or 'no sink'}: {rules}")
    if standing.unread is not None:
        account.unchecked.append(f"Spark's own files: {standing.unread}")


# --- one sink ---------------------------------------------------------------------------------------


def _check_sink(sink: Sink, standing: Standing, logged: Mapping[Key, list[EpochRecord]], account: Account) -> None:
    query = Query(standing.ask.query.app, "", "", "")
    asked, inspection = audited(sink), inspection_of(sink, query)
    if asked is None:
        account.unchecked.append(f"{sink.name}: epochs before the newest; the sink has no audit")
        return
    whole = _Whole(sink.name, account, standing.history, logged, inspection)
    marker = standing.states[sink.name].marker
    shown = marker.position if marker is not None else 0
    newest = asked.epochs(query.app, limit=1).newest
    if newest is not None and newest.position > max(shown, _shown_now(sink, standing)):
        account.find("gap", f"the audit has an epoch above the marker, which stands at position {shown}", newest)
    with render.progress(f"verify {sink.name}", shown or None) as at:
        for page in audit.pages(asked, query.app, shown):
            whole.page(page)
            at(shown - page[0].position + 1)
    whole.end(standing)
    if inspection is not None:
        inspection.close()


def _shown_now(sink: Sink, standing: Standing) -> Position:
    """Return the position of the sink's marker now, because a running query may have moved on since the first look."""
    marker = sink.look(standing.ask.query).marker
    return marker.position if marker is not None else 0


class _Whole:
    """Checks all epochs of one sink, page by page, starting with the newest."""

    def __init__(
        self,
        name: str,
        account: Account,
        history: History,
        logged: Mapping[Key, list[EpochRecord]],
        inspection: Inspection | None,
    ) -> None:
        self._name = name
        self._account = account
        self._history = history
        self._names = _names(history, name)
        self._logged = logged
        self._inspection = inspection
        self._newest: ShownEpoch | None = None
        self._oldest: ShownEpoch | None = None
        self._count = self._counted = self._digested = self._against_log = 0

    def page(self, rows: Sequence[ShownEpoch]) -> None:
        """Check one page: its rows come oldest first, and all are below those of the page before."""
        self._newest = self._newest or rows[-1]
        after = self._oldest
        for row in reversed(rows):
            if after is not None:
                self._follows(row, after)
            after = row
            self._in_log(row)
            self._like_others(row)
        self._oldest = rows[0]
        self._count += len(rows)
        self._counts(rows)

    def end(self, standing: Standing) -> None:
        account, marker = self._account, standing.states[self._name].marker
        position = marker.position if marker is not None else 0
        if self._newest is None or self._oldest is None:
            if position:
                account.unchecked.append(f"{self._name}: all epochs but the newest; its audit has none of them")
            return
        if self._newest.position != position:
            what = f"the marker stands at position {position}, the audit's newest is {self._newest.position}"
            account.find("gap", what, sink=self._name, position=position)
        elif marker is not None and marker.decision != self._newest.decision:
            what = f"the marker is of decision {marker.decision}, the audit has {self._newest.decision}"
            account.find("decision", what, self._newest)
        self._tell(self._oldest, self._newest)

    def _tell(self, oldest: ShownEpoch, newest: ShownEpoch) -> None:
        name, account = self._name, self._account
        span = f"positions {oldest.position} to {newest.position}"
        account.checked.append(
            f"{name}: the audit of {self._count} epochs ({span}), {self._against_log} against the log"
        )
        if oldest.position > 1:
            account.unchecked.append(f"{name}: positions 1 to {oldest.position - 1}, which its audit keeps no longer")
        if self._against_log < self._count:
            left = self._count - self._against_log
            account.unchecked.append(f"{name}: decisions of {left} epochs, of which the log keeps no record any more")
        if self._digested:
            account.checked.append(f"{name}: digests of {self._digested} epochs, against those of the other sinks")
        if self._digested < self._count:
            left = self._count - self._digested
            account.unchecked.append(f"{name}: the content of {left} epochs; they have no digest (two-phase mode)")
        self._tell_counts()

    def _tell_counts(self) -> None:
        name, account, inspection = self._name, self._account, self._inspection
        if inspection is None:
            account.unchecked.append(f"{name}: rows; the sink cannot be asked for them")
        elif inspection.unattributed:
            account.unchecked.append(f"{name}: row counts; {inspection.unattributed}")
        else:
            account.checked.append(f"{name}: row counts of {self._counted} epochs, in {inspection.content}")
            if self._counted < self._count:
                left = self._count - self._counted
                account.unchecked.append(f"{name}: row counts of {left} epochs, which the sink cannot count any more")

    def _follows(self, row: ShownEpoch, after: ShownEpoch) -> None:
        """Check that positions count up by one, and that the epochs of one checkpoint do, too."""
        if after.position != row.position + 1:
            what = f"the audit has no row between positions {row.position} and {after.position}"
            self._account.find("gap", what, sink=self._name, position=row.position + 1)
        elif row.incarnation == after.incarnation and after.epoch != row.epoch + 1:
            if self._is_said(row, after):
                missing = _span(row.epoch + 1, after.epoch - 1)
                self._account.unchecked.append(f"{self._name}: {missing}, which an operator has left out of it")
                return
            what = f"epoch {after.epoch} follows epoch {row.epoch}, at position {after.position}"
            self._account.find("gap", what, sink=self._name, epoch=row.epoch + 1, position=after.position)

    def _is_said(self, row: ShownEpoch, after: ShownEpoch) -> bool:
        return _skipped_to(self._history, after.epoch) or _goes_on_from(self._history, self._names, row.position)

    def _in_log(self, row: ShownEpoch) -> None:
        """Check that the audit's row agrees with the log's records of the epoch, if the log still has any."""
        records = self._logged.get((row.incarnation, row.epoch))
        if records is None:
            if self._must_be_logged(row):
                self._account.find("decision", f"the log has no decision of epoch {row.epoch}", row)
            return
        self._against_log += 1
        mine = [(record, name) for record in records for name in self._names if name in record.participants]
        match = [(record, name) for record, name in mine if record.decision_of(name).id == row.decision]
        if not match:
            known = [record.decision_of(name).id for record, name in mine]
            self._account.find("decision", f"the audit has decision {row.decision}, the log has {known or 'none'}", row)
            return
        record, name = match[-1]
        if record.position_of(name) != row.position:
            what = f"the log has epoch {row.epoch} at position {record.position_of(name)}"
            self._account.find("gap", what, row)
        if isinstance(record, Commit):
            voted = record.participants[name].committable.rows
            if voted != row.rows:
                self._account.find("count", f"the audit has {row.rows} rows, the sink voted for {voted}", row)
        if row.offsets and record.offsets and row.offsets != record.offsets:
            self._account.find("offsets", "the audit has other source offsets than the log", row)

    def _must_be_logged(self, row: ShownEpoch) -> bool:
        """Return whether the log must have the epoch: the log has this epoch or an older one of the same query."""
        held = [epoch for incarnation, epoch in self._logged if incarnation == row.incarnation]
        return bool(held) and row.epoch >= min(held)

    def _like_others(self, row: ShownEpoch) -> None:
        """Check that all sinks have the same offsets for an epoch, and in idempotent mode the same digest."""
        if _keeps_its_rows(self._history, self._names, row):
            row = replace(row, digest=None)
        self._digested += row.digest is not None
        key = (row.incarnation, row.epoch)
        offsets = _short(row.offsets)
        other = self._account.seen.setdefault(key, (self._name, row.offsets and offsets, row.position, row.digest))
        name, known, _, digest = other
        if known and row.offsets and known != offsets:
            self._account.find("offsets", f"sink {name} has other source offsets of this epoch", row)
        if digest is not None and row.digest is not None and digest != row.digest:
            self._account.find("digest", f"{row.digest} here, {digest} in sink {name}", row)

    def _counts(self, rows: Sequence[ShownEpoch]) -> None:
        inspection = self._inspection
        if inspection is None or inspection.unattributed:
            return
        for part in _parts(rows):
            held = {c.position: c.rows for c in inspection.counts(part[0].position, part[-1].position)}
            for row in part:
                found = held.get(row.position, 0 if inspection.complete else None)
                self._counted += found is not None
                if found is not None and found != row.rows:
                    what = f"{found} rows in {inspection.content}, the audit has {row.rows}"
                    self._account.find("count", what, row)


def _parts(rows: Sequence[ShownEpoch]) -> Iterator[Sequence[ShownEpoch]]:
    """Split the epochs into runs with at most ``MOST_ROWS`` rows each; a larger epoch is a run by itself."""
    part: list[ShownEpoch] = []
    held = 0
    for row in rows:
        if part and held + row.rows > MOST_ROWS:
            yield part
            part, held = [], 0
        part.append(row)
        held += row.rows
    if part:
        yield part


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
