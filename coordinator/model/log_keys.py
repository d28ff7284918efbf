"""The keys of every record that Epochal writes to the logger ``epochal``."""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "epochal_"

KEYS: Mapping[str, str] = {
    "epochal_event": "what happened: the name of the event's class in `epochal.events`",
    "epochal_app": "the pipeline's `app`",
    "epochal_query_id": "Spark's id of the query, the same after every restart",
    "epochal_run_id": "Spark's id of this start",
    "epochal_epoch": "the epoch that the record is about",
    "epochal_sink": "the sink's name",
    "epochal_phase": "the phase of the protocol, as in the picture in README",
    "epochal_step": "what was done within the phase: copy, prepare, commit, apply, redo, compact",
    "epochal_generation": "the generation of a start that has fenced",
    "epochal_rows": "number of rows: of the micro-batch, of a vote, or made visible by a sink",
    "epochal_seconds": "how long it took, in seconds",
    "epochal_error": "the class of the error",
}
"""Key -> meaning.  Every record has all keys; the value is None if it is not known or does not apply."""

_NOTHING: Mapping[str, object] = dict.fromkeys(KEYS)


def extra(**known: object) -> dict[str, object]:
    """Return the ``extra=`` of a record, with all keys.  ``known``: key without prefix -> value; the rest is None."""
    given = {PREFIX + name: value for name, value in known.items()}
    if unknown := given.keys() - KEYS.keys():
        raise TypeError(f"{sorted(unknown)} are no keys of a record; they are {', '.join(KEYS)}")
    return {**_NOTHING, **given}
