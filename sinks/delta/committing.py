"""Commit: one version of the table names the data files and holds the marker."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Json
from epochal.coordinator.model.errors import CheckpointMismatch
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.conditions import marker_of
from epochal.sinks.delta import gates, history, jvm, modes, renames
from epochal.sinks.delta.core import (
    ATTEMPTS,
    PAYLOAD_VERSION,
    CommitResult,
    CommitStatus,
    Core,
    identity_of,
    txn_action,
)
from epochal.sinks.delta.fencing import write_fence
from epochal.sinks.delta.jvm import JavaFailure, Table, Transaction
from epochal.sinks.delta.merge import Work
from epochal.sinks.delta.preparing import VIOLATIONS, merged_by_delta
from epochal.sinks.delta.staged import Staged
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.rows import formats

CHANGED_MEANWHILE = ("DeltaConcurrentModificationException", "FileNotFoundException", "SparkFileNotFoundException")
"""The exceptions of a MERGE while another writer changes the table.  The MERGE is then made on a new snapshot."""


def commit(sink: Core, committable: Committable, by: Actor) -> CommitOutcome:
    """Write files and marker to the table's log as one version; return when a new snapshot shows the marker."""
    formats.check_vote(committable, PAYLOAD_VERSION)
    sink.looked()
    table = sink.table()
    answer: CommitResult | None = None
    log_taken = False
    for attempt in range(ATTEMPTS):
        txn = sink.begin(table, known=None if attempt else sink.known, answered=answer)
        if is_committed(sink, txn, committable, by):
            if answer is None:
                return CommitOutcome.ALREADY_COMMITTED
            tidy(sink, table, committable)
            return CommitOutcome.COMMITTED
        if answer is not None and answer.kind is CommitStatus.UNKNOWN:
            raise sink.say.unknown(committable.decision.epoch, answer.why)
        lost = lost_files(sink, table, txn, committable)
        if lost and log_taken:
            raise sink.say.prepared_lost(lost, committable)
        if lost:  # an earlier commit request may be under way: a fence makes it conflict; then look again
            write_fence(sink, table, by)
            log_taken = True
            continue
        failpoints.hit(Point.BEFORE_PUBLISH, sink.name, committable.decision.epoch)
        answer = publish(sink, table, txn, committable)
    raise sink.say.contended(ATTEMPTS, answer.why if answer is not None else None, committable.decision.epoch)


def is_committed(sink: Core, txn: Transaction, c: Committable, by: Actor) -> bool:
    """Check the three conditions of the write, in their order; return True if the epoch is already visible.

    Raise ``CheckpointMismatch`` if the table is not the one for which the epoch was prepared.
    """
    state, expected = sink.state(sink.existing(txn)), identity_of(str(c.payload["table"]["id"]))
    if state.identity != expected:
        raise CheckpointMismatch(
            f"the epoch was prepared for the table {expected}, and the table is {state.identity} now",
            sink=sink.name,
            epoch=c.decision.epoch,
            state=f"Delta table {sink.target}",
            help="put the table of before back in its place (its folder, or its name in the catalog), and start again",
        )
    return sink.conditions.already_committed(state, by, marker_of(c), c.decision.epoch)


def lost_files(sink: Core, table: Table, txn: Transaction, c: Committable) -> list[str]:
    """Return why the prepared files cannot be committed to this snapshot of the table; empty if they can.

    A MERGE has no such reason: it can be made again from the durable copy.
    """
    if "work" in c.payload:
        return []
    changed = gates.changes(c.payload["table"], gates.fingerprint(txn.metadata(), txn.protocol()))
    if changed:
        return [f"the table has changed since: {', '.join(sorted(changed))}"]
    with sink.say.unavailable("the prepared files", c.decision.epoch):
        gone = [str(add["path"]) for add in c.payload["adds"] if table.size(str(add["path"])) != add["size"]]
    return [f"{len(gone)} of {len(c.payload['adds'])} files are gone, such as {gone[0]}"] if gone else []


def publish(sink: Core, table: Table, txn: Transaction, c: Committable) -> CommitResult:
    """Commit rows and marker in the transaction that has read the ids and files on which the write depends."""
    position, decision, _, _ = sink.ids()
    markers = [
        txn_action(position, c.position),
        txn_action(decision, c.decision.id),
        txn_action(sink.seen_id(), txn.version),
    ]
    if c.digest is not None:
        held = (c.position, c.digest.rows, c.digest.sum)
        markers += [txn_action(identity, value) for identity, value in zip(sink.digest_ids(), held, strict=True)]
    try:
        txn, actions = actions_of(sink, table, txn, c)
    except JavaFailure as failure:
        if failure.is_a(*CHANGED_MEANWHILE):
            return CommitResult(CommitStatus.CONFLICT, failure.message)
        raise sink.say.not_read("the table", failure, c.decision.epoch) from failure
    facts = history.facts(sink.looked(), c)
    mode = modes.OUTPUT_MODES[c.payload.get("mode", "append")]
    answer = sink.put(txn, [*markers, *actions], c.decision.incarnation, c.decision.epoch, facts, mode)
    try:
        if answer.kind is CommitStatus.DONE:
            failpoints.hit(Point.AFTER_PUBLISH, sink.name, c.decision.epoch)
    except failpoints.AnswerDropped as dropped:
        return CommitResult(CommitStatus.UNKNOWN, str(dropped))
    return answer


def actions_of(sink: Core, table: Table, txn: Transaction, c: Committable) -> tuple[Transaction, Sequence[Json]]:
    """Return the actions that make the epoch visible, and the transaction that must commit them."""
    if "work" in c.payload:
        return merge_again(sink, table, txn, c)
    adds = [{"add": add} for add in c.payload["adds"]]
    return txn, [*adds, *(txn.removals() if c.payload.get("mode") == "overwrite" else [])]


def merge_again(sink: Core, table: Table, txn: Transaction, c: Committable) -> tuple[Transaction, Sequence[Json]]:
    """Return the actions of the MERGE that prepare made, or of a new MERGE on this snapshot.

    The MERGE of prepare is used at most one time, and only if the table has no newer version and its files still exist.
    ``CommitInDoubt``: the table no longer takes the decided rows.
    """
    tried, sink.tried = sink.tried, None
    if tried is not None and tried.decision == c.decision.id and tried.txn.version == txn.version:
        with sink.say.unavailable("the prepared files", c.decision.epoch):
            if all(table.size(path) is not None for path in tried.written.files):
                return tried.txn, tried.written.actions
    work = Work.from_json(sink.name, c.payload["work"])
    session = work.session(jvm.session(sink.name))
    rows, metadata = work.rows(session).schema, txn.metadata()
    old = renames.problems(renames.renamed(sink, rows, metadata))
    if problems := old or sink.row_problems(work.plan.written(rows), metadata):
        raise sink.say.in_doubt("; ".join(problems), c)
    try:
        return txn, merged_by_delta(sink, txn, work, session, c.rows, c.decision.epoch).actions
    except JavaFailure as failure:
        if failure.is_a(*VIOLATIONS, "AnalysisException"):
            raise sink.say.in_doubt("Delta does not merge the rows", c, failure.message) from failure
        raise


def tidy(sink: Core, table: Table, c: Committable) -> None:
    with contextlib.suppress(JavaFailure):  # the epoch is visible, and the next epoch's commit cleans up again
        Staged(table, sink.looked(), sink.name).drop_done(marker_of(c))
