"""The page: first the goals, then each table with pictures and numbers, then the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.page import dots, grid, lines, stacks, tables
from benchmarks.results import FOLDER
from benchmarks.stored import Answer, Run, all_stored, answers, command
from benchmarks.tables import TABLES
from epochal.chaos.report import blocks
from epochal.chaos.report.text import Markup, element, line


class Panel(Protocol):
    """One picture of a table."""

    @property
    def title(self) -> str: ...


P = TypeVar("P", bound=Panel)
FEW = 16  # at most so many figures are shown unfolded

STYLE = """
h1{font-size:1.7rem;line-height:1.25;color:var(--ink);margin-bottom:4px}
.lead{margin-bottom:16px}
nav{margin:0 0 20px}
nav ul{columns:auto;display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;padding:0}
h2 .sub{display:block;font-size:1rem;font-weight:400;color:var(--muted)}
h3{margin-top:22px}
td.unknown{text-decoration:none}
.was{display:block;color:var(--muted);font-weight:400;font-size:.92em}
.figures{grid-template-columns:repeat(auto-fit,minmax(132px,1fr))}
.cells td,.cells th{padding:6px 8px;border:1px solid var(--line)}
.cells td.valid{background:var(--valid-soft)}
.cells td.invalid{background:var(--invalid-soft);white-space:normal;overflow-wrap:normal}
.cells td.unknown{background:var(--unknown-soft)}
.cells thead th{white-space:normal;min-width:6em}
th.text{font-weight:600}
td code{overflow-wrap:anywhere}
@media print{nav{display:none}h3{break-after:avoid}}
"""

READ_DOTS = (
    "A dot is the median of the rounds, and its bar goes from the first to the third quartile. Blue is the newest run, "
    "grey and hollow is the run before. The green line is the goal, and the tinted side meets it. On the grey vertical "
    "line both jobs are equal."
)
READ_LINES = (
    "Medians over a logarithmic axis. Pale strokes go from the first to the third quartile. Broken: the run before."
)
READ_STACKS = (
    "The median of each phase, and their sum. The thin bar is the run before. The numbers refer to the list below. "
    "Steps of the sinks within a phase run in parallel; they are only in the table of absolute figures."
)
READ_CELLS = (
    "Cells count epochs over all seeds, as readers saw them from outside. ✓ clean: faults struck, and nothing was "
    "lost, duplicated, seen in part or out of order. ? is not a pass: no fault struck, or not everything was observed. "
    "In brackets: what a mode does not promise to prevent. Cost: the median ratio without a fault, below."
)


def html(folder: Path = FOLDER, *, quick: bool = False, about: Mapping[str, str] = TABLES) -> str:
    """Return the page of the results in a folder.  ``about``: table -> what it is about."""
    runs = all_stored(about, quick=quick, folder=folder)
    found = answers(runs)
    parts = [
        _head(runs, quick=quick),
        _goals(found),
        *(_table(name, about[name], of) for name, of in runs.items()),
        _environment([run for of in runs.values() for run in of[:2]]),
        _reading(),
    ]
    return blocks.document("Epochal benchmarks", parts, style=STYLE)


def _head(runs: Mapping[str, Sequence[Run]], *, quick: bool) -> Markup:
    newest = max((run.when for of in runs.values() for run in of), default="")
    measured = sum(bool(of) for of in runs.values())
    said = f"{measured} of {len(runs)} tables are measured" + (f", the newest on {newest} UTC." if newest else ".")
    warning = " These are quick runs: they only show that everything runs, and are not results." if quick else ""
    links = [element("li", element("a", name, href=f"#{name}")) for name in ("goals", *runs, "environment")]
    return Markup(
        element("h1", "Epochal benchmarks: is it right, and what does it cost?")
        + element("p", said + warning, class_="lead note")
        + element("nav", element("ul", links), aria_label="tables")
    )


def _goals(found: Mapping[str, Sequence[Answer]]) -> Markup:
    holds = sum(bool(of) and all(answer.holds for answer in of) for of in found.values())
    missing = sum(not of for of in found.values())
    counts = {"goals": len(found), "hold": holds, "not met": len(found) - holds - missing, "not measured": missing}
    figures = [element("div", element("dt", name), element("dd", f"{count}")) for name, count in counts.items()]
    said = blocks.note("A goal holds if the median of its ratio meets the bound in every case that has this goal.")
    heading = element("h2", "Goals", id="goals")
    return element("section", heading, element("dl", figures, class_="figures"), said, tables.goals(found))


# --- one table ------------------------------------------------------------------------------------------


def _table(name: str, about: str, runs: Sequence[Run]) -> Markup:
    heading = element("h2", name, element("span", about, class_="sub"), id=name)
    if not runs:
        missing = blocks.note(f"Not measured yet. {command(name)} makes it.")
        return element("section", heading, missing)
    newest, before = runs[0], runs[1] if len(runs) > 1 else None
    return element(
        "section",
        heading,
        _compared(newest, before),
        *_right(newest, before),
        *_dots(name, newest, before),
        *_lines(name, newest, before),
        *_stacks(name, newest, before),
        *_numbers(newest, before),
    )


def _compared(newest: Run, before: Run | None) -> Markup:
    """A line with the runs that are shown, and the command."""
    of = f"{newest.when} UTC, commit {line(newest.commit)}, {newest.result.rounds} rounds"
    beside = f"beside {before.when} UTC, commit {line(before.commit)}" if before else "no run before it"
    return element("p", f"{of}; {beside}. Made by ", element("code", newest.command), class_="note")


def _right(newest: Run, before: Run | None) -> Iterator[Markup]:
    if newest.cells:
        yield grid.draw(newest, before)
        yield blocks.note(READ_CELLS)
        if told := grid.about(newest):
            yield blocks.note(
                f"The faults: {'; '.join(f'{line(fault)}: {line(what)}' for fault, what in told.items())}."
            )


def _dots(name: str, newest: Run, before: Run | None) -> Iterator[Markup]:
    panels = dots.panels(newest.result.ratios, before.result.ratios if before else [])
    yield from _pictures(panels, dots.draw, f"{name}-ratios", READ_DOTS)
    if panels:
        yield _folded("The ratios as a table", tables.ratios(newest, before))


def _lines(name: str, newest: Run, before: Run | None) -> Iterator[Markup]:
    panels = lines.panels(newest.result.measures, before.result.measures if before else [])
    yield from _pictures(panels, lines.draw, f"{name}-lines", READ_LINES)


def _stacks(name: str, newest: Run, before: Run | None) -> Iterator[Markup]:
    panels = stacks.panels(newest.result.measures, before.result.measures if before else [])
    yield from _pictures(panels, stacks.draw, f"{name}-phases", READ_STACKS)


def _pictures(panels: Sequence[P], draw: Callable[[P, str], str], name: str, read: str) -> Iterator[Markup]:
    """Each panel under its title, and how to read them."""
    for place, panel in enumerate(panels):
        yield element("h3", line(panel.title))
        yield blocks.picture(draw(panel, f"{name}-{place}"))
    if panels:
        yield blocks.note(read)


def _numbers(newest: Run, before: Run | None) -> Iterator[Markup]:
    if newest.result.measures:
        few = len(newest.result.measures) <= FEW
        yield _folded("Absolute figures", tables.measures(newest, before), unfolded=few)
    if newest.result.facts:
        yield _folded("Beside the figures", tables.facts(newest.result.facts))


def _folded(summary: str, table: Markup, *, unfolded: bool = False) -> Markup:
    return element("details", element("summary", summary), table, class_="paper", open=unfolded)


# --- the end --------------------------------------------------------------------------------------------


def _environment(runs: Sequence[Run]) -> Markup:
    heading = element("h2", "Environment", id="environment")
    return element("section", heading, tables.environments(runs) if runs else blocks.note("Nothing was measured yet."))


def _reading() -> Markup:
    """What a reader may conclude from the page, and what not."""
    said = (
        "Jobs take turns in one invocation, and a ratio compares two jobs of the same round. On shared cores the speed "
        "of the machine changes within minutes. So trust the ratios, and read absolute figures as orders of magnitude. "
        "Peers run with their best documented settings and with the same durability (fsync on, acks=all). The newest "
        "run and the run before may differ in commit, versions and machine, as the table above shows."
    )
    made = element("p", "This page: ", element("code", "make bench-page"), ". It needs no network.")
    return element("footer", element("p", said), made)
