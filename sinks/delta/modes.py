"""What an epoch does to the table: three modes, of which a sink has one.

``mode=`` is one value, so that a sink cannot ask for two things at once, and what belongs to a mode stands
inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.rows import keyed
from epochal.sinks.rows.keyed import Keyed


@dataclass(frozen=True)
class Append:
    """Rows are added.  Their files are written before the decision, and one commit of the log adds them."""


@dataclass(frozen=True)
class Overwrite:
    """Rows take the place of all that the table holds, as one version of it: for output mode ``complete``.

    In the modes ``append`` and ``update`` the table holds the newest epoch's rows and no others, none at all after
    an epoch without rows.  Whatever anybody else wrote before is replaced too.
    """


@dataclass(frozen=True)
class Merge(Keyed):
    """Rows are inserted, or update or delete the rows that have their key, by Delta's own MERGE.

    Its columns are those of :class:`~epochal.sinks.rows.keyed.Keyed`.  The epoch's rows wait in the durable copy.
    Every prepare merges them, so that what the table refuses is refused before the decision; commit puts just that
    into the log, or merges anew where the table has changed meanwhile.
    """


Mode = Append | Overwrite | Merge

NAMES: dict[type[Mode], str] = {Append: "append", Overwrite: "overwrite", Merge: "merge"}
"""As committables have them."""

OUTPUT_MODES = {"append": "Append", "overwrite": "Complete", "merge": "Update"}
"""What the table's history says of an epoch, in Spark's words."""


def name_of(mode: Mode) -> str:
    return NAMES[type(mode)]


def check(mode: Mode, sink: str) -> None:
    """``Misconfigured`` for what can never be, whatever the rows are."""
    if not isinstance(mode, Append | Overwrite | Merge):
        raise Misconfigured(
            f"mode={mode!r} is none of the modes of epochal.sinks.delta",
            sink=sink,
            help="give Append(), Overwrite() or Merge(key=...) of epochal.sinks.delta",
        )
    if isinstance(mode, Merge):
        keyed.check(mode, sink)


def way(mode: Mode) -> str:
    """What an epoch does, and what others may do beside it, in words."""
    if isinstance(mode, Append):
        return "Other writers may append, OPTIMIZE and VACUUM beside it."
    if isinstance(mode, Overwrite):
        return (
            "An epoch replaces all that the table holds when it becomes visible, whoever wrote it. Other writers,"
            " OPTIMIZE and VACUUM do it no harm."
        )
    return (
        f"{keyed.way(mode)} Other writers may append, change, OPTIMIZE and VACUUM beside it: where the table has"
        " changed since an epoch was prepared it is merged anew. A table that no longer takes decided rows ends the"
        " query with CommitInDoubt, and its next start finishes the epoch once the table takes them."
    )
