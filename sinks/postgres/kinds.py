"""The types of a table's columns, as the catalogue describes them, down to what is below a domain or in an array."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epochal.sinks.postgres.session import Session

_LIMITS = re.compile(r"\((\d+(?:,-?\d+)?)\)")


@dataclass(frozen=True)
class Kind:
    """The type of a column, of an array's items, or below a domain.

    ``by_text``: the type's own input function reads a text, or its own cast from text (as PostGIS has one), and the
    same text always gives the same value.  It is false for types whose input depends on settings or on the clock
    (Postgres calls their input function stable), and where Postgres itself has a cast from text, which may cut it.
    """

    shown: str  # as format_type writes it
    by_text: bool = False
    rules: str | None = None  # the labels of an enum, or the constraints of a domain
    below: Kind | None = None  # of a domain: the type that it is made of
    items: Kind | None = None  # of an array

    @property
    def base(self) -> Kind:
        """The type without its domains."""
        return self.below.base if self.below is not None else self

    @property
    def plain(self) -> str:
        """The name of the type without its limits: ``timestamp with time zone`` of ``timestamp(3) with time zone``.

        A name in quotes is a user's, and has no limits, whatever stands in it.
        """
        return self.shown if '"' in self.shown else _LIMITS.sub("", self.shown)

    @property
    def limits(self) -> tuple[int, ...]:
        """The numbers in the type's name: precision and scale, or a length."""
        found = _LIMITS.search(self.shown) if '"' not in self.shown else None
        return tuple(map(int, found[1].split(","))) if found is not None else ()

    @property
    def all_rules(self) -> str:
        """All that may change what the type takes, while its name stays the same."""
        inner = [kind.all_rules for kind in (self.below, self.items) if kind is not None]
        return "; ".join(part for part in (self.rules, *inner) if part)


_CATALOGUE = """
WITH RECURSIVE down (attnum, depth, type, mod) AS (
    SELECT attnum, 0, atttypid, atttypmod FROM pg_attribute
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
    UNION ALL SELECT attnum, depth + 1, CASE typtype WHEN 'd' THEN typbasetype ELSE typelem END,
        CASE typtype WHEN 'd' THEN typtypmod ELSE mod END
    FROM down JOIN pg_type t ON t.oid = type WHERE typtype = 'd'
        OR EXISTS (SELECT FROM pg_type item WHERE item.oid = t.typelem AND item.typarray = t.oid))
SELECT attname, format_type(type, mod),
    typtype = 'e' OR typtype = 'b' AND pg_proc.provolatile = 'i' AND NOT EXISTS (SELECT FROM pg_cast
        JOIN pg_proc made ON made.oid = castfunc WHERE castsource = 'text'::regtype AND casttarget = t.oid
        AND (made.provolatile <> 'i' OR made.pronamespace = 'pg_catalog'::regnamespace)),
    CASE typtype WHEN 'e' THEN (SELECT string_agg(enumlabel, ', ' ORDER BY enumsortorder) FROM pg_enum
            WHERE enumtypid = t.oid)
        WHEN 'd' THEN concat_ws(' ', CASE WHEN typnotnull THEN 'NOT NULL' END, (SELECT string_agg(
            pg_get_constraintdef(c.oid), ' ' ORDER BY conname) FROM pg_constraint c WHERE contypid = t.oid)) END,
    typtype = 'd'
FROM down JOIN pg_type t ON t.oid = type JOIN pg_proc ON pg_proc.oid = typinput
    JOIN pg_attribute a ON attrelid = to_regclass($1) AND a.attnum = down.attnum
ORDER BY a.attnum, depth DESC
"""
"""One row for each type on the way down, the lowest first."""


def kinds_of(session: Session, table: str) -> dict[str, Kind]:
    """Return the types of the table's columns, in their order."""
    found: dict[str, Kind] = {}
    for name, shown, by_text, rules, is_domain in session.run(_CATALOGUE, table):
        inner = found.get(name)
        found[name] = Kind(
            shown,
            bool(by_text),
            rules,
            below=inner if is_domain else None,
            items=None if is_domain else inner,
        )
    return found
