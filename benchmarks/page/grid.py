"""What each kind of fault did to each job, as a table with tinted cells."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.cells import IN_PARTS
from benchmarks.measuring import Ratio
from benchmarks.stored import Cell, Run
from benchmarks.summary import amount
from epochal.chaos.report import blocks
from epochal.chaos.report.text import Markup, element, line

WRONGS: Mapping[str, str] = {
    "lost": "lost",
    "duplicated": "duplicated",
    "torn": "torn",
    "out_of_order": "out of order",
    "disagree": "apart",
}
"""The counts of a cell in epochs -> the words for them."""

Cells = Mapping[tuple[str, str], Cell]


def draw(newest: Run, before: Run | None) -> Markup:
    """Return a table of jobs x kinds of faults.  A cell also shows the run before, if it differs."""
    cells, old = _by_place(newest.cells), _by_place(before.cells if before else [])
    told = list(about(newest))
    faults = sorted(dict.fromkeys(fault for _, fault in cells), key=lambda f: told.index(f) if f in told else len(told))
    rows = [
        blocks.row(
            element("th", line(job), scope="row", class_="name"),
            blocks.number(_cost(job, newest.result.ratios)),
            *_cells(job, faults, cells, old),
        )
        for job in dict.fromkeys(job for job, _ in cells)
    ]
    caption = "Epochs that were lost, duplicated, torn or out of order, by job and kind of fault"
    return blocks.table(caption, ("job", "cost", *map(line, faults)), rows, numbers=(1,), class_="cells")


def about(run: Run) -> Mapping[str, str]:
    """Return kind of fault -> its description in the run, in the order of the run."""
    told = run.result.facts.get("faults", {})
    return {str(name): str(words) for name, words in told.items()} if isinstance(told, dict) else {}


def wrong(cell: Cell) -> dict[str, int]:
    """Return what went wrong, in words -> number of epochs."""
    return {word: int(cell[name]) for name, word in WRONGS.items() if cell.get(name)}


def _by_place(cells: Sequence[Cell]) -> Cells:
    return {(str(cell["job"]), str(cell["fault"])): cell for cell in cells}


def _cost(job: str, ratios: Sequence[Ratio]) -> str:
    """The cost of a job, as a multiple of its peer's."""
    mine = next((ratio for ratio in ratios if ratio.job == job), None)
    return f"{amount(statistics.median(mine.values))} ×" if mine is not None else "–"


def _cells(job: str, faults: Sequence[str], newest: Cells, old: Cells) -> Iterator[Markup]:
    for fault in faults:
        cell, earlier = newest.get((job, fault)), old.get((job, fault))
        if cell is None:
            yield element("td", "–", class_="none")
            continue
        tint, said = _said(cell)
        was = _said(earlier)[1] if earlier is not None else said
        changed = element("span", f"before: {was}", class_="was") if was != said else None
        struck = element("span", f"{cell['struck']:,} struck", class_="was") if cell["struck"] else None
        yield element("td", said, struck, changed, class_=tint)


def _said(cell: Cell) -> tuple[str, str]:
    """The tint and the text of a cell.  A cell that is not known to be clean is not a pass."""
    wrongs = wrong(cell)
    if wrongs or cell["verdict"] == "wrong":
        said = ", ".join(f"{count:,} {word}" for word, count in wrongs.items())
        if cell["job"] in IN_PARTS and wrongs.keys() == {WRONGS["torn"]}:
            return "unknown", f"({said} into its parts, as it may be)"
        return "invalid", f"✗ {said or 'wrong'}{' ?' if cell.get('unknown') else ''}"
    return ("valid", "✓ clean") if cell["verdict"] == "clean" else ("unknown", f"? {line(cell['verdict'])}")
