"""Pictures of ratios: dots with quartiles, the newest run above the run before, and the goal as an upright line."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from benchmarks.goals import GOALS, Goal
from benchmarks.measuring import Ratio, quartiles, words
from benchmarks.page.words import begun, spelled
from benchmarks.stored import same
from benchmarks.summary import amount, with_spread
from epochal.chaos.report.chart import colour, drawing, figure, frameless, svg, text_width, wrapped
from epochal.chaos.report.text import line
from epochal.chaos.report.timeline import WIDTH

ROW, HEAD = 34, 30  # pixels of a ratio, and of the job's name above its ratios
LINE = 15  # further pixels for each further line of a peer's name
NAMES = 270  # pixels of a peer's name
INDENT = 14  # pixels by which a peer's name is indented under its heading
TOP, BOTTOM, GAP = 6, 52, 14
NEWEST, BEFORE = -6, 8  # pixels from the middle of a row
TICKS = [scale * 10.0**power for power in range(-4, 6) for scale in (1, 2, 5)]


@dataclass(frozen=True)
class Dot:
    """A ratio of the newest run, and the same ratio of the run before.

    ``label`` names its line, and ``heading`` the group of lines that it belongs to.
    """

    ratio: Ratio
    before: Ratio | None
    heading: str
    label: str

    @property
    def goal(self) -> Goal | None:
        return GOALS.get(self.ratio.goal) if self.ratio.goal else None

    @property
    def said(self) -> str:
        return with_spread(self.ratio.values)

    @property
    def verdict(self) -> tuple[str, str]:
        """(text about the goal, its colour)."""
        if self.goal is None:
            return "", "muted"
        holds = self.goal.holds(statistics.median(self.ratio.values))
        return f"{'✓' if holds else '✗ NOT MET:'} {self.goal.bound}", "valid" if holds else "invalid"

    @property
    def spans(self) -> Iterator[float]:
        """All values that must lie within the axis."""
        for ratio in (self.ratio, self.before):
            if ratio is not None:
                yield from quartiles(ratio.values)
        if self.goal is not None:
            yield from (bound for bound in (self.goal.least, self.goal.most) if bound is not None)


@dataclass(frozen=True)
class _Place:
    """A line of the picture, with its middle and height in pixels from the top.  Without a dot it is a heading."""

    middle: float
    height: float
    text: str
    dot: Dot | None = None


def is_difference(what: str) -> bool:
    """Return whether the values are differences such as ``s more``, and not quotients: then 0 means equal."""
    return what.startswith("s more")


def more_is_better(what: str) -> bool:
    """Return whether more is better, as for speeds.  For seconds and bytes, less is better."""
    return "/s" in what


@dataclass(frozen=True)
class Panel:
    """Ratios of one kind."""

    title: str
    dots: Sequence[Dot]


def panels(ratios: Sequence[Ratio], before: Sequence[Ratio]) -> list[Panel]:
    """Return a picture for each case.  If each case has only one ratio, the cases are the lines of one picture."""
    found: list[Panel] = []
    for what in dict.fromkeys(ratio.what for ratio in ratios):
        mine = [ratio for ratio in ratios if ratio.what == what]
        title = begun(what) if is_difference(what) else f"Ratio of {spelled(what)}"
        cases = list(dict.fromkeys(words(ratio.case) for ratio in mine))
        if len(cases) > 1 and len(cases) == len(mine):
            dots = [Dot(r, same(r, before), f"{r.job} over {r.peer}", words(r.case)) for r in _by_pair(mine)]
            found.append(Panel(title, dots))
            continue
        for case in cases:
            dots = _of_case([r for r in mine if words(r.case) == case], before)
            found.append(Panel(": ".join(filter(None, (title, case))), dots))
    return found


def _of_case(ratios: Sequence[Ratio], before: Sequence[Ratio]) -> list[Dot]:
    """Dots grouped by job, or by peer if there are fewer peers."""
    peers = list(dict.fromkeys(ratio.peer for ratio in ratios))
    if len(peers) < len({ratio.job for ratio in ratios}):
        by_peer = sorted(ratios, key=lambda ratio: peers.index(ratio.peer))
        return [Dot(r, same(r, before), f"over {r.peer}", r.job) for r in by_peer]
    return [Dot(r, same(r, before), r.job, f"over {r.peer}") for r in ratios]


def _by_pair(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Sort the ratios so that those of the same two jobs are together."""
    pairs = list(dict.fromkeys((ratio.job, ratio.peer) for ratio in ratios))
    return sorted(ratios, key=lambda ratio: pairs.index((ratio.job, ratio.peer)))


def draw(panel: Panel, name: str) -> str:
    """Draw one picture."""
    dots, what = panel.dots, panel.dots[0].ratio.what
    with drawing():
        places = list(_places(dots))
        left = INDENT + GAP + max(text_width(part, weight=_weight(p)) for p in places for part in p.text.split("\n"))
        said = max(text_width(dot.said) for dot in dots)
        right = 2 * GAP + said + max(text_width(dot.verdict[0], weight="bold") for dot in dots) + GAP
        width, height = WIDTH - left - right, sum(place.height for place in places)
        whole = TOP + height + BOTTOM
        made = figure(WIDTH, whole)
        axes = made.add_axes((left / WIDTH, BOTTOM / whole, width / WIDTH, height / whole))
        low, high = _axis(axes, dots, what)
        pixel = _pixels(low, high, width, logarithmic=not is_difference(what))
        axes.set_ylim(height, 0)
        for place in places:
            _name(axes, place, left)
            if place.dot is not None:
                _goal(axes, place, place.dot, (low, high))
                _dot(axes, place, place.dot)
                _say(axes, place, place.dot, pixel(width + GAP), pixel(width + 2 * GAP + said))
        return svg(made, name, panel.title, _description(dots))


