"""Several transactions per epoch: what ``slots=K`` means, and why an epoch is still there exactly once.

A *slot* is one transactional id with one partition of the marker topic (slot i, partition i) and, of every epoch,
the rows of certain topic-partitions.  K slots produce at the same time; each transaction is atomic with its own
marker, so an epoch is atomic per slot only.

How it is laid out:

- *ever used*: the number S of slots that the newest record of partition 0 names.  A start sets it, in its fence, to
  the larger of what it finds and its own K.  It never shrinks, and nobody uses a slot that its own fence does not
  name.
- *the epoch*: ``prepare`` makes the records durable, each with its partition, in one folder per slot; the
  committable lists the files.  So which row belongs to which slot is decided before the decision and never computed
  again, whatever becomes of K, of the topic's partitions, of the partitioner.  The rows are in the first K slots;
  all S get a marker.
- *before*: the committable holds what the sink showed when the epoch was prepared (marker, and in how many slots),
  hence for every slot the position at which its newest marker must stand: that one, or 0 for a slot that was not
  there yet.

Why it is exactly once:

1. *Per slot* nothing is new: one transactional id, one partition that only this id writes to, and in every attempt
   init, fence, marker, begin, rows, marker, commit in this order.  "Committed" is this decision's marker in this
   slot; "go" is the marker at exactly the position that the committable says.  A late twin, a lost answer, a zombie
   of an older epoch end as they do with one slot.
2. *Over all slots*: an epoch is shown when every slot has its marker.  ``commit`` returns only then, and no later
   epoch is prepared before; so at any moment a slot stands at the newest decided epoch or at the one before it,
   never further back.  If some stand here and some there, the sink's marker is that *before* the epoch (each marker
   record carries it): the coordinator commits the epoch again, and the slots that have it say so.
3. *Growth* (1 to 2): the fence names the new slot before anybody uses it; its marker is absent, and the first epoch
   in which it takes part says that this is what it must be.  Until that epoch it is not asked for.  *Shrinking* (2
   to 1): slot 1 gets no rows and a marker in every epoch, so its marker never ages, and when it is used again it
   stands where everybody stands.  An epoch in doubt is finished with the slots that its committable lists.
4. *The fence* lies in partition 0 and is written under id 0, by compare-and-set as with one slot.  A task of slot i
   reads it there after its own init.  ``fence`` bars, in this order: id 0 (by init), the record, and when that is
   seen to be readable, ids 1 to S-1.  Take any task of an older actor in slot i.  Its init came before our init of
   i: we ended its transaction, or it was committed already and the look again sees it.  Or it came after: then our
   record was readable, and it reads that it is fenced.  Were the others barred before the record and not after it,
   a task that comes in between would still read the older fence and show its rows after ours.  Whoever repeats
   ``fence`` bars them again, as the one before may have died between the record and that.
5. *Waiting*: a slot waits for no other.  Its own partition is read up to the high watermark (nothing is open there
   after its init), partition 0 as far as it is readable: a fence that has to be seen is, by 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from epochal.coordinator.model.epoch import Marker
from epochal.coordinator.model.errors import MarkerLost, OutcomeUnknown, SinkUnavailable
from epochal.sinks.kafka import marker
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.marker import MarkerTopic, State
from epochal.sinks.protocol import CommitOutcome

LOOKS = 10
"""How often the slots are read again while a running query moves them on."""


def read_all(link: Link, marker_topic: MarkerTopic) -> State:
    """The sink's state, from all slots as they can be read now; disturbs and awaits nobody.

    Slots are read one after another, so a running query may move on in between: what does not fit is read again,
    and is an error when nothing has moved.
    """
    seen: list[State] = []
    for _ in range(LOOKS):
        first = marker.read_slot(link, marker_topic, final=False)
        others = [marker_topic.of_slot(slot) for slot in range(1, first.slots)]
        states = [first, *(marker.read_slot(link, other, final=False) for other in others)]
        try:
            return shown(marker_topic, states)
        except MarkerLost as error:
            if states == seen:
                raise
            seen, last = states, error
    raise last


def shown(marker_topic: MarkerTopic, states: Sequence[State]) -> State:
    """The sink's state of the states of its slots: the newest epoch if every slot of it has it, else that before.

    ``MarkerLost``: a slot stands at neither.
    """
    owner, newest = states[0], max(states, key=_position)
    for slot in range(newest.span, len(states)):
        if states[slot].marker is not None:
            raise _lost(marker_topic, slot, states, None)
    late = [n for n, state in enumerate(states[: newest.span]) if state.marker != newest.marker]
    for slot in late:
        expected = newest.before.of_slot(slot)
        if states[slot].marker != expected:
            raise _lost(marker_topic, slot, states, expected)
    if not late:
        return replace(newest, fence=owner.fence, slots=owner.slots)
    return replace(owner, marker=newest.before.marker, span=max(newest.before.span, 1))


def _position(state: State) -> int:
    return state.marker.position if state.marker is not None else 0


def _lost(marker_topic: MarkerTopic, slot: int, states: Sequence[State], expected: Marker | None) -> MarkerLost:
    return MarkerLost(
        f"slot {slot} shows {states[slot].marker or 'no epoch'}, and has to show the newest epoch or"
        f" {expected or 'none'}",
        sink=marker_topic.sink,
        state=f"topic {marker_topic.topic}, by partition: {', '.join(str(state.marker or 'none') for state in states)}",
        help="a partition of the marker topic has lost records: restore it; nothing was written",
    )


def outcome_of(results: Sequence[CommitOutcome | Exception]) -> CommitOutcome:
    """Of all slots; one that cannot go on is told before one that may be asked again."""
    errors = [result for result in results if isinstance(result, Exception)]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, (SinkUnavailable, OutcomeUnknown)))
    if CommitOutcome.COMMITTED in results:
        return CommitOutcome.COMMITTED
    return CommitOutcome.ALREADY_COMMITTED
