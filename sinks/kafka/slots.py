"""Several transactions per epoch: what ``slots=K`` means, and why every epoch is still shown exactly once.

A *slot* is one transactional id with one partition of the marker topic (slot i, partition i).  In every epoch a slot
writes the rows of certain topic-partitions.  K slots produce at the same time.  Each transaction is atomic together
with its own marker, so an epoch is atomic per slot only.

How it is laid out:

- *ever used*: the number S of slots that the newest record of partition 0 names.  A start writes S together with its
  fence.  It takes the larger of two numbers: the S that it finds, and its own K.  So S never shrinks.  A start uses a
  slot only after its own fence names the slot.
- *the epoch*: ``prepare`` writes the records durably, each with its partition, into one folder per slot; the
  committable lists the files.  So the slot of a row is chosen before the decision and never computed again, whatever
  becomes of K, of the topic's partitions or of the partitioner.  The rows are in the first K slots; all S slots get a
  marker.
- *before*: the committable holds what the sink showed when the epoch was prepared: the marker, and how many slots the
  epoch of that marker had.  These two say at which position the newest marker of each slot must be: at the
  position of that marker, or at 0 for a slot that was not there yet.

Why it is exactly once:

1. *Per slot* nothing is new: there is one transactional id and one partition that only this id writes to, and every
   attempt does init, fence, marker, begin, rows, marker, commit in this order.  The slot has committed if its marker is
   that of this decision.  It may write if its marker stands at exactly the position that the committable says.  A late
   second attempt, a lost answer and a zombie of an older epoch end as they do with one slot.
2. *Over all slots*: an epoch is shown when every slot has its marker.  ``commit`` returns only then, and no later epoch
   is prepared before that.  So at any moment a slot stands at the newest decided epoch or at the one before it, never
   further back.  If some slots have the newest epoch and some do not, the sink's marker is the one *before* that epoch
   (each marker record carries it): the coordinator commits the epoch again, and the slots that have it answer
   "already committed".
3. *Growth* (from 1 slot to 2): the fence names the new slot before anybody uses it.  The slot has no marker, and the
   committable of the first epoch with this slot says that it must have none.  Before that epoch nobody asks for its
   marker.  *Shrinking* (from 2 slots to 1): slot 1 gets no rows, but a marker in every epoch, so its marker never falls
   behind, and when the slot is used again it stands where all others stand.  An epoch in doubt is finished with the
   slots that its committable lists.
4. *The fence* lies in partition 0 and is written under id 0, by compare-and-set as with one slot.  A task of slot i
   reads it there after its own init.  ``fence`` first bars id 0 (by init), then writes the record, and bars ids 1 to
   S-1 when the record can be read.  Take any task of an older actor in slot i.  If its init came before our init of i,
   then we ended its transaction, or the transaction was committed already and *look again* sees it.  If its init came
   after ours, then our record could be read already, and the task reads that it is fenced.  If ids 1 to S-1 were barred
   only before the record was written, a task that comes in between would still read the older fence, and would show its
   rows after our fence was written.  Whoever repeats ``fence`` bars them again, because the call before may have died
   after it wrote the record and before it barred them.
5. *Waiting*: no slot waits for another.  A slot's own partition is read up to the high watermark (nothing is open there
   after its init).  Partition 0 is read only as far as it can be read now.  This suffices: point 4 shows that a fence
   which a task must see can be read by then.
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
"""How often the slots are read at most, while a running query changes them."""


def read_all(link: Link, marker_topic: MarkerTopic) -> State:
    """Return the sink's state, made of all slots as they can be read now; this disturbs nobody and waits for nobody.

    Slots are read one after another, so a running query may write in between.  If their states do not fit together,
    all are read again.  ``MarkerLost``: nothing has changed since the reading before, or ``LOOKS`` readings failed.
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
    """Return the sink's state, made of the states of its slots.

    It is the newest epoch if all slots of that epoch show it, else the epoch before.  ``MarkerLost``: a slot shows
    neither of the two.
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
        f"slot {slot} shows {states[slot].marker or 'no epoch'}; it must show the newest epoch or {expected or 'none'}",
        sink=marker_topic.sink,
        state=f"topic {marker_topic.topic}, by partition: {', '.join(str(state.marker or 'none') for state in states)}",
        help="a partition of the marker topic has lost records: restore it; nothing was written",
    )


def outcome_of(results: Sequence[CommitOutcome | Exception]) -> CommitOutcome:
    """Return the outcome over all slots.

    If some failed, raise one of the errors.  An error that no new call can cure comes before the others.
    """
    errors = [result for result in results if isinstance(result, Exception)]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, (SinkUnavailable, OutcomeUnknown)))
    if CommitOutcome.COMMITTED in results:
        return CommitOutcome.COMMITTED
    return CommitOutcome.ALREADY_COMMITTED
