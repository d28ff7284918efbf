"""How an epoch becomes visible: three modes, of which a sink has one.

``mode=`` is one value, so that a sink cannot ask for two things at once, and what belongs to a mode stands
inside it.  Free of psycopg and pyspark, as a sink is declared where both may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.rows import keyed
from epochal.sinks.rows.keyed import Keyed


@dataclass(frozen=True)
class Append:
    """Rows lie in ``<table>__rows``, and readers use a view: publishing an epoch moves one number, whatever its size.

    No unique or exclusion constraint: it would see rows that are prepared.
    """


@dataclass(frozen=True)
class Plain:
    """Rows are staged, and one transaction inserts them into ``table``, which has no column of ours.

    Any constraint is allowed, and readers need no view; publishing takes time by the row.

    ``trial``: every prepare inserts the rows in a transaction that is rolled back, so that what a constraint or a
    trigger refuses is refused before the decision.  It takes about two thirds of the time of the publish itself.
    Without it, rows that the table does not take end the query with ``CommitInDoubt``, until the table takes them.
    """

    trial: bool = True


@dataclass(frozen=True)
class Upsert(Keyed):
    """Rows are staged, and one transaction inserts them into ``table``, or updates the rows that have their key.

    The table has a unique constraint on just the columns of ``key``; this and the other columns are those of
    :class:`~epochal.sinks.rows.keyed.Keyed`.

    ``trial``: as for :class:`Plain`.
    """

    trial: bool = True


Mode = Append | Plain | Upsert
Staging = Plain | Upsert
"""The modes that write into the table itself, and stage before."""


def check(mode: Mode, view: str | None, sink: str) -> None:
    """``Misconfigured`` for what can never be, whatever the rows are."""
    if not isinstance(mode, Append | Plain | Upsert):
        raise Misconfigured(
            f"mode={mode!r} is none of the modes of epochal.sinks.postgres",
            sink=sink,
            help="give Append(), Plain() or Upsert(key=...) of epochal.sinks.postgres",
        )
    if view is not None and not isinstance(mode, Append):
        raise Misconfigured(
            f"view={view!r}: readers of a {type(mode).__name__} sink read the table itself",
            sink=sink,
            help="leave view= out; a view of your own on top of the table is fine",
        )
    if isinstance(mode, Upsert):
        keyed.check(mode, sink)
