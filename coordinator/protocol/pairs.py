"""Pairs of sinks: one sink gets the rows, and the other gets the rows that the first cannot hold (``bad_rows=``).

When an epoch is redone, every row must go to the same sink of the pair as before.  Else a row could be in both sinks,
or in neither.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from epochal.coordinator.model.epoch import Json
from epochal.coordinator.model.errors import PrepareRefused
from epochal.coordinator.protocol.frames import Given
from epochal.coordinator.protocol.start import Start
from epochal.sinks.protocol import PairedSink, Sink


def in_groups(sinks: Sequence[Sink]) -> list[list[Sink]]:
    """Return groups of sinks: each pair is one, and each other sink.  The sinks of a group prepare in this order.

    In a pair, the sink that cannot hold some rows comes first.  If it has found that there are none, the other sink
    reads none.  So the other one must not prepare if the first has failed.
    """
    alone = {sink.name for sink in sinks if not isinstance(sink, PairedSink)}
    seconds = {sink.of: sink for sink in sinks if isinstance(sink, PairedSink) and sink.of in alone}
    firsts = [sink for sink in sinks if sink not in seconds.values()]
    return [[sink, seconds[sink.name]] if sink.name in seconds else [sink] for sink in firsts]


def ask_judgements(start: Start, given: Given) -> dict[str, Json]:
    """Return, for each pair, what decides which of the two sinks gets a row.  The key is the sink of the bad rows."""

    def ask(sink: PairedSink) -> Json:
        return start.patiently(lambda: sink.judgement(given.epoch(sink.name), given.rows_of(sink.name)))

    return {sink.name: ask(sink) for sink in start.sinks.values() if isinstance(sink, PairedSink)}


def judged_as_before(start: Start, given: Given, again: Collection[str]) -> dict[str, Json]:
    """Return what :func:`ask_judgements` returns, for an epoch that only the sinks ``again`` will get (again).

    Raise ``PrepareRefused`` if the judgement has changed for a pair of which only one sink is in ``again``.  The other
    sink keeps its rows, so a row could then be in both sinks, or in neither.
    """
    now, epoch = ask_judgements(start, given), given.asked
    kept = [name for name in start.sinks if name not in again]
    if kept and (gone := sorted(start.current.judgements.keys() - now.keys())):
        raise PrepareRefused(
            f"when the epoch was begun, {gone} got only the rows that another sink could not hold; now {gone} would"
            f" get all rows, but {kept} keep the rows that they got then",
            sink=gone[0],
            epoch=epoch.number,
            state=f"was {start.current.judgements[gone[0]]}",
            help="give the other sink its bad_rows= again until this epoch is committed",
        )
    for sink in start.sinks.values():
        if not isinstance(sink, PairedSink) or (sink.name in again) == (sink.of in again):
            continue
        before = start.current.judgements.get(sink.name)
        if now[sink.name] != before:
            raise PrepareRefused(
                f"the condition for rows that sink {sink.of!r} cannot hold has changed, and one of the two sinks keeps"
                " the rows that it has",
                sink=sink.name,
                epoch=epoch.number,
                state=f"was {before}, is {now[sink.name]}",
                help="undo what has changed (the topic's settings, select=, where= or another argument of the sink,"
                " the session's settings) until this epoch is committed",
            )
    return now
