"""Each kind of fault gets its own letter, and a shape and a colour, which are the same in every picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from epochal.chaos.observe.history import Fault
from epochal.chaos.report import palette
from epochal.chaos.report.chart import colour, text_width
from epochal.chaos.report.text import line

SHAPES = ("X", "s", "o", "^", "D", "P", "v", "p", "*", "h")
ROW = 20  # pixels of a row of the legend
SIZE = 8
NAME = 60  # at most so many characters of a kind's name in a picture


class Kind(NamedTuple):
    """How a kind of fault is drawn."""

    name: str
    letter: str
    shape: str
    colour: str

    @property
    def text(self) -> str:
        return f"{self.letter}  {line(self.name, NAME)}"

    def mark(self, axes: Axes, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Draw the kind's shape at each of these places."""
        axes.plot(xs, ys, self.shape, markersize=SIZE, color=colour(self.colour), markeredgewidth=0, clip_on=False)


def assign(faults: Iterable[Fault]) -> dict[str, Kind]:
    """Return the kinds among ``faults``, the most frequent first."""
    counted = Counter(fault.kind for fault in faults)
    kinds: dict[str, Kind] = {}
    taken: set[str] = set()
    for place, name in enumerate(sorted(counted, key=lambda name: (-counted[name], name))):
        letter = next(letter for letter in _letters(name) if letter not in taken)
        taken.add(letter)
        kinds[name] = Kind(name, letter, SHAPES[place % len(SHAPES)], f"kind-{place % palette.KINDS}")
    return kinds


def _letters(name: str) -> Iterator[str]:
    letters = [character for character in line(name) if character.isascii() and character.isalnum()] or ["X"]
    first = letters[0].upper()
    yield first
    yield from (first + letter.lower() for letter in letters[1:])
    yield from (f"{first}{number}" for number in range(2, 1 << 20))


def legend_height(kinds: Iterable[Kind], width: float) -> int:
    """Return how many pixels the legend needs."""
    return ROW * (1 + max((row for _, _, row in _placed(kinds, width)), default=-1))


def draw_legend(made: Figure, kinds: Iterable[Kind], left: float, width: float) -> None:
    """Draw shape, letter and name of each kind at the bottom of the figure."""
    kinds = tuple(kinds)
    height = legend_height(kinds, width)
    if not height:
        return
    whole_width, whole_height = (size * made.dpi for size in made.get_size_inches())
    axes = made.add_axes((left / whole_width, 0, width / whole_width, height / whole_height))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    for kind, x, row in _placed(kinds, width):
        middle = (row + 0.5) * ROW
        kind.mark(axes, [x + SIZE / 2], [middle])
        axes.text(x + SIZE + 6, middle, kind.text, verticalalignment="center_baseline")


def _placed(kinds: Iterable[Kind], width: float) -> Iterator[tuple[Kind, float, int]]:
    """Each kind with its left edge and its row."""
    x, row = 0.0, 0
    for kind in kinds:
        needs = SIZE + 6 + text_width(kind.text) + 22
        if x and x + needs > width:
            x, row = 0.0, row + 1
        yield kind, x, row
        x += needs
