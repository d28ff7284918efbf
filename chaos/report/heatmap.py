"""Where faults struck: points x sinks, a field for each kind, with their number in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from epochal.chaos.failpoints import Point
from epochal.chaos.history import Fault
from epochal.chaos.report.chart import colour, drawing, figure, svg, text_width, wrapped
from epochal.chaos.report.kinds import Kind
from epochal.chaos.report.text import line
from epochal.chaos.report.timeline import WIDTH, Picture

CELL_WIDTH, CELL_HEIGHT = 46, 24
NAMES = 250  # pixels for the names of points
LINES = 3  # of a sink's name above its column: as wide as a cell
SHORTEST = 96  # pixels that a sink's name may take before it is broken into lines
BETWEEN, MARGIN = 22, 8
TITLE = 26
MOST_POINTS = 80
BUCKETS = (1, 2, 4, 8, 16)  # a cell is darker from each of these on

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
        """Counted, the points in the order of the protocol and then by name; very many are put together."""
        struck = Counter(fault.point for fault in faults)
        common = {point for point, _ in struck.most_common(MOST_POINTS)} if len(struck) > MOST_POINTS else set(struck)
        counts = Counter((f.point if f.point in common else OTHERS, f.sink, f.kind) for f in faults)
        points = sorted({point for point, _, _ in counts}, key=_order)
        return cls(counts, tuple(points))

    def sinks(self, kind: str) -> tuple[str, ...]:
        """Those that a kind struck; first what struck no sink."""
        return tuple(sorted({sink for _, sink, other in self.counts if other == kind}))


def _order(point: str) -> tuple[int, str]:
    if point in ("", OTHERS):
        return len(PROTOCOL) + 1, point
    return PROTOCOL.get(point, len(PROTOCOL)), point


def unstruck(faults: Sequence[Fault]) -> list[str]:
    """The failpoints of the protocol at which nothing struck; none where the run struck at none of them."""
    struck = {fault.point for fault in faults}
    return [point for point in PROTOCOL if point not in struck] if struck & set(PROTOCOL) else []


def draw(faults: Sequence[Fault], kinds: Mapping[str, Kind], name: str) -> Picture:
    """The picture of all strikes; there is at least one."""
    strikes = Strikes.of(faults)
    with drawing():
        labels = [wrapped(line(point or NOWHERE), NAMES) for point in strikes.points]
        left = MARGIN + 8 + max(text_width(part) for label in labels for part in label.split("\n"))
        heights = [max(CELL_HEIGHT, 16 * (label.count("\n") + 1) + 4) for label in labels]
        shelves = list(_shelves(_facets(strikes, kinds, WIDTH - left - MARGIN), WIDTH - left - MARGIN))
        tops = [TITLE + max(_heading(facet) for facet in shelf) for shelf in shelves]
        whole = sum(top + sum(heights) + BETWEEN for top in tops)
        made = figure(WIDTH, whole)
        y = 0.0
        for shelf, top in zip(shelves, tops, strict=True):
            x = left
            for place, facet in enumerate(shelf):
                box = (x, y + top, CELL_WIDTH * len(facet.sinks), float(sum(heights)))
                _field(made, box, facet, strikes, heights, labels if place == 0 else None)
                x += facet.width + BETWEEN
            y += top + sum(heights) + BETWEEN
        return Picture(svg(made, name, "Where faults struck", _description(strikes, len(faults))), ())


def _facets(strikes: Strikes, kinds: Mapping[str, Kind], width: float) -> Iterator[Facet]:
    """One for each kind, or more if its sinks need more room than a row has."""
    fit = max(1, int(width // CELL_WIDTH))
    for kind in kinds.values():
        sinks = iter(strikes.sinks(kind.name))
        while some := tuple(islice(sinks, fit)):
            yield Facet(kind, some)


def _shelves(facets: Iterator[Facet], width: float) -> Iterator[list[Facet]]:
    """Facets side by side, as many as fit."""
    shelf: list[Facet] = []
    for facet in facets:
        if shelf and sum(f.width + BETWEEN for f in shelf) + facet.width > width:
            yield shelf
            shelf = []
        shelf.append(facet)
    if shelf:
        yield shelf


def _column(sink: str) -> str:
    """A sink's name in as many lines as its column is wide, all of it."""
    name = line(sink or NO_SINK)
    room = max(SHORTEST, text_width(name) / LINES)
    while (label := wrapped(name, room)).count("\n") >= LINES:
        room *= 1.1
    return label


def _heading(facet: Facet) -> float:
    """Pixels that the names of the sinks need above the field."""
    return 10 + max(text_width(part) for sink in facet.sinks for part in _column(sink).split("\n"))


def _field(
    made: Figure,
    box: tuple[float, float, float, float],
    facet: Facet,
    strikes: Strikes,
    heights: Sequence[float],
    labels: Sequence[str] | None,
) -> None:
    """One facet; ``box`` is left, top, width and height in pixels, ``labels`` the points where they are written."""
    left, top, width, height = box
    whole_width, whole_height = (size * made.dpi for size in made.get_size_inches())
    place = (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
    axes = made.add_axes(place)
    edges = [float(sum(heights[:n])) for n in range(len(heights) + 1)]
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    _cells(axes, facet, strikes, edges, middles)
    axes.set(xlim=(0, len(facet.sinks)), ylim=(height, 0))
    axes.tick_params(length=0, pad=5, labeltop=True, labelbottom=False)
    columns = [n + 0.5 for n in range(len(facet.sinks))]
    axes.set_xticks(columns, [_column(sink) for sink in facet.sinks], rotation=90, linespacing=1.2)
    axes.set_yticks(middles, list(labels or [""] * len(middles)), linespacing=1.2)
    heading = _heading(facet) + TITLE / 2
    axes.text(0, -heading, facet.kind.text, weight="bold", verticalalignment="center_baseline")


def _cells(axes: Axes, facet: Facet, strikes: Strikes, edges: Sequence[float], middles: Sequence[float]) -> None:
    counts = [[strikes.counts[point, sink, facet.kind.name] for sink in facet.sinks] for point in strikes.points]
    shades = ListedColormap([colour(f"heat-{n}") for n in range(len(BUCKETS) + 1)])
    norm = BoundaryNorm([-1, *(bucket - 0.5 for bucket in BUCKETS), 1 << 30], shades.N)
    columns = list(range(len(facet.sinks) + 1))
    axes.pcolormesh(columns, edges, counts, cmap=shades, norm=norm, edgecolors=colour("line"), linewidth=1)
    for row, middle in zip(counts, middles, strict=True):
        for column, count in enumerate(row):
            if count:
                ink = colour(f"heat-ink-{sum(count >= bucket for bucket in BUCKETS)}")
                where = {"horizontalalignment": "center", "verticalalignment": "center_baseline"}
                axes.text(column + 0.5, middle, f"{count}", color=ink, **where)  # type: ignore[arg-type]


def _description(strikes: Strikes, total: int) -> str:
    (point, sink, kind), most = strikes.counts.most_common(1)[0]
    where = f"{line(point or NOWHERE)}, {line(sink or NO_SINK)}"
    return f"{total} faults at {len(strikes.points)} points; most often {most} times {line(kind)} {where}."
