"""What faults did to an output, counted from a history of the chaos kit, and shown as a table.

The newest strike at or before a wrong epoch is blamed for it.  This works because a run has one strike per epoch, and a
fault whose effects stay has its own run.  Counts that contradict the kit's own verdicts are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks import names
from epochal.chaos.observe.checker import Finding, Verdict
from epochal.chaos.observe.history import Row
from epochal.chaos.observe.run import Run, keys, what

COLUMNS = ("lost", "duplicated", "torn", "out_of_order", "disagree")
LETTERS: Mapping[str, str] = dict(zip(COLUMNS, "LDTOS", strict=True))
IN_PARTS = (f"{names.OURS} kafka, two slots",)
"""Jobs that promise only that each part of an epoch is whole."""
ALARMS = "ours that is not clean"
"""The fact that lists broken promises of our sinks.  What a sink does not promise is not in it."""
INVARIANT: Mapping[str, str] = dict(zip(COLUMNS, ("I1", "I2", "I3", "I5", "I6"), strict=True))


class Contradiction(Exception):
    """The counts and the verdict of one run contradict each other, so neither can be trusted."""


@dataclass(frozen=True)
class Cell:
    """What one kind of fault did to the output of one job, over all seeds.  Numbers count epochs, ``rows_...`` rows.

    * ``lost``: rows of the epoch are missing at the end.
    * ``duplicated``: there are too many rows of the epoch at the end.
    * ``torn``: a reader saw a part of the epoch.
    * ``out_of_order``: the epoch was seen after a later one, or vanished after it was seen.
    * ``disagree``: the sinks of one pipeline were more than one epoch apart, or differ at the end.
    * ``unknown``: reasons why a number that is 0 here may be wrong.
    """

    job: str
    fault: str
    asked: int
    struck: int
    lost: int = 0
    duplicated: int = 0
    torn: int = 0
    out_of_order: int = 0
    disagree: int = 0
    rows_lost: int = 0
    rows_duplicated: int = 0
    unknown: Sequence[str] = ()

    @property
    def wrong(self) -> bool:
        return any(getattr(self, column) for column in COLUMNS)

    @property
    def verdict(self) -> str:
        """The verdict.  It is ``clean`` only if a fault struck and everything was looked at."""
        if self.wrong:
            return "wrong"
        if not self.struck:
            return "not struck"
        return "unknown" if self.unknown else "clean"

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "unknown": list(self.unknown), "verdict": self.verdict}

    def __add__(self, other: Cell) -> Cell:
        counted = ("asked", "struck", *COLUMNS, "rows_lost", "rows_duplicated")
        sums = {name: getattr(self, name) + getattr(other, name) for name in counted}
        return Cell(self.job, self.fault, **sums, unknown=[*self.unknown, *other.unknown])


# --- counting ---------------------------------------------------------------------------------------


@dataclass
class Wrong:
    """The wrong epochs of one output.  For lost and duplicated ones, also the number of rows."""

    lost: Counter[int] = field(default_factory=Counter)
    duplicated: Counter[int] = field(default_factory=Counter)
    torn: set[int] = field(default_factory=set)
    out_of_order: set[int] = field(default_factory=set)
    disagree: set[int] = field(default_factory=set)


def wrong_in(run: Run, output: str) -> Wrong:
    """Return everything that is wrong in what readers saw of one output."""
    expected, found = run.all_keys, run.final_keys[output]
    return Wrong(
        lost=_by_epoch(expected - found),
        duplicated=_by_epoch(found - expected),
        torn=_torn(run, output),
        out_of_order=_backward(run, output) if run.after else _gone(run, output) | _late(run, output),
        disagree=_apart(run),
    )


def _by_epoch(rows: Mapping[tuple[int, int], int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for (epoch, _), times in rows.items():
        found[epoch] += times
    return found


def _seen(run: Run, output: str) -> Iterable[tuple[tuple[Row, ...], tuple[Row, ...]]]:
    """Each content that readers saw, with the content before it."""
    return ((rows, before) for _, sink, rows, before in run.changes if sink == output)


def _newest(rows: Sequence[Row]) -> int:
    return max((row.epoch for row in rows), default=-1)


def _torn(run: Run, output: str) -> set[int]:
    if run.after:
        return {_newest(rows) for rows, _ in _seen(run, output) if run.reached(rows) is None}
    wanted = {epoch: keys(rows) for epoch, rows in run.expected.items()}
    torn: set[int] = set()
    for rows, _ in _seen(run, output):
        found = keys(rows)
        torn |= {e for e in {row.epoch for row in rows} & wanted.keys() if wanted[e] - found}
    return torn


def _gone(run: Run, output: str) -> set[int]:
    """Epochs of which a later read shows less."""
    gone: set[int] = set()
    for rows, before in _seen(run, output):
        gone |= {row.epoch for row in _shown(run, before) - _shown(run, rows)}
    return gone


def _shown(run: Run, rows: Sequence[Row]) -> Counter[Row]:
    """The rows as :mod:`epochal.chaos.observe.invariants` compares them: without attempts if rows may be rewritten."""
    return Counter(row._replace(attempt=0) for row in rows) if run.rewrites else Counter(rows)


def _late(run: Run, output: str) -> set[int]:
    """Epochs that were seen only after a later epoch.  Epochs that were never seen are not late, but lost."""
    late: set[int] = set()
    ever: set[int] = set()
    for rows, _ in _seen(run, output):
        shown = {row.epoch for row in rows}
        ever |= shown
        late |= {epoch for epoch in run.filled_epochs if epoch not in shown and epoch < _newest(rows)}
    return late & ever


def _backward(run: Run, output: str) -> set[int]:
    """Where epochs replace rows: epochs that readers saw and that vanished again."""
    newest = 0
    back: set[int] = set()
    for rows, _ in _seen(run, output):
        reached = run.reached(rows)
        if reached is not None and reached < newest:
            back |= set(run.filled_epochs[reached:newest])
        newest = max(newest, reached or 0)
    return back


def _apart(run: Run) -> set[int]:
    """Epochs that one output showed while another did not yet show the epoch before, or that differ at the end."""
    if len(run.sinks) == 1:
        return set()
    apart: set[int] = set()
    for _, content in run.reads:
        if content.keys() < set(run.sinks):
            continue  # this read did not see all outputs at one time
        told = [run.reached(content[sink]) for sink in run.sinks]
        reached = [number for number in told if number is not None]
        if reached and max(reached) - min(reached) > 1:
            apart |= set(run.filled_epochs[min(reached) : max(reached)])
    ends = [what(run.final.get(sink, ())) for sink in run.sinks]
    return apart | {row[0] for one in ends for other in ends for row in one - other}


# --- from a run to cells ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """One run: the kind of fault planned for each epoch, where faults struck, and the kit's findings."""

    run: Run
    findings: Mapping[str, Finding]
    planned: Mapping[int, str]
    struck: Sequence[int]  # epochs
    concerns: Callable[[int, str], bool] = lambda epoch, output: True  # noqa: ARG005

    def cells(self, jobs: Mapping[str, str]) -> list[Cell]:
        """Return the cells of this run.  ``jobs``: output -> its job in the table.

        Raises Contradiction if counts and verdicts differ.
        """
        if unjudged := self._unjudged():
            return [self._cell(job, output, kind, Wrong(), unjudged) for output, job, kind in self._places(jobs)]
        wrong = {output: wrong_in(self.run, output) for output in jobs}
        self._check(wrong)
        return [
            self._cell(job, output, kind, wrong[output], self._unseen()) for output, job, kind in self._places(jobs)
        ]

    def _places(self, jobs: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """(output, its job, kind) for each kind of fault that can concern the output."""
        return [
            (output, job, kind)
            for output, job in jobs.items()
            for kind in dict.fromkeys(self.planned.values())
            if self._epochs(kind, output)
        ]

    def _epochs(self, kind: str, output: str) -> list[int]:
        return [epoch for epoch, of in self.planned.items() if of == kind and self.concerns(epoch, output)]

    def _unjudged(self) -> Sequence[str]:
        """The reasons why nothing is known about this run."""
        return [] if self.findings else [self.run.proves_nothing or "nobody judged the run"]

    def _unseen(self) -> Sequence[str]:
        """What was not fully observed."""
        if "I1" not in self.findings:
            return [f"the run broke off: {self.run.proves_nothing}"]
        asked = {column: self.findings[name] for column, name in INVARIANT.items() if name in self.findings}
        return [f"{column}: {found.why}" for column, found in asked.items() if found.verdict is Verdict.UNKNOWN]

    def _blamed(self, epoch: int) -> str:
        """The kind of the newest strike at or before an epoch; before all strikes, the kind of the first strike."""
        before = [struck for struck in self.struck if struck <= epoch]
        return self.planned[max(before) if before else min(self.struck)] if self.struck else ""

    def _cell(self, job: str, output: str, kind: str, wrong: Wrong, unknown: Sequence[str]) -> Cell:
        epochs = self._epochs(kind, output)
        whole = "I1" in self.findings
        mine = {column: {e for e in getattr(wrong, column) if self._blamed(e) == kind} for column in COLUMNS}
        if not whole:
            mine["lost"] = set()  # the run stopped early, so the rows might still have come
        return Cell(
            job,
            kind,
            asked=len(epochs),
            struck=sum(epoch in self.struck for epoch in epochs),
            **{column: len(found) for column, found in mine.items()},
            rows_lost=sum(wrong.lost[epoch] for epoch in mine["lost"]),
            rows_duplicated=sum(wrong.duplicated[epoch] for epoch in mine["duplicated"]),
            unknown=unknown,
        )

    def _check(self, wrong: Mapping[str, Wrong]) -> None:
        """Check that a column is empty if and only if its invariant holds.  Raises Contradiction otherwise."""
        for column, name in INVARIANT.items():
            found = self.findings.get(name)
            if found is None or found.verdict is Verdict.UNKNOWN:
                continue
            judged = [output for output in wrong if column != "torn" or output not in self.run.in_parts]
            counted = any(getattr(wrong[output], column) for output in judged)
            lost = column == "out_of_order" and any(one.lost or one.torn for one in wrong.values())  # a hole for I5
            says = found.verdict is Verdict.FALSE
            if counted != says and not (says and lost):
                shown = {output: sorted(getattr(one, column)) for output, one in wrong.items()}
                raise Contradiction(f"{column} in epochs {shown}, but {name} is {found.verdict.value}: {found.why}")


def together(cells: Iterable[Cell]) -> list[Cell]:
    """Add up the cells of each job and fault, in the order in which they first came."""
    found: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        key = (cell.job, cell.fault)
        found[key] = found[key] + cell if key in found else cell
    return list(found.values())


# --- for people -------------------------------------------------------------------------------------


def word(cell: Cell | None) -> str:
    """Return the cell as text.  ``2 ok``: two strikes, nothing wrong.  ``2: D2 T1``: two epochs duplicated, 1 torn."""
    if cell is None:
        return "-"
    if cell.verdict == "wrong":
        said = [f"{LETTERS[column]}{getattr(cell, column)}" for column in COLUMNS if getattr(cell, column)]
        return f"{cell.struck}: {' '.join(said)}{' ?' if cell.unknown else ''}"
    return {"clean": f"{cell.struck} ok", "not struck": "not struck", "unknown": f"{cell.struck} unknown"}[cell.verdict]


def lines(cells: Sequence[Cell], cost: Mapping[str, str]) -> list[str]:
    """Return the table as lines of text.  ``cost``: job -> its cost."""
    jobs, faults = (list(dict.fromkeys(getattr(cell, name) for cell in cells)) for name in ("job", "fault"))
    at = {(cell.job, cell.fault): cell for cell in cells}
    grid = [["", "cost", *faults]]
    grid += [[job, cost.get(job, "-"), *(word(at.get((job, fault))) for fault in faults)] for job in jobs]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    legend = ", ".join(f"{letter} {column.replace('_', ' ')}" for column, letter in LETTERS.items())
    return [
        *("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in grid),
        f"strikes that landed, and the epochs of them that are wrong: {legend}; ? not all was seen",
    ]
