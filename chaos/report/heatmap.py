"""The picture of where faults struck: for each kind of fault, a field of points x sinks with numbers of strikes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from epochal.chaos.observe.history import Fault
from epochal.chaos.report.chart import colour, drawing, figure, svg, text_width, wrapped
from epochal.chaos.report.kinds import Kind
from epochal.chaos.report.text import line
from epochal.chaos.report.timeline import WIDTH, Picture
from epochal.coordinator.model.failpoints import Point

CELL_WIDTH, CELL_HEIGHT = 46, 24
NAMES = 250  # pixels for the names of points
LINES = 3  # at most so many lines of a sink's name fit above its column
SHORTEST = 96  # a sink's name that takes fewer pixels is not broken into lines
BETWEEN, MARGIN = 22, 8
TITLE = 26
MOST_POINTS = 80
BUCKETS = (1, 2, 4, 8, 16)  # a cell gets darker at each of these numbers

NOWHERE = "at no named point"
NO_SINK = "no sink"
OTHERS = "at other points"
PROTOCOL = {point.value: place for place, point in enumerate(Point)}


@dataclass(frozen=True)
class Facet:
    """The strikes of one kind, over some of the sinks."""

    kind: Kind
    sinks: tuple[str, ...]

    @property
    def width(self) -> float:
        return max(CELL_WIDTH * len(self.sinks), text_width(self.kind.text, weight="bold") + 4)


@dataclass(frozen=True)
class Strikes:
    """How often each kind struck each sink at each point."""

    counts: Counter[tuple[str, str, str]]  # point, sink, kind
    points: tuple[str, ...]

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> Strikes:
        """Count the strikes.  Points are in the order of the protocol, then by name; too many points are joined."""
        struck = Counter(fault.point for fault in faults)
        common = {point for point, _ in struck.most_common(MOST_POINTS)} if len(struck) > MOST_POINTS else set(struck)
        counts = Counter((f.point if f.point in common else OTHERS, f.sink, f.kind) for f in faults)
        points = sorted({point for point, _, _ in counts}, key=_order)
        return cls(counts, tuple(points))

    def sinks(self, kind: str) -> tuple[str, ...]:
        """Return the sinks that a kind of fault struck, sorted; "" stands for no sink and comes first."""
        return tuple(sorted({sink for _, sink, other in self.counts if other == kind}))


def _order(point: str) -> tuple[int, str]:
    if point in ("", OTHERS):
        return len(PROTOCOL) + 1, point
    return PROTOCOL.get(point, len(PROTOCOL)), point


def unstruck(faults: Sequence[Fault]) -> list[str]:
    """Return the failpoints of the protocol at which nothing struck; empty if the run struck none of them."""
    struck = {fault.point for fault in faults}
    return [point for point in PROTOCOL if point not in struck] if struck & set(PROTOCOL) else []


def draw(faults: Sequence[Fault], kinds: Mapping[str, Kind], name: str) -> Picture:
    """Draw all strikes, of which there must be at least one."""
    strikes = Strikes.of(faults)
    with drawing():
        labels = {point: wrapped(line(point or NOWHERE), NAMES) for point in strikes.points}
        left = MARGIN + 8 + max(text_width(part) for label in labels.values() for part in label.split("\n"))
        width = WIDTH - left - MARGIN
        shelves = [Shelf.of(facets, strikes, labels) for facets in _side_by_side(_facets(strikes, kinds, width), width)]
        made = figure(left + max(shelf.width for shelf in shelves) + MARGIN, sum(shelf.height for shelf in shelves))
        top = 0.0
        for shelf in shelves:
            shelf.draw(made, left, top)
            top += shelf.height
        return Picture(svg(made, name, "Where faults struck", _description(strikes, len(faults))), ())


def _facets(strikes: Strikes, kinds: Mapping[str, Kind], width: float) -> Iterator[Facet]:
    """One facet for each kind, or more if its sinks need more room than a row has."""
    fit = max(1, int(width // CELL_WIDTH))
    for kind in kinds.values():
        sinks = iter(strikes.sinks(kind.name))
        while some := tuple(islice(sinks, fit)):
            yield Facet(kind, some)


def _side_by_side(facets: Iterator[Facet], width: float) -> Iterator[list[Facet]]:
    """Rows of facets, with as many side by side as fit."""
    row: list[Facet] = []
    for facet in facets:
        if row and sum(other.width + BETWEEN for other in row) + facet.width > width:
            yield row
            row = []
        row.append(facet)
    if row:
        yield row


def _column(sink: str) -> str:
    """A sink's whole name in at most ``LINES`` lines, which fit above its column."""
    name = line(sink or NO_SINK)
    room = max(SHORTEST, text_width(name) / LINES)
    while (label := wrapped(name, room)).count("\n") >= LINES:
        room *= 1.1
    return label


