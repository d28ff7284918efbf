"""Pictures of what grows or does not: figures over epochs or rows as lines, the run before as broken lines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from benchmarks.measuring import Measure, quartiles, words
from benchmarks.page.words import begun
from benchmarks.summary import amount
from epochal.chaos.report import kinds, palette
from epochal.chaos.report.chart import colour, drawing, figure, frameless, svg, text_width
from epochal.chaos.report.kinds import Kind
from epochal.chaos.report.text import line
from epochal.chaos.report.timeline import WIDTH

LEAST = {"epoch": 2, "epochs before": 2, "rows": 3}
"""The keys over which figures may be drawn -> how many points a line needs."""
LEFT, RIGHT, TOP, HEIGHT, BOTTOM = 70, 44, 14, 230, 58
SERIES = palette.KINDS  # how many lines one picture has; each has its own colour
WIDE = 30  # from this span on, an axis of values is logarithmic

Points = Mapping[int, Sequence[float]]


@dataclass
class Panel:
    """Lines in one unit over one key, with everything else in their case the same.  ``what``: the part of each job."""

    over: str
    unit: str
    what: str
    case: Mapping[str, object]
    part: str = ""  # number of the picture, if the lines do not fit in one
    newest: dict[str, dict[int, Sequence[float]]] = field(default_factory=dict)
    before: dict[str, dict[int, Sequence[float]]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        over = "epochs" if self.over == "epoch" else self.over
        said = f"{begun(self.unit)} over {over}"
        return ": ".join(filter(None, (said, line(self.what), words(self.case)))) + self.part


def panels(measures: Sequence[Measure], before: Sequence[Measure]) -> list[Panel]:
    """Return panels of the jobs that have enough points in the newest run, with at most ``SERIES`` lines in each."""
    found: dict[object, Panel] = {}
    for measure in measures:
        for panel, x in _of(measure, found):
            panel.newest.setdefault(_job(measure), {})[x] = measure.values
    for measure in before:
        for panel, x in _of(measure, found):
            panel.before.setdefault(_job(measure), {})[x] = measure.values
    return [part for panel in found.values() for part in _split(panel)]


def _job(measure: Measure) -> str:
    """The job without its part: ``postgres`` for ``postgres: start``."""
    return measure.job.partition(": ")[0]


def _of(measure: Measure, found: dict[object, Panel]) -> Iterator[tuple[Panel, int]]:
    """The panels in which a measure has a point, with the place of the point."""
    if "phase" in measure.case:
        return
    for over in LEAST:
        x = measure.case.get(over)
        if not isinstance(x, int) or x <= 0:
            continue
        rest = {key: value for key, value in measure.case.items() if key != over}
        what = measure.job.partition(": ")[2]
        place = over, measure.unit, what, words(rest)
        yield found.setdefault(place, Panel(over, measure.unit, what, rest)), x


def _split(panel: Panel) -> Iterator[Panel]:
    jobs = [job for job, points in panel.newest.items() if len(points) >= LEAST[panel.over]]
    parts = [jobs[first : first + SERIES] for first in range(0, len(jobs), SERIES)]
    for number, some in enumerate(parts, start=1):
        part = f" ({number} of {len(parts)})" if len(parts) > 1 else ""
        newest, before = ({job: of[job] for job in some if job in of} for of in (panel.newest, panel.before))
        yield replace(panel, part=part, newest=newest, before=before)


def draw(panel: Panel, name: str) -> str:
    """Draw a line for each job over a logarithmic axis."""
    with drawing():
        jobs = {
            job: Kind(job, chr(ord("A") + place), kinds.SHAPES[place], f"kind-{place}")
            for place, job in enumerate(panel.newest)
        }
        width = WIDTH - LEFT - RIGHT
        under = BOTTOM + kinds.legend_height(jobs.values(), width)
        whole = TOP + HEIGHT + under
        made = figure(WIDTH, whole)
        axes = made.add_axes((LEFT / WIDTH, under / whole, width / WIDTH, HEIGHT / whole))
        _axes(axes, panel, width)
        for job, kind in jobs.items():
            _line(axes, kind, panel.newest[job], panel.before.get(job, {}))
        kinds.draw_legend(made, jobs.values(), LEFT, width)
        return svg(made, name, panel.title, _description(panel))


def _axes(axes: Axes, panel: Panel, width: float) -> None:
    every = [points for of in (panel.newest, panel.before) for points in of.values()]
    xs = sorted({x for points in every for x in points})
    axes.set(xscale="log", xlim=(xs[0] / 1.15, xs[-1] * 1.15))
    axes.xaxis.set_major_locator(FixedLocator(_apart(axes, xs, width)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    values = [value for points in every for spread in points.values() for value in quartiles(spread)]
    least = min(values)
    if least > 0 and max(values) > WIDE * least:
        axes.set(yscale="log", ylim=(least / 1.5, max(values) * 1.5))
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 3)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set(ylim=(min(0, least * 1.1), max(values) * 1.1 or 1))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))
    axes.set_xlabel(panel.over, labelpad=4)
    frameless(axes, "y", pad=6)


def _apart(axes: Axes, xs: Sequence[int], width: float) -> list[int]:
    """The places whose numbers do not touch.  If two would touch, the larger one is kept."""
    low, high = axes.transLimits.inverted().transform([(0, 0), (1, 0)])[:, 0]
    chosen: list[int] = []
    free = float("inf")
    for x in reversed(xs):
        at = float((axes.transScale.transform((x, 1))[0] - low) / (high - low)) * width
        half = text_width(f"{x:,}") / 2 + 6
        if at + half <= free:
            chosen.append(x)
            free = at - half
    return chosen


def _line(axes: Axes, kind: Kind, newest: Points, before: Points) -> None:
    tint = colour(kind.colour)
    if before:
        xs = sorted(before)
        axes.plot(xs, [statistics.median(before[x]) for x in xs], color=tint, linewidth=1.5, dashes=(4, 3))
    xs = sorted(newest)
    medians = [statistics.median(newest[x]) for x in xs]
    axes.plot(xs, medians, color=tint, linewidth=2)
    for x in xs:
        first, _, third = quartiles(newest[x])
        axes.plot([x, x], [first, third], color=tint, linewidth=4, alpha=0.5)
    kind.mark(axes, xs, medians)


def _description(panel: Panel) -> str:
    said = []
    for job, points in panel.newest.items():
        figures = ", ".join(f"{amount(statistics.median(points[x]))} at {x:,}" for x in sorted(points))
        said.append(f"{line(job)}: {figures}")
    return f"{'; '.join(said)}. The table of absolute figures says the same in numbers."
