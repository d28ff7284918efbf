"""The picture of one round over time: drivers, decisions, the epochs that each sink shows, and faults as bands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from epochal.chaos.report import kinds as legend
from epochal.chaos.report.account import Account
from epochal.chaos.report.chart import colour, drawing, figure, frameless, svg, text_width, wrapped
from epochal.chaos.report.kinds import Kind
from epochal.chaos.report.lanes import NARROW, Decisions, Drivers, Faults, Lane, Scale, Sink, Violations
from epochal.chaos.report.text import line

WIDTH = 980
NAMES = 200  # pixels for the names of lanes
RIGHT, TOP, BOTTOM = 24, 8, 50
BETWEEN = 6


@dataclass(frozen=True)
class Picture:
    """A chart as HTML, with notes about what it has no room for."""

    markup: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Lanes:
    """The lanes of one round, from the top.  An empty lane is left out."""

    violations: Violations | None
    faults: Faults | None
    drivers: Drivers | None
    decisions: Decisions | None
    sinks: tuple[Sink, ...]

    @property
    def all(self) -> list[Lane]:
        above: list[Lane | None] = [self.violations, self.faults, self.drivers, self.decisions]
        return [lane for lane in above if lane is not None] + list(self.sinks)

    @property
    def stacked(self) -> Iterator[tuple[Lane, float]]:
        """Each lane with its top edge."""
        top = 0.0
        for lane in self.all:
            yield lane, top
            top += lane.height + BETWEEN

    @property
    def height(self) -> float:
        return sum(lane.height + BETWEEN for lane in self.all)

    def notes(self) -> Iterator[str]:
        if self.faults is not None and self.faults.without_room:
            yield f"For {self.faults.without_room} faults there is room only for a stroke; the list of faults has all."
        if self.drivers is not None and self.drivers.without_room:
            yield f"{self.drivers.without_room} drivers are not drawn, because they have no room."


def draw(account: Account, kinds: Mapping[str, Kind], name: str) -> Picture:
    """Draw the round.  ``name`` must be unique on the page."""
    used = tuple(kind for kind in kinds.values() if any(band.fault.kind == kind.name for band in account.bands))
    with drawing():
        left = 14 + max(text_width(part) for part in _names(account))
        width = WIDTH - left - RIGHT
        scale = Scale(account.end, width)
        lanes = _lanes(account, kinds, scale)
        under = BOTTOM + legend.legend_height(used, width)
        whole = TOP + lanes.height + under
        made = figure(WIDTH, whole)
        axes = made.add_axes((left / WIDTH, under / whole, width / WIDTH, lanes.height / whole))
        _frame(axes, lanes, scale, account.clocked)
        for lane, top in lanes.stacked:
            lane.draw(axes, top)
        _bands(axes, account, lanes, scale)
        legend.draw_legend(made, used, left, width)
        markup = svg(made, name, f"Round {account.number} over time", _description(account))
    return Picture(markup, tuple(lanes.notes()))


def _names(account: Account) -> Iterator[str]:
    yield Violations.label
    for sink in account.shown:
        yield from wrapped(line(sink), NAMES).split("\n")


def _lanes(account: Account, kinds: Mapping[str, Kind], scale: Scale) -> _Lanes:
    return _Lanes(
        Violations(account.violations, scale) if account.violations else None,
        Faults(account.bands, kinds, scale) if account.bands else None,
        Drivers(account.lives, scale) if account.lives else None,
        Decisions(account.decisions, scale) if account.decisions else None,
        tuple(Sink(sink, shown, scale, NAMES) for sink, shown in account.shown.items()),
    )


def _description(account: Account) -> str:
    shown = [f"{line(sink)} {sum(len(one.epochs) for one in all_)}" for sink, all_ in account.shown.items()]
    broken = ", ".join(violation.invariant for violation in account.violations) or "none"
    return (
        f"{len(account.strikes)} faults. Epochs that each sink showed: {', '.join(shown) or 'none'}. "
        f"Violated invariants: {broken}. The table of first sightings and the list of faults say the same in numbers."
    )


def _frame(axes: Axes, lanes: _Lanes, scale: Scale, clocked: bool) -> None:
    axes.set(xlim=(0, scale.span), ylim=(lanes.height, 0))
    middles = [top + lane.height / 2 for lane, top in lanes.stacked]
    axes.set_yticks(middles, [lane.label for lane in lanes.all], linespacing=1.3)
    time_axis(axes, "seconds since the round began" if clocked else "events since the round began", clocked)


def time_axis(axes: Axes, label: str, clocked: bool) -> None:
    """Draw ticks below, a faint grid, and no frame."""
    frameless(axes, "x", pad=7)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 5, 10], integer=not clocked))
    axes.set_xlabel(label, labelpad=5)


def _bands(axes: Axes, account: Account, lanes: _Lanes, scale: Scale) -> None:
    """Draw bands over all sinks while a fault had an effect, and a line where a violation was first seen."""
    tops = [top for lane, top in lanes.stacked if isinstance(lane, Sink)]
    if tops and account.bands:
        felt = list(_joined([(band.start, band.end) for band in account.bands], scale.time(NARROW)))
        spans = (tops[0], lanes.height - tops[0])
        axes.broken_barh(felt, spans, facecolors=colour("band"), alpha=0.38, linewidth=0)
    if lanes.violations is not None:
        for time, _, _ in lanes.violations.marks:
            ends = [lanes.violations.height + 2, lanes.height]
            axes.plot([time, time], ends, color=colour("invalid"), linewidth=1.5, linestyle=(0, (4, 3)), clip_on=False)


def _joined(spans: Sequence[tuple[float, float]], least: float) -> Iterator[tuple[float, float]]:
    """Turn sorted spans (from, to) into (from, length), at least ``least`` long, and join those that overlap."""
    current: tuple[float, float] | None = None
    for start, end in spans:
        end = max(end, start + least)
        if current is not None and start <= current[1]:
            current = current[0], max(current[1], end)
            continue
        if current is not None:
            yield current[0], current[1] - current[0]
        current = start, end
    if current is not None:
        yield current[0], current[1] - current[0]
