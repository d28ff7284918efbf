"""Texts from outside in a page: escaped, of limited length, and without characters that a page cannot show."""

from __future__ import annotations

import html
import re

# Control characters, lone surrogates, marks that change the direction of writing, and code points without a character.
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
CUT = 300


class Markup(str):
    """A piece of HTML.  Every other string is text and is escaped."""

    __slots__ = ()


def clean(text: object, most: int = CUT) -> str:
    """Return the text as a person can read it.

    Characters that cannot be shown are written as their codes.  A text that is cut says how much is missing.
    """
    whole = str(text)
    shown = _UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", whole[:most])
    return shown if len(whole) <= most else f"{shown} … ({len(whole) - most:,} more characters)"


def line(text: object, most: int = CUT) -> str:
    """Return the text like :func:`clean`, in one line."""
    return clean(" ".join(str(text).split()), most)


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Return ``<tag attributes>children</tag>``.

    In an attribute's name, a ``_`` at the end is dropped, and an inner ``_`` stands for ``-``.  An attribute that is
    None or False is left out, and one that is True has no value.  Lists of children are flattened.
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    return Markup(f"<{tag}{written}>{_inside(children)}" + ("" if tag in ("meta", "br", "col") else f"</{tag}>"))


def _attribute(name: str, value: object) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(clean(value, 1 << 30))}"'


def _inside(children: object) -> str:
    if isinstance(children, Markup):
        return children
    if isinstance(children, list | tuple):
        return "".join(_inside(child) for child in children)
    return "" if children is None else html.escape(clean(children, 1 << 30), quote=False)
