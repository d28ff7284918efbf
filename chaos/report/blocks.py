"""The parts of the project's pages: the document, tables that scroll by themselves, pictures, notes."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.chaos.report.style import SHEET
from epochal.chaos.report.text import Markup, element

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, inside: Sequence[object], *, style: str = "") -> str:
    """Return a whole page, which loads nothing.  ``style`` is added to the style sheet."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(SHEET + style)),
    )
    body = element("body", element("main", list(inside)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def picture(markup: str, notes: Sequence[str] = ()) -> Markup:
    """Return a chart that scrolls by itself, with notes about what it has no room for."""
    wide = element("div", Markup(markup), class_="wide", tabindex="0", role="group", aria_label="picture")
    return Markup(wide + "".join(note(text) for text in notes))


def note(text: str) -> Markup:
    return element("p", text, class_="note")


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Markup], *, numbers: Sequence[int] = (), class_: str = ""
) -> Markup:
    """Return a table that scrolls by itself if it is wider than the screen."""
    cells = [
        element("th", head, scope="col", class_="number" if place in numbers else None)
        for place, head in enumerate(heads)
    ]
    head = element("thead", element("tr", cells)) if any(heads) else None
    made = element("table", element("caption", caption), head, element("tbody", list(rows)), class_=class_ or None)
    return element("div", made, class_="wide", tabindex="0", role="group", aria_label=caption)


def row(*cells: Markup | str) -> Markup:
    return element("tr", [cell if isinstance(cell, Markup) else element("td", cell) for cell in cells])


def number(value: object) -> Markup:
    return element("td", f"{value:,}" if isinstance(value, int) else value, class_="number")
