"""The lanes of a timeline.  Each knows its height, what has no room in it, and how to draw it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Protocol

from matplotlib.axes import Axes

from epochal.chaos.observe.history import Decided
from epochal.chaos.report.account import Band, Life, Shown, Violation
from epochal.chaos.report.chart import FONT, Shelves, colour, text_width, wrapped
from epochal.chaos.report.kinds import Kind
from epochal.chaos.report.text import line

ROW = 18  # pixels of one row of marks
LINE = 16  # pixels of one line of a name
TICK = 10  # pixels of the row for faults that have room only for a stroke
NARROW = 2  # things that are fewer pixels apart are drawn as one
FAULT_ROWS, DRIVER_ROWS = 6, 4


@dataclass(frozen=True)
class Scale:
    """Converts times to pixels and back.  matplotlib is given times."""

    end: float
    width: float

    @property
    def span(self) -> float:
        return self.end or 1.0

    def px(self, time: float) -> float:
        return time / self.span * self.width

    def time(self, px: float) -> float:
        return px / self.width * self.span


class Lane(Protocol):
    """A strip of the picture: its name at the left, its height in pixels, and its content, drawn from ``top`` down."""

    @property
    def label(self) -> str: ...
    @property
    def height(self) -> float: ...
    def draw(self, axes: Axes, top: float) -> None: ...


class Violations:
    """A mark, with the names of invariants, where the history first breaks them."""

    label = "violations"

    def __init__(self, found: Sequence[Violation], scale: Scale) -> None:
        self._scale = scale
        self.marks = list(self._placed(found))
        self.height = ROW * (1 + max((row for _, _, row in self.marks), default=0))

    def draw(self, axes: Axes, top: float) -> None:
        for time, names, row in self.marks:
            y = top + ROW * (row + 0.5)
            left, _ = self._reach(time, names)
            axes.plot([time], [y], "v", markersize=9, color=colour("invalid"), markeredgewidth=0, clip_on=False)
            x = self._scale.time(max(left, 0) if left < self._scale.px(time) - 7 else self._scale.px(time) + 8)
            _write(axes, x, y, names, weight="bold", color=colour("invalid"))

    def _placed(self, found: Sequence[Violation]) -> Iterator[tuple[float, str, int]]:
        shelves = Shelves(len(found))
        for time, names in self._together(found):
            row = shelves.place(*self._reach(time, names))
            assert row is not None, "there is a row for each"
            yield time, names, row

    def _together(self, found: Sequence[Violation]) -> Iterator[tuple[float, str]]:
        group: list[Violation] = []
        for violation in found:
            if group and self._scale.px(violation.at - group[0].at) >= NARROW:
                yield group[0].at, " ".join(v.invariant for v in group)
                group = []
            group.append(violation)
        if group:
            yield group[0].at, " ".join(v.invariant for v in group)

    def _reach(self, time: float, names: str) -> tuple[float, float]:
        """The edges of a mark with its names, which are to its right, or to its left if there is no more room."""
        at, needs = self._scale.px(time), text_width(names, weight="bold") + 8
        return (at - needs, at + 6) if at + needs > self._scale.width else (at - 6, at + needs)


class Faults:
    """Shape and letter where a fault struck, and a line as long as it had an effect."""

    label = "faults"

    def __init__(self, bands: Sequence[Band], kinds: Mapping[str, Kind], scale: Scale) -> None:
        self._kinds, self._scale = kinds, scale
        shelves = Shelves(FAULT_ROWS)
        placed = [(band, shelves.place(*self._reach(band))) for band in bands]
        self._placed = [(band, row) for band, row in placed if row is not None]
        self._crowded = [band.start for band, row in placed if row is None]
        self._rows = ROW * shelves.used
        self.height = self._rows + (TICK if self._crowded else 0)

    @property
    def without_room(self) -> int:
        """How many faults are only strokes in the last row, without shape and letter."""
        return len(self._crowded)

    def _reach(self, band: Band) -> tuple[float, float]:
        left = self._scale.px(band.start)
        return left - 5, max(left + 10 + text_width(self._kinds[band.fault.kind].letter), self._scale.px(band.end))

    def draw(self, axes: Axes, top: float) -> None:
        under = [top + self._rows + TICK / 2] * len(self._crowded)
        axes.plot(self._crowded, under, "|", markersize=TICK - 2, color=colour("ink"), clip_on=False)
        for band, row in self._placed:
            kind = self._kinds[band.fault.kind]
            y = top + ROW * (row + 0.5)
            kind.mark(axes, [band.start], [y])
            after = self._scale.px(band.start) + 8  # at the right edge the margin is wide enough for it
            text = after + text_width(kind.letter)
            _write(axes, self._scale.time(after), y, kind.letter)
            if self._scale.px(band.end) > text + 4:
                ends = [self._scale.time(text + 3), band.end]
                axes.plot(ends, [y, y], color=colour(kind.colour), linewidth=2.5, solid_capstyle="butt")


class Drivers:
    """A bar from the start of a driver to its end, with its outcome."""

    label = "drivers"

    def __init__(self, lives: Sequence[Life], scale: Scale) -> None:
        self._scale = scale
        shelves = Shelves(DRIVER_ROWS, gap=0)
        placed = [(life, shelves.place(*self._reach(life))) for life in lives]
        self._placed = [(life, row) for life, row in placed if row is not None]
        self.height = ROW * max(1, shelves.used)
        self.without_room = len(placed) - len(self._placed)

    def _reach(self, life: Life) -> tuple[float, float]:
        left = self._scale.px(life.start)
        return left, max(self._scale.px(life.end), left + NARROW)

    def draw(self, axes: Axes, top: float) -> None:
        for life, row in self._placed:
            left, right = self._reach(life)
            y = top + ROW * row
            wide = self._scale.time(right - left - 1)
            axes.broken_barh([(life.start, wide)], (y + 1, ROW - 2), facecolors=colour("bar"), linewidth=0)
            text = self._text(life, right - left)
            if text:
                _write(axes, self._scale.time(left + 5), y + ROW / 2, text)

    def _text(self, life: Life, room: float) -> str:
        """The longest text that there is room for."""
        whole = f"{life.driver}: {life.outcome or 'still there'}"
        return next((text for text in (line(whole), line(life.driver)) if text_width(text) + 12 <= room), "")


class Decisions:
    """A mark for each decision, hollow if it supersedes another.  The epoch stands beside it if there is room."""

    label = "decided"
    height = ROW

    def __init__(self, decisions: Sequence[tuple[float, Decided]], scale: Scale) -> None:
        self._decisions, self._scale = decisions, scale

    def draw(self, axes: Axes, top: float) -> None:
        y = top + ROW / 2
        for again in (False, True):
            times = [time for time, decided in self._decisions if (decided.supersedes is not None) is again]
            face = colour("paper") if again else colour("ink")
            axes.plot(times, [y] * len(times), "d", ms=8, color=face, mec=colour("ink"), mew=1, clip_on=False)
        places = [self._scale.px(time) for time, _ in self._decisions]
        for (_, decided), at, following in zip_longest(self._decisions, places, places[1:]):
            text = f"{decided.epoch}"
            room = (self._scale.width if following is None else following - 7) - at - 9
            if text_width(text) <= room:
                _write(axes, self._scale.time(at + 7), y, text)


class Sink:
    """The newest epoch that readers saw.  A segment begins where an epoch was first seen."""

    def __init__(self, name: str, shown: Sequence[Shown], scale: Scale, width: float) -> None:
        self.label = wrapped(line(name), width)
        self.height = max(30, LINE * (self.label.count("\n") + 1) + 4)
        self._scale = scale
        self._segments = list(self._grouped(shown))

    def _grouped(self, shown: Sequence[Shown]) -> Iterator[tuple[float, list[int]]]:
        """(time, epochs); those that are closer than a screen can show are joined."""
        group: tuple[float, list[int]] | None = None
        for one in shown:
            if group is not None and self._scale.px(one.at - group[0]) < NARROW:
                group[1].extend(one.epochs)
                continue
            if group is not None:
                yield group
            group = one.at, list(one.epochs)
        if group is not None:
            yield group

    def draw(self, axes: Axes, top: float) -> None:
        y, height = top + self.height / 2 - 13, 26
        if not self._segments:
            _write(axes, self._scale.time(6), y + height / 2, "showed no epoch", color=colour("muted"))
            return
        ends = [*(time for time, _ in self._segments[1:]), self._scale.end]
        bars = [
            (time, max(end - time, self._scale.time(NARROW)))
            for (time, _), end in zip(self._segments, ends, strict=True)
        ]
        fills = [colour(f"tape-{place % 2}") for place in range(len(bars))]
        axes.broken_barh(bars, (y, height), facecolors=fills, linewidth=0)
        for (time, epochs), (_, wide) in zip(self._segments, bars, strict=True):
            text = ranges(epochs)
            if text_width(text) + 6 <= self._scale.px(wide):
                _write(axes, time + wide / 2, y + height / 2, text, horizontalalignment="center")


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: ``3``, ``3-5``, ``3-5, 9``."""
    whole = sorted(set(numbers))
    breaks = [0, *(at for at, (a, b) in enumerate(pairwise(whole), 1) if b != a + 1), len(whole)]
    runs = [whole[a:b] for a, b in pairwise(breaks) if b > a]
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _write(axes: Axes, x: float, y: float, text: str, **options: object) -> None:
    """Write a label whose left edge, or centre, is at x, and whose middle is at y."""
    kept = {"fontsize": FONT, "verticalalignment": "center_baseline", "clip_on": False, **options}
    axes.text(x, y, text, **kept)  # type: ignore[arg-type]