def _places(dots: Sequence[Dot]) -> Iterator[_Place]:
    top, heading = 0.0, None
    for dot in dots:
        if dot.heading != heading:
            heading = dot.heading
            text = wrapped(line(heading), NAMES)
            height = HEAD + LINE * text.count("\n")
            yield _Place(top + height / 2, height, text)
            top += height
        text = wrapped(line(dot.label), NAMES)
        height = max(ROW, LINE * (text.count("\n") + 1) + 8)
        yield _Place(top + height / 2, height, text, dot)
        top += height


def _weight(place: _Place) -> str:
    return "bold" if place.dot is None else "normal"


def _axis(axes: Axes, dots: Sequence[Dot], what: str) -> tuple[float, float]:
    """Set the axis of the values; return its ends."""
    alike = 0.0 if is_difference(what) else 1.0
    values = [alike, *(value for dot in dots for value in dot.spans)]
    if is_difference(what):
        room = 0.08 * (max(values) - min(values) or 1)
        low, high = min(values) - room, max(values) + room
        axes.set(xlim=(low, high))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        side = spelled(what)
    else:
        values = [value for value in values if value > 0]
        low, high = min(values) / 1.25, max(values) * 1.25
        axes.set(xscale="log", xlim=(low, high))
        axes.xaxis.set_major_locator(FixedLocator(_ticks(low, high)))
        axes.xaxis.set_minor_locator(NullLocator())
        side = f"{spelled(what)}, times the peer’s"
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))
    axes.set_yticks([])
    axes.axvline(alike, color=colour("band"), linewidth=1.5)
    axes.set_xlabel(f"{side} · {'right is better →' if more_is_better(what) else '← left is better'}", labelpad=6)
    frameless(axes, "x", pad=6)
    return low, high


def _ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: even steps if it is short, powers of ten if it is long."""
    if high < 4 * low:
        return [
            tick for tick in MaxNLocator(nbins=7, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= tick <= high
        ]
    fine = [tick for tick in TICKS if low <= tick <= high]
    return fine if len(fine) <= 9 else [tick for tick in fine if f"{tick:e}".startswith("1.0")]


def _pixels(low: float, high: float, width: float, *, logarithmic: bool) -> Callable[[float], float]:
    """Return a function from pixels, counted from the left end of the axis, to values."""
    if logarithmic:
        return lambda x: float(low * (high / low) ** (x / width))
    return lambda x: low + (high - low) * x / width


def _name(axes: Axes, place: _Place, left: float) -> None:
    heading = place.dot is None
    axes.annotate(
        place.text,
        (0, place.middle + (4 if heading else 0)),
        xytext=((0 if heading else INDENT) - left, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset pixels",
        verticalalignment="center",
        linespacing=1.2,
        weight=_weight(place),
    )


def _goal(axes: Axes, place: _Place, dot: Dot, ends: tuple[float, float]) -> None:
    """Draw a line at the bound, and a tint on the side that the goal demands."""
    if dot.goal is None:
        return
    bound = dot.goal.least if dot.goal.least is not None else dot.goal.most
    assert bound is not None
    far = ends[1] if dot.goal.least is not None else ends[0]
    rows = (place.middle - place.height / 2 + 2, place.middle + place.height / 2 - 2)
    axes.fill_betweenx(rows, [bound] * 2, [far] * 2, color=colour("valid-soft"), linewidth=0, zorder=0.4)
    axes.plot([bound, bound], rows, color=colour("valid"), linewidth=2.5, solid_capstyle="butt")


def _dot(axes: Axes, place: _Place, dot: Dot) -> None:
    if dot.before is not None:
        first, median, third = quartiles(dot.before.values)
        y = place.middle + BEFORE
        axes.plot([first, third], [y, y], color=colour("muted"), linewidth=2)
        inside, edge = colour("paper"), colour("muted")
        axes.plot([median], [y], "o", markersize=6, markerfacecolor=inside, markeredgecolor=edge, markeredgewidth=1.5)
    first, median, third = quartiles(dot.ratio.values)
    y = place.middle + (NEWEST if dot.before is not None else 0)
    axes.plot([first, third], [y, y], color=colour("kind-1"), linewidth=4)
    axes.plot([median], [y], "o", markersize=9, color=colour("kind-1"), markeredgewidth=0)


def _say(axes: Axes, place: _Place, dot: Dot, x: float, further: float) -> None:
    text, tint = dot.verdict
    axes.text(x, place.middle, dot.said, verticalalignment="center_baseline")
    if text:
        axes.text(further, place.middle, text, color=colour(tint), weight="bold", verticalalignment="center_baseline")


def _description(dots: Sequence[Dot]) -> str:
    said = [f"{d.heading} {d.label}: {d.said} {d.verdict[0]}".strip() for d in dots]
    return "; ".join(map(line, said)) + ". The table below says the same in numbers."