def _heading(facet: Facet) -> float:
    """How many pixels the names of the sinks need above the field."""
    return 10 + max(text_width(part) for sink in facet.sinks for part in _column(sink).split("\n"))


@dataclass(frozen=True)
class Shelf:
    """Facets side by side, with the points at which they struck."""

    facets: Sequence[Facet]
    labels: Mapping[str, str]  # point -> its name in lines
    edges: tuple[float, ...]  # edges of the points' rows, in pixels from the first
    counts: Counter[tuple[str, str, str]]

    @classmethod
    def of(cls, facets: Sequence[Facet], strikes: Strikes, labels: Mapping[str, str]) -> Shelf:
        struck = {(facet.kind.name, sink) for facet in facets for sink in facet.sinks}
        points = {point for point, sink, kind in strikes.counts if (kind, sink) in struck}
        mine = {point: label for point, label in labels.items() if point in points}
        heights = (max(CELL_HEIGHT, 16 * (label.count("\n") + 1) + 4) for label in mine.values())
        return cls(facets, mine, tuple(accumulate(heights, initial=0.0)), strikes.counts)

    @property
    def heading(self) -> float:
        """How many pixels are above the fields."""
        return TITLE + max(_heading(facet) for facet in self.facets)

    @property
    def height(self) -> float:
        return self.heading + self.edges[-1] + BETWEEN

    @property
    def width(self) -> float:
        return sum(facet.width + BETWEEN for facet in self.facets) - BETWEEN

    def draw(self, made: Figure, left: float, top: float) -> None:
        """Draw the facets.  The names of the points are at the left of the first field."""
        whole_width, whole_height = (size * made.dpi for size in made.get_size_inches())
        high = self.edges[-1]
        for place, facet in enumerate(self.facets):
            bottom = 1 - (top + self.heading + high) / whole_height
            wide = CELL_WIDTH * len(facet.sinks)
            axes = made.add_axes((left / whole_width, bottom, wide / whole_width, high / whole_height))
            self._field(axes, facet)
            names = list(self.labels.values()) if place == 0 else [""] * len(self.labels)
            axes.set_yticks(self._middles, names, linespacing=1.2)
            left += facet.width + BETWEEN

    @property
    def _middles(self) -> list[float]:
        return [(a + b) / 2 for a, b in pairwise(self.edges)]

    def _field(self, axes: Axes, facet: Facet) -> None:
        counts = [[self.counts[point, sink, facet.kind.name] for sink in facet.sinks] for point in self.labels]
        shades = ListedColormap([colour(f"heat-{n}") for n in range(len(BUCKETS) + 1)])
        norm = BoundaryNorm([-1, *(bucket - 0.5 for bucket in BUCKETS), 1 << 30], shades.N)
        columns = list(range(len(facet.sinks) + 1))
        axes.pcolormesh(columns, self.edges, counts, cmap=shades, norm=norm, edgecolors=colour("line"), linewidth=1)
        self._numbers(axes, counts)
        axes.set(xlim=(0, len(facet.sinks)), ylim=(self.edges[-1], 0))
        axes.tick_params(length=0, pad=5, labeltop=True, labelbottom=False)
        middles = [column + 0.5 for column in columns[:-1]]
        axes.set_xticks(middles, [_column(sink) for sink in facet.sinks], rotation=90, linespacing=1.2)
        axes.text(0, TITLE / 2 - self.heading, facet.kind.text, weight="bold", verticalalignment="center_baseline")

    def _numbers(self, axes: Axes, counts: Sequence[Sequence[int]]) -> None:
        for row, middle in zip(counts, self._middles, strict=True):
            for column, count in enumerate(row):
                if count:
                    ink = colour(f"heat-ink-{sum(count >= bucket for bucket in BUCKETS)}")
                    where = {"horizontalalignment": "center", "verticalalignment": "center_baseline"}
                    axes.text(column + 0.5, middle, f"{count:,}", color=ink, **where)  # type: ignore[arg-type]


def _description(strikes: Strikes, total: int) -> str:
    (point, sink, kind), most = strikes.counts.most_common(1)[0]
    where = f"{line(point or NOWHERE)}, {line(sink or NO_SINK)}"
    return f"{total} faults at {len(strikes.points)} points; most often {most} times {line(kind)} {where}."
