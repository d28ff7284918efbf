"""Rows that have a key: the options and checks of a mode that upserts.  They are the same for every sink.

This file imports neither pyspark nor a client library: a sink can be declared in a process that has none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.epoch import EpochNumber, Json
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused

TOLD = 3
"""How many keys an error names at most."""

P = TypeVar("P", bound="Upsertion")


@dataclass(frozen=True)
class Keyed:
    """A mode that inserts a row, or updates the row that has the same key.

    ``key``: the column or columns that identify a row.
    ``update``: the columns that get the new row's values if the table has a row with its key.  The default is all
    written columns that are not in the key.  With ``()`` the row in the table stays as it is.
    ``delete_when``: a boolean column of the query, which is not written.  Where it is true, the row with that key is
    deleted instead.  NULL does not delete.
    ``order_by``: columns of the query.  Of several rows with the same key in one epoch, the last by these columns wins;
    a tie is refused.  They are written if the table has them.  Without ``order_by`` a key that occurs twice in one
    epoch is refused.
    """

    key: str | Sequence[str]
    update: str | Sequence[str] | None = None
    delete_when: str | None = None
    order_by: str | Sequence[str] = ()

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


@dataclass(frozen=True)
class Upsertion:
    """How the rows of one epoch are written to a table.  All names are unquoted.  Stored in committables."""

    columns: tuple[str, ...]  # the columns that are written
    key: tuple[str, ...] = ()  # empty: all rows are inserted
    update: tuple[str, ...] = ()
    delete_when: str | None = None
    order: tuple[str, ...] = ()

    @classmethod
    def of(cls: type[P], mode: object, query: Sequence[str], table: Sequence[str]) -> P:
        """Return the plan for ``mode``.  A mode that is not :class:`Keyed` inserts all rows.

        ``query`` and ``table``: the column names of the query and of the table.
        """
        if not isinstance(mode, Keyed):
            return cls(tuple(query))
        optional = {*mode.order} - {*table}
        columns = tuple(name for name in query if name != mode.delete_when and name not in optional)
        update = tuple(name for name in columns if name not in mode.keys) if mode.updates is None else mode.updates
        return cls(columns, mode.keys, update, mode.delete_when, mode.order)

    def to_json(self) -> Json:
        return {
            "columns": list(self.columns),
            "key": list(self.key),
            "update": list(self.update),
            "delete_when": self.delete_when,
            "order": list(self.order),
        }

    @classmethod
    def from_json(cls: type[P], data: Json) -> P:
        names = {name: tuple(map(str, data[name])) for name in ("columns", "key", "update", "order")}
        when = data["delete_when"]
        return cls(**names, delete_when=None if when is None else str(when))


# --- modes that can never work --------------------------------------------------------------------


def check(mode: Keyed, sink: str) -> None:
    """Raise ``Misconfigured`` for a mode that cannot work with any rows."""
    check_types(Keyed.__annotations__, vars(mode), sink)
    if not mode.keys:
        raise Misconfigured(
            f"{type(mode).__name__}(key=...) names no column", sink=sink, help="name the columns that identify a row"
        )
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


def check_columns(mode: Keyed, kinds: Mapping[str, str], sink: str) -> None:
    """Raise ``Misconfigured`` unless the rows have all columns of the mode, and ``delete_when`` is a boolean column.

    ``kinds``: name to type of each column of the rows.
    """
    asked = {"key": mode.keys, "update": mode.updates or (), "order_by": mode.order, "delete_when": mode.deletes}
    for what, names in asked.items():
        for name in names:
            if name not in kinds:
                raise Misconfigured(
                    f"{what}= names the column {name!r}, which is not in the rows",
                    sink=sink,
                    state=f"columns {list(kinds)}",
                    help="select it in the query, or name another",
                )
    if mode.delete_when is not None and kinds[mode.delete_when] != "boolean":
        raise Misconfigured(
            f"delete_when= names the column {mode.delete_when!r}, which is {kinds[mode.delete_when]}",
            sink=sink,
            help="name a boolean column, for instance withColumn('deleted', expr(\"op = 'd'\"))",
        )


# --- rows of one epoch that are refused -----------------------------------------------------------


def check_nulls(counts: Mapping[str, int], sink: str, epoch: EpochNumber) -> None:
    """Raise ``PrepareRefused`` if rows have NULL in a column of ``key`` or ``order_by``.

    ``counts``: how many such rows, by column.
    """
    told = [f"column {name!r}: {count}" for name, count in counts.items() if count]
    if told:
        raise PrepareRefused(
            f"rows with NULL in a column of key= or order_by=: {', '.join(told)}",
            sink=sink,
            epoch=epoch,
            help="drop these rows in the query, or give them a value with coalesce()",
        )


def check_twice(plan: Upsertion, mode: str, found: Sequence[Sequence[object]], sink: str, epoch: EpochNumber) -> None:
    """Raise ``PrepareRefused`` if ``found`` has an entry: a key with several rows, none of which is the only last one.

    ``found``: tuples (rows of this key, number of such keys, value, value ...), most rows first, at most ``TOLD``.
    """
    if not found:
        return
    told = [f"({', '.join(map(str, values))}): {times} rows" for times, _, *values in found]
    if plan.order:
        what, remedy = " that are all last by order_by=", "add a column to order_by= that tells these rows apart"
    else:
        what, remedy = " of one epoch", f"give {mode}(order_by=...) columns by which the last row wins, or aggregate"
    raise PrepareRefused(
        f"key ({', '.join(plan.key)}) = {told[0]}{what}",
        sink=sink,
        epoch=epoch,
        state=f"{found[0][1]} such keys: {', '.join(told)}",
        help=remedy,
    )


# --- the text for guarantees ----------------------------------------------------------------------


def way(mode: Keyed) -> str:
    """Describe the mode in a sentence, for a sink's guarantee."""
    inserted = "left alone" if mode.updates == () else "updated"
    text = f"If the table has a row with the same key ({', '.join(mode.keys)}), that row is {inserted}; if not, the new"
    text += " row is inserted"
    if mode.delete_when is not None:
        text += f"; where {mode.delete_when} is true, the row with that key is deleted"
    twice = f"the last row by {', '.join(mode.order)} counts" if mode.order else "the epoch is refused"
    later = " A row of a later epoch wins, even if it is older by these columns." if mode.order else ""
    return f"{text}. If a key occurs twice in one epoch, {twice}.{later}"


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names as a tuple.  A text is one name, never a sequence of letters."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)
