"""The three modes in which an epoch becomes visible.  A sink has one of them.

``mode=`` is one value, so that nobody can ask for two modes at once, and each mode holds its own options.  This file
imports neither psycopg nor pyspark, since a sink is declared where both may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.rows import keyed
from epochal.sinks.rows.keyed import Keyed


@dataclass(frozen=True)
class Append:
    """Rows lie in ``<table>__rows`` and readers use a view: a publish changes one number, whatever the epoch's size.

    The rows table must not have a unique or exclusion constraint, because it would also apply to prepared rows.
    """


@dataclass(frozen=True)
class Plain:
    """Rows are staged, and one transaction inserts them into ``table``, which has no column of Epochal's own.

    The table may have any constraint, and readers need no view.  The time of a publish grows with the number of rows.

    ``trial``: every prepare inserts the rows in a transaction that is rolled back, so that what a constraint or a
    trigger refuses is refused before the decision.  The trial takes about two thirds of the time of the publish itself.
    Without it, rows that the table does not accept end the query with ``CommitInDoubt``, until the table accepts them.
    """

    trial: bool = True


@dataclass(frozen=True)
class Upsert(Keyed):
    """Rows are staged, and one transaction inserts them into ``table``, or updates the rows that have the same key.

    The table needs a unique constraint on exactly the columns of ``key``.  ``key`` and the other options are those of
    :class:`~epochal.sinks.rows.keyed.Keyed`.

    ``trial``: as for :class:`Plain`.
    """

    trial: bool = True


Mode = Append | Plain | Upsert
Staging = Plain | Upsert
"""The modes that stage rows first and then write them into the table itself."""


def check(mode: Mode, view: str | None, sink: str) -> None:
    """Raise ``Misconfigured`` for options that can never work, whatever the rows are."""
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
    if isinstance(mode, Plain | Upsert):
        check_types({"trial": "bool"}, vars(mode), sink)
    if isinstance(mode, Upsert):
        keyed.check(mode, sink)
