"""Turns events into records of the logger ``epochal``.  Each record has all keys of ``log_keys.py``."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from epochal.coordinator.model.epoch import Phase
from epochal.coordinator.model.events import (
    EpochBegan,
    EpochCommitted,
    Event,
    Failed,
    LogBegan,
    PhaseEnded,
    Postponed,
    Retrying,
    Stalled,
    Started,
    StepEnded,
    keys,
    where,
)
from epochal.coordinator.model.log_keys import extra

_log = logging.getLogger("epochal")

LEVELS: Mapping[type[Event], int] = {
    EpochBegan: logging.DEBUG,
    LogBegan: logging.WARNING,
    Started: logging.DEBUG,
    PhaseEnded: logging.DEBUG,
    StepEnded: logging.DEBUG,
    Stalled: logging.WARNING,
    EpochCommitted: logging.INFO,
    Retrying: logging.WARNING,
    Postponed: logging.WARNING,
    Failed: logging.ERROR,
}
"""The events that become records.  ``InDoubt`` is not one of them, because the ``Failed`` after it says the same."""

_LOOK_AT = "docs/operations.md says what to look at (An epoch that does not end)"


def record(event: Event) -> None:
    """Write one record if the event is in ``LEVELS`` and its level is enabled."""
    level = LEVELS.get(type(event))
    if level is not None and _log.isEnabledFor(level):
        _log.log(level, "%s: %s", where(event), _said(event), extra=_keys(event))


def _keys(event: Event) -> dict[str, object]:
    error = getattr(event, "error", None)
    seconds = getattr(event, "seconds", None)
    return extra(
        **keys(event),
        seconds=sum(seconds.values()) if isinstance(seconds, Mapping) else seconds,
        error=type(error).__name__ if error is not None else None,
    )


def _said(event: Event) -> str:
    match event:
        case EpochCommitted():
            what = "already visible, replayed" if event.replayed else f"{event.rows} rows"
            return f"{what} ({_times(event.seconds)})"
        case LogBegan():
            return f"a new epoch log begins; epochs before {event.epoch} never reached it"
        case Started():
            return f"generation {event.generation} has fenced {', '.join(event.sinks)}"
        case PhaseEnded():
            return f"{event.phase.value} took {event.seconds * 1000:.0f} ms"
        case Stalled():
            return (
                f"{_step(event)} still runs; no task has ended and no row was counted for {event.seconds:.0f} s:"
                f" {event.seen}; {_LOOK_AT}"
            )
        case StepEnded():
            how = f"failed with {type(event.error).__name__} after" if event.error is not None else "took"
            return f"{_step(event)} {how} {event.seconds * 1000:.0f} ms"
        case Retrying():
            return f"will try again: {event.error}"
        case Postponed():
            return f"{event.what}: {event.error}"
        case Failed():
            within = f" in {event.phase.value}" if event.phase is not None else ""
            return f"this start has ended{within}: {type(event.error).__name__}: {event.error}"
    return type(event).__name__


def _step(event: StepEnded | Stalled) -> str:
    return f"{event.step.value} of {event.sink}" if event.sink is not None else event.step.value


def _times(seconds: Mapping[Phase, float]) -> str:
    return ", ".join(f"{phase.value} {spent * 1000:.0f} ms" for phase, spent in seconds.items())
