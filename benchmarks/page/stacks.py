"""Pictures of where the time of an epoch goes: a bar for each job, with one piece for each phase."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from benchmarks.measuring import Measure, words
from benchmarks.page.words import begun, spelled
from benchmarks.summary import amount
from epochal.chaos.report import kinds, palette
from epochal.chaos.report.chart import colour, drawing, figure, frameless, svg, text_width, wrapped
from epochal.chaos.report.kinds import Kind
from epochal.chaos.report.text import line
from epochal.chaos.report.timeline import WIDTH
from epochal.coordinator.model.epoch import Phase
from epochal.coordinator.model.events import Step

ROW, BAR, THIN = 44, 20, 7  # pixels of a job (at least), of its bar, and of the bar of the run before
LINE = 15  # pixels of each line of a job's name
NAMES = 230
TOP, BOTTOM, GAP = 6, 56, 10


@dataclass
class Panel:
    """The phases of several jobs in one case, in one unit."""

    unit: str
    case: Mapping[str, object]
    newest: dict[str, dict[str, float]] = field(default_factory=dict)  # job -> phase -> median
    before: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return ": ".join(filter(None, (f"{begun(self.unit)} by phase", words(self.case))))


def panels(measures: Sequence[Measure], before: Sequence[Measure]) -> list[Panel]:
    """Return one panel for each case that has phases."""
    found: dict[object, Panel] = {}
    for of, name in ((measures, "newest"), (before, "before")):
        for measure in of:
            rest = {key: value for key, value in measure.case.items() if key != "phase"}
            place = measure.unit, words(rest)
            if "phase" not in measure.case or (place not in found and name == "before"):
                continue
            if is_step(str(measure.case["phase"])):
                continue
            panel = found.setdefault(place, Panel(measure.unit, rest))
            phases = getattr(panel, name).setdefault(measure.job, {})
            phases[str(measure.case["phase"])] = max(0.0, statistics.median(measure.values))
    return list(found.values())


def is_step(name: str) -> bool:
    """Return whether this is a step within a phase, such as ``prepare kafka``, which a sum would count twice."""
    return name not in {phase.value for phase in Phase} and name.split(" ")[0] in {step.value for step in Step}


def draw(panel: Panel, name: str) -> str:
    """Draw the bar of the newest run with its sum, above a thin bar of the run before."""
    phases = _phases(panel)
    with drawing():
        labels = {job: wrapped(line(job), NAMES) for job in panel.newest}
        left = 14 + max(text_width(part) for label in labels.values() for part in label.split("\n"))
        right = 2 * GAP + max(text_width(_sum(panel, of), weight="bold") for of in panel.newest.values())
        rows = [max(ROW, LINE * (label.count("\n") + 1) + 10) for label in labels.values()]
        width, height = WIDTH - left - right, sum(rows)
        bars = [top + (row - BAR - THIN) / 2 for top, row in zip(accumulate(rows, initial=0), rows, strict=False)]
        under = BOTTOM + kinds.legend_height(phases.values(), width)
        whole = TOP + height + under
        made = figure(WIDTH, whole)
        axes = made.add_axes((left / WIDTH, under / whole, width / WIDTH, height / whole))
        longest = max(sum(of.values()) for jobs in (panel.newest, panel.before) for of in jobs.values()) or 1.0
        _axes(axes, panel, longest, height)
        axes.set_yticks([top + BAR / 2 for top in bars], list(labels.values()), linespacing=1.2)
        for top, (job, of) in zip(bars, panel.newest.items(), strict=True):
            _bar(axes, of, phases, (top, BAR), longest / width)
            _bar(axes, panel.before.get(job, {}), phases, (top + BAR + 2, THIN), None)
            x, y = longest * (1 + GAP / width), top + BAR / 2
            axes.text(x, y, _sum(panel, of), weight="bold", verticalalignment="center_baseline")
        kinds.draw_legend(made, phases.values(), left, width)
        return svg(made, name, panel.title, _description(panel))


def _phases(panel: Panel) -> dict[str, Kind]:
    """Every phase with its number and colour, in the order of the measures."""
    names = list(dict.fromkeys(p for jobs in (panel.newest, panel.before) for of in jobs.values() for p in of))
    return {name: Kind(name, f"{place + 1}", "s", f"kind-{place % palette.KINDS}") for place, name in enumerate(names)}


def _sum(panel: Panel, phases: Mapping[str, float]) -> str:
    return f"{amount(sum(phases.values()))} {panel.unit}"


def _axes(axes: Axes, panel: Panel, longest: float, height: float) -> None:
    axes.set(xlim=(0, longest), ylim=(height, 0))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))
    axes.set_xlabel(spelled(panel.unit), labelpad=4)
    frameless(axes, "x", pad=7)


def _bar(
    axes: Axes, of: Mapping[str, float], phases: Mapping[str, Kind], rows: tuple[float, float], pixel: float | None
) -> None:
    """Draw the pieces side by side.  With ``pixel``, pieces that have room show the number of their phase."""
    start = 0.0
    for name, length in of.items():
        kind = phases[name]
        axes.broken_barh(
            [(start, length)], rows, facecolors=colour(kind.colour), edgecolor=colour("paper"), linewidth=1.0
        )
        if pixel is not None and length / pixel > text_width(kind.letter, weight="bold") + 8:
            _letter(axes, kind, start + length / 2, rows[0] + rows[1] / 2)
        start += length


def _letter(axes: Axes, kind: Kind, x: float, y: float) -> None:
    middle = {"horizontalalignment": "center", "verticalalignment": "center_baseline"}
    axes.text(x, y, kind.letter, color=colour("paper"), weight="bold", **middle)  # type: ignore[arg-type]


def _description(panel: Panel) -> str:
    said = [
        f"{line(job)}: {', '.join(f'{line(phase)} {amount(value)}' for phase, value in of.items())}"
        for job, of in panel.newest.items()
    ]
    return f"{'; '.join(said)}. The table of absolute figures says the same in numbers."
