"""The keys of every record that Epochal writes to the logger ``epochal``, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "epochal_"

KEYS: Mapping[str, str] = {
    "epochal_event": "what happened: the name of the event's class in `epochal.events`",
    "epochal_app": "the pipeline's `app`",
    "epochal_query_id": "Spark's id of the query, the same after every restart",
    "epochal_run_id": "Spark's id of this start",
    "epochal_epoch": "the epoch that it is about",
    "epochal_sink": "the sink's name",
    "epochal_phase": "the phase of the protocol, as in the picture in README",
    "epochal_step": "what was done within the phase: copy, prepare, commit, apply, redo, compact",
    "epochal_generation": "of a start that has fenced: its generation",
    "epochal_rows": "rows of the micro-batch, of a vote, or made visible by a sink",
    "epochal_seconds": "how long it took",
    "epochal_error": "the class of the error",
}
"""Key -> meaning.  Every record has all of them; what is not known or does not apply is None."""

_NOTHING: Mapping[str, object] = dict.fromkeys(KEYS)


def extra(**known: object) -> dict[str, object]:
    """What to pass as ``extra=`` of a record: all keys, those given by their names without the prefix."""
    given = {PREFIX + name: value for name, value in known.items()}
    if unknown := given.keys() - KEYS.keys():
        raise TypeError(f"{sorted(unknown)} are no keys of a record; they are {', '.join(KEYS)}")
    return {**_NOTHING, **given}
