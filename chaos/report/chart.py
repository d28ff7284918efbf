"""Turn a matplotlib figure into a piece of HTML.  Text stays text, and colours become variables of the page.

One unit of a figure is one pixel.  Texts are measured in DejaVu Sans, which is among the widest fonts that browsers use
for ``sans-serif``.  So a text that fits here also fits in a browser.
"""

from __future__ import annotations

import contextlib
import io
import re
import unicodedata
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from epochal.chaos.report.palette import LIGHT

FONT = 12
PER_INCH = 72
LEAST = 760  # pixels; a picture gets no narrower on a screen, as its texts could not be read
_CODES = {name: f"#fe{index:02x}ef" for index, name in enumerate(LIGHT)}
_NAMES = {code: name for name, code in _CODES.items()}
_RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "epochal",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": FONT,
    "xtick.labelsize": FONT,
    "ytick.labelsize": FONT,
    "axes.labelsize": FONT,
    "axes.unicode_minus": False,
    "figure.dpi": PER_INCH,
}


def colour(name: str) -> str:
    """Return a colour that stands for a variable of the page.  Raises KeyError if the palette lacks the name."""
    return _CODES[name]


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Use matplotlib's defaults and our settings, not the user's.  Draw and write figures within this context."""
    inks = {name: colour("ink") for name in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")}
    with warnings.catch_warnings(), mpl.rc_context():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ ", category=UserWarning)  # the browser may have the glyph
        style.use(["default", {**_RC, **inks, "axes.edgecolor": colour("line")}])
        yield


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many pixels."""
    made = Figure(figsize=(width / PER_INCH, height / PER_INCH), dpi=PER_INCH)
    made.patch.set_visible(False)
    FigureCanvasSVG(made)
    return made


def frameless(axes: Axes, grid: Literal["x", "y"], pad: float) -> None:
    """Draw a faint grid in the background, and only the lower line.  Numbers are ``pad`` pixels away, without ticks."""
    axes.patch.set_visible(False)
    axes.grid(axis=grid, color=colour("grid"), linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=pad)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


@lru_cache(maxsize=4096)
def text_width(text: str, weight: str = "normal") -> float:
    """Return how many pixels wide a line is at most."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=FONT, weight=weight), False)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return float(width) + wide * FONT / 2


def wrapped(text: str, width: float) -> str:
    """Return the text in lines of at most that width, without leaving anything out.

    A line breaks after a character such as ``.`` or ``_`` if possible, else anywhere.
    """
    lines = [""]
    for part in re.split(r"(?<=[._/:@ -])", text):
        for piece in _pieces(part, width):
            if lines[-1] and text_width(lines[-1] + piece) > width:
                lines.append("")
            lines[-1] += piece
    return "\n".join(line.strip() for line in lines)


def _pieces(part: str, width: float) -> Iterator[str]:
    while text_width(part) > width and len(part) > 1:
        fits = next(n for n in range(len(part) - 1, 0, -1) if n == 1 or text_width(part[:n]) <= width)
        yield part[:fits]
        part = part[fits:]
    yield part


class Shelves:
    """Puts labels side by side.  Each label goes into the first row that is free at its place."""

    def __init__(self, rows: int, gap: float = 4) -> None:
        self._ends = [float("-inf")] * rows
        self._gap = gap

    def place(self, left: float, right: float) -> int | None:
        """Return the row for a label from ``left`` to ``right``; None if no row is free.  Left edges must ascend."""
        for row, end in enumerate(self._ends):
            if left >= end + self._gap:
                self._ends[row] = right
                return row
        return None

    @property
    def used(self) -> int:
        return sum(end > float("-inf") for end in self._ends)


def svg(made: Figure, name: str, title: str, description: str) -> str:
    """Return the figure as an element of a page.  ``name`` must be unique on that page."""
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    made.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    root = ElementTree.fromstring(buffer.getvalue())
    _plain(root)
    _only_what_is_drawn(root)
    referenced = set(re.findall(r"#([\w-]+)", ElementTree.tostring(root, encoding="unicode")))
    for element in root.iter():
        _own(element, name, referenced)
    _unwrap(root)
    width, height = (round(size * PER_INCH) for size in made.get_size_inches())
    root.attrib = {
        "class": "chart",
        "viewBox": f"0 0 {width} {height}",
        "width": f"{width}",
        "height": f"{height}",
        "style": f"min-width:{min(LEAST, width)}px",
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
    }
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
        element.text = text
        root.insert(place, element)
    return ElementTree.tostring(root, encoding="unicode")


def _plain(root: ElementTree.Element) -> None:
    """Remove the namespaces of names, which HTML does not write, and white space between elements."""
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        element.tail = None
        if element.tag != "text":
            element.text = None


def _only_what_is_drawn(parent: ElementTree.Element) -> None:
    """Remove metadata, and clipping, which is not needed because nothing is drawn beyond its place."""
    parent.attrib.pop("clip-path", None)
    for child in list(parent):
        _only_what_is_drawn(child)
        if child.tag in ("metadata", "style", "clipPath") or (child.tag == "defs" and not len(child)):
            parent.remove(child)


_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_SIZE = re.compile(r"(?P<size>[\d.]+)px")


def _own(element: ElementTree.Element, name: str, referenced: set[str]) -> None:
    """Make ids unique to this chart, turn colours into variables, and shorten numbers to what a screen can show."""
    if element.get("id", "") not in referenced:
        element.attrib.pop("id", None)
    for key, value in list(element.attrib.items()):
        if key == "id":
            value = f"{name}-{value}"
        elif key == "href":
            value = f"#{name}-{value[1:]}"
        elif key == "style":
            value = _style(value, name)
        elif key in ("d", "x", "y", "transform", "points"):
            value = " ".join(_NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value).split())
        element.set(key, value)
    if (element.get("transform") or "").startswith("rotate(-0 "):
        del element.attrib["transform"]


def _style(value: str, name: str) -> str:
    """A style of matplotlib with the page's font; only size and weight of the font are kept."""
    value = value.replace("url(#", f"url(#{name}-")
    value = re.sub(r"#fe[0-9a-f]{2}ef", lambda code: f"var(--{_NAMES[code[0]]})", value)
    font = re.search(r"font:\s*([^;]*)", value)
    if font is not None:
        size = _SIZE.search(font[1])
        weight = "bold;" if "bold" in font[1] or "700" in font[1] else ""
        own = [f"font-weight:{weight}" if weight else "", f"font-size:{size['size']}px" if size else ""]
        value = value.replace(font[0], "".join(own) if size and float(size["size"]) != FONT else own[0].rstrip(";"))
    return ";".join(part.strip().replace(": ", ":") for part in value.split(";") if part.strip())


def _unwrap(parent: ElementTree.Element) -> None:
    """Remove groups without attributes, and keep their children."""
    children: list[ElementTree.Element] = []
    for child in list(parent):
        _unwrap(child)
        children += list(child) if child.tag == "g" and not child.attrib else [child]
    parent[:] = children
