"""Look, fence and abort, and the marker that an operator action writes."""

from __future__ import annotations

from epochal.coordinator.model.epoch import MOVED, Actor, Json, Marker, Query, SinkState
from epochal.sinks.conditions import check_name
from epochal.sinks.delta.core import ATTEMPTS, MARKER_VERSION, CommitResult, CommitStatus, Core, is_moved, txn_action
from epochal.sinks.delta.jvm import Table, Transaction
from epochal.sinks.delta.staged import Staged
from epochal.sinks.delta.without_spark import Snapshot
from epochal.sinks.spark.executors import running_session


def look(sink: Core, query: Query, *, by: Actor | None = None) -> SinkState:
    """Read identity, fence and marker from a new snapshot.

    After a fence the answer is final: the fence has taken a version of the log, so a commit that an older actor still
    has under way conflicts with it.  In a process without Spark, where nothing can be fenced, delta-rs reads the table.
    """
    check_name("app", query.app, sink.name)
    sink.app = query.app
    if by is None and running_session() is None:
        return sink.state(Snapshot(sink.target, sink.name))
    return sink.state(sink.existing(sink.begin(sink.table())))


def fence(sink: Core, query: Query, by: Actor) -> None:
    """Write the fence if the table has no newer one, and check that a new snapshot shows it."""
    sink.app = query.app
    write_fence(sink, sink.table(), by)


def write_fence(sink: Core, table: Table, by: Actor) -> None:
    """Write the fence in a version of its own.  Any commit that was under way then conflicts with it.

    Also used by commit with its own fence, to end an earlier commit request that may still be under way.
    """
    answer: CommitResult | None = None
    was_mine = False
    for _ in range(ATTEMPTS):
        txn = sink.existing(sink.begin(table, answered=answer))
        state = sink.state(txn)
        is_mine = sink.conditions.check_fence(state, by)
        if answer is not None and is_mine and (answer.kind is CommitStatus.DONE or not was_mine):
            return
        if answer is not None and answer.kind is CommitStatus.UNKNOWN:
            raise sink.say.unknown(state=answer.why)
        was_mine = is_mine
        position, decision, generation, token = sink.ids()
        held = {sink.version_id(): MARKER_VERSION, generation: by.generation, token: by.token}
        held[sink.seen_id()] = txn.version
        shown = state.marker or Marker(0, 0)
        if (txn.version_of(position) or 0) > shown.position:  # a RESTORE took rows away and left the ids: correct them
            held |= {position: shown.position, decision: shown.decision}
        answer = sink.put(txn, [txn_action(identity, value) for identity, value in held.items()], "fence", -1, str(by))
    raise sink.say.contended(ATTEMPTS, answer.why if answer is not None else None)


def abort(sink: Core, query: Query, by: Actor) -> None:
    """Delete the files that ``by`` and lower generations prepared beyond the marker, if a note names them."""
    sink.app, sink.tried, sink.filed = query.app, None, None
    table = sink.table()
    state = sink.state(sink.existing(sink.begin(table)))
    sink.conditions.check_owner(state, by)
    with sink.say.unavailable("what is prepared"):
        Staged(table, query.app, sink.name).drop_undecided(state.marker, by)


def mark(sink: Core, query: Query, marker: Marker | None, by: Actor) -> None:
    """Write the marker in a version of its own, and check that a new snapshot shows it."""
    sink.app = query.app
    if sink.also is not None:
        sink.also.app = query.app
    table, answer = sink.table(), None
    for _ in range(ATTEMPTS):
        txn = sink.existing(sink.begin(table, answered=answer))
        states = [each.own_state(txn) for each in (sink, sink.also) if each is not None]
        for state in states:
            sink.conditions.check_owner(state, by)
        if marker in (None, states[0].marker) and (sink.also is None or is_moved(states[1])):
            return
        if answer is not None and answer.kind is CommitStatus.UNKNOWN:
            raise sink.say.unknown(state=answer.why)
        answer = sink.put(txn, marks_of(sink, txn, marker), "mark", -1, str(by))
    raise sink.say.contended(ATTEMPTS, answer.why if answer is not None else None)


def marks_of(sink: Core, txn: Transaction, marker: Marker | None) -> list[Json]:
    """Return the actions that write the marker, and under the sink's other name a marker of no epoch (``MOVED``)."""
    held = {sink.seen_id(): txn.version}
    if marker is not None:
        position, decision, _, _ = sink.ids()
        held |= {position: marker.position, decision: marker.decision}
    if sink.also is not None:
        position, decision, _, _ = sink.also.ids()
        held |= {position: marker.position if marker is not None else 1, decision: MOVED}
    return [txn_action(identity, value) for identity, value in held.items()]
