"""What an epoch does to the table: there are three modes, and a sink has one of them.

``mode=`` is a single value, so that a sink cannot have two modes at once.  The options of a mode are arguments of its
class.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.rows import keyed
from epochal.sinks.rows.keyed import Keyed


@dataclass(frozen=True)
class Append:
    """Rows are added.  Their files are written before the decision, and one commit adds them to the table's log."""


@dataclass(frozen=True)
class Overwrite:
    """Rows replace all rows of the table, in one version of it: for output mode ``complete``.

    With output mode ``append`` or ``update`` the table holds only the rows of the newest epoch, and no rows after an
    epoch without rows.  Rows that somebody else wrote before are replaced too.
    """


@dataclass(frozen=True)
class Merge(Keyed):
    """Rows are inserted, or update or delete the rows that have the same key, by Delta's own MERGE.

    Its columns are those of :class:`~epochal.sinks.rows.keyed.Keyed`.  The epoch's rows are kept in the durable copy.
    Every prepare makes the MERGE without committing it, so that rows that the table refuses are refused before the
    decision.  Commit writes the result to the table's log, or makes the MERGE again if the table has changed meanwhile.
    """


Mode = Append | Overwrite | Merge

NAMES: dict[type[Mode], str] = {Append: "append", Overwrite: "overwrite", Merge: "merge"}
"""The names of the modes in committables."""

OUTPUT_MODES = {"append": "Append", "overwrite": "Complete", "merge": "Update"}
"""Spark's output mode that the table's history shows for an epoch, by mode."""


def name_of(mode: Mode) -> str:
    return NAMES[type(mode)]


def check(mode: Mode, sink: str) -> None:
    """Raise ``Misconfigured`` for a mode that cannot work with any rows."""
    if not isinstance(mode, Append | Overwrite | Merge):
        raise Misconfigured(
            f"mode={mode!r} is none of the modes of epochal.sinks.delta",
            sink=sink,
            help="give Append(), Overwrite() or Merge(key=...) of epochal.sinks.delta",
        )
    if isinstance(mode, Merge):
        keyed.check(mode, sink)


def way(mode: Mode) -> str:
    """Say what an epoch does, and what other writers may do to the table, for a sink's guarantee."""
    if isinstance(mode, Append):
        return "Other writers may append, OPTIMIZE and VACUUM beside it."
    if isinstance(mode, Overwrite):
        return (
            "An epoch replaces all that the table holds when it becomes visible, whoever wrote it. Other writers,"
            " OPTIMIZE and VACUUM do it no harm."
        )
    return (
        f"{keyed.way(mode)} Other writers may append, change, OPTIMIZE and VACUUM beside it: if the table has changed"
        " since an epoch was prepared, the epoch is merged again. A table that no longer takes decided rows ends the"
        " query with CommitInDoubt, and its next start finishes the epoch once the table takes them."
    )
