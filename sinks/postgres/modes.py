"""How an epoch becomes visible: three modes, of which a sink has one.

``mode=`` is one value, so that a sink cannot ask for two things at once, and what belongs to a mode stands
inside it.  Free of psycopg and pyspark, as a sink is declared where both may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epochal.coordinator.errors import Misconfigured


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
class Upsert:
    """Rows are staged, and one transaction inserts them into ``table``, or updates the rows that have their key.

    ``key``: the columns that name a row, one or several; the table has a unique constraint on just these.
    ``update``: the columns that take the new row's values where its key is there already; by default all that are
    written and not in the key; ``()``: the row that is there stays.
    ``delete_when``: a boolean column of the query, which is not written: where it is true the row of that key is
    deleted instead; NULL is not true.
    ``order_by``: columns of the query by which, within one epoch, the last row of a key wins; a tie is refused.
    They are written where the table has them.  Without it a key that stands twice in an epoch is refused.
    ``trial``: as for :class:`Plain`.
    """

    key: str | Sequence[str]
    update: str | Sequence[str] | None = None
    delete_when: str | None = None
    order_by: str | Sequence[str] = ()
    trial: bool = True

    @property
    def keys(self) -> tuple[str, ...]:
        return _names(self.key)

    @property
    def updates(self) -> tuple[str, ...] | None:
        return None if self.update is None else _names(self.update)

    @property
    def order(self) -> tuple[str, ...]:
        return _names(self.order_by)

    @property
    def deletes(self) -> tuple[str, ...]:
        return () if self.delete_when is None else (self.delete_when,)


Mode = Append | Plain | Upsert
Staging = Plain | Upsert
"""The modes that write into the table itself, and stage before."""


def check(mode: Mode, view: str | None, sink: str) -> None:
    """``Misconfigured`` for what can never be, whatever the rows are."""
    if not isinstance(mode, Append | Plain | Upsert):
        raise Misconfigured(
            f"mode={mode!r} is none of the modes",
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
        _check_upsert(mode, sink)


def _check_upsert(mode: Upsert, sink: str) -> None:
    if not mode.keys:
        raise Misconfigured("Upsert(key=...) names no column", sink=sink, help="name the columns that name a row")
    for what, names in (("key", mode.keys), ("update", mode.updates or ()), ("order_by", mode.order)):
        for name in names:
            if names.count(name) > 1:
                raise Misconfigured(f"{what}= names {name!r} twice", sink=sink, help="name it once")
    for what, names in (("update", mode.updates or ()), ("order_by", mode.order), ("delete_when", mode.deletes)):
        for name in names:
            if name in mode.keys:
                raise Misconfigured(
                    f"{what}= names {name!r}, which is in the key",
                    sink=sink,
                    state=f"key {list(mode.keys)}",
                    help=f"leave it out of {what}=: within one key it is always the same",
                )
    if mode.delete_when in (mode.updates or ()):
        raise Misconfigured(
            f"update= names {mode.delete_when!r}, which delete_when= keeps out of the table",
            sink=sink,
            help="leave it out of update=, or select it a second time under another name",
        )


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name or several: a text is one, never its letters."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)
