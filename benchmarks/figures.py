"""The ten figures that a user asks for, from the newest full results: ``python -m benchmarks.figures``.

The README shows this table; ``--into README.md`` updates it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import names
from benchmarks.cells import ALARMS
from benchmarks.measuring import Ratio, words
from benchmarks.results import FOLDER, folder_of_results
from benchmarks.stored import Run, command, stored, worst
from benchmarks.summary import with_spread
from benchmarks.tables import GROWTH

BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->"
MISSING = "not measured yet"
ENOUGH = 5  # rounds
PYTHON = ("driver", "worker", "workers together")
"""Those of the measured processes that are Python processes."""
DELTA = names.DELTA_APPEND
"""The peer for memory: its tasks also hold a group of rows."""

Told = Callable[[Run], "str | None"]
"""Returns the figure of a run as text; None if the run did not measure it."""


class NotTold(Exception):
    """The table has results, but none has the figure: a name has changed either in the table or here."""


@dataclass(frozen=True)
class Figure:
    """A question, and the tables whose runs can answer it.  ``made``: the arguments of the command, if others."""

    what: str
    tables: Sequence[str]
    told: Told
    made: str = ""

    @property
    def command(self) -> str:
        return command(self.made or " ".join(self.tables))


def _few(run: Run) -> str:
    """A warning for quartiles of only a few values."""
    rounds = run.result.rounds
    return f"; {rounds} round{'' if rounds == 1 else 's'}" if rounds < ENOUGH else ""


def _of_goal(goal: str, unit: str) -> Told:
    """Return a function that tells the worst ratio with this goal, and which one it is if there are several."""

    def told(run: Run) -> str | None:
        asked = [ratio for ratio in run.result.ratios if ratio.goal == goal]
        if not asked:
            return None
        one = worst(asked)
        return f"{with_spread(one.values)} {unit}{_which(one) if len(asked) > 1 else ''}{_few(run)}"

    return told


def _which(ratio: Ratio) -> str:
    """Text that says which of several ratios this one is."""
    return f" ({', '.join([*([] if ratio.job == names.OURS else [ratio.job]), words(ratio.case)])})"


def _growth(run: Run) -> str | None:
    """The growth of the oldest query.  If a younger query grew more, also that query and its peer."""
    oldest = [ratio for ratio in run.result.ratios if ratio.goal == "growth"]
    if not oldest:
        return None
    last = worst(oldest)
    told = f"{with_spread(last.values)} times, the largest of the sinks ({last.job})"
    one = _most([ratio for ratio in run.result.ratios if ratio.job in names.KINDS])
    if one in oldest:
        return f"{told}{_few(run)}"
    peers = [ratio for ratio in run.result.ratios if (ratio.job, ratio.case) == (names.NATIVES[one.job], one.case)]
    beside = "".join(f"; {peer.job} after as many epochs: {with_spread(peer.values)} times" for peer in peers)
    before = one.case["epochs before"]
    assert isinstance(before, int), "so the table of growth names its cases"
    earlier = f"earlier, after {before:,} epochs, {one.job} had grown more: {with_spread(one.values)} times"
    return f"{told}; {earlier}{beside}{_few(run)}"


def _speed(goal: str, than: str) -> Told:
    """Return a function that tells the rows per second of the job with this goal, and its ratio."""

    def told(run: Run) -> str | None:
        ratio = next((ratio for ratio in run.result.ratios if ratio.goal == goal), None)
        if ratio is None:
            return None
        mine = [m for m in run.result.measures if (m.job, m.unit, m.case) == (ratio.job, "rows/s", ratio.case)]
        speeds = "".join(f"{with_spread(m.values)} rows/s; " for m in mine)
        return f"{speeds}{with_spread(ratio.values)} times {than}{_few(run)}"

    return told


def _right(run: Run) -> str | None:
    """In how many cells something was lost, duplicated, torn or out of order.  A cell that proves nothing is not clean.

    A cell that is neither clean nor an alarm shows what its mode does not promise.
    """
    ours = [cell for cell in run.cells if str(cell["job"]).startswith(names.OURS)]
    peers = [cell for cell in run.cells if cell not in ours]
    if not ours:
        return None
    alarms, clean = run.result.facts[ALARMS], sum(cell["verdict"] == "clean" for cell in ours)
    assert isinstance(alarms, list), "so it is stored"
    parts = len(ours) - len(alarms) - clean
    promised = "Kafka with `slots=2`, where an epoch is two transactions, and only each transaction is atomic"
    torn = f"; in {parts} a reader saw a part of an epoch ({promised})" if parts else ""
    theirs = sum(cell["verdict"] == "wrong" for cell in peers)
    mine = f"wrong in {len(alarms)} of {len(ours)} cells, clean in {clean}{torn}"
    return f"{mine}; other writers: wrong in {theirs} of {len(peers)}"


def _latency(run: Run) -> str | None:
    """The median over rows of each sink that is alone in its pipeline."""
    alone = [m for m in run.result.measures if m.job == names.OURS and m.case.get("of") == "p50"]
    alone = [m for m in alone if m.case.get("sinks") == m.case.get("reader of")]
    return "; ".join(f"{m.case['sinks']} {with_spread(m.values)} s" for m in alone) + _few(run) if alone else None


def _memory(run: Run) -> str | None:
    """What grew most with the rows of an epoch: a Python process, and the JVM compared with that of Delta's append."""
    sized = [ratio for ratio in run.result.ratios if isinstance(ratio.case.get("rows"), int)]
    most = max(map(_rows, sized), default=0)
    mine = [ratio for ratio in sized if _rows(ratio) == most and ratio.job.startswith(names.OURS)]
    python = [ratio for ratio in mine if ratio.case.get("of") in PYTHON]
    jvm = [ratio for ratio in mine if ratio not in python]
    if not python:
        return None
    told = _grown("Python", python)
    if jvm:
        case = _most(jvm).case
        same = [ratio for ratio in sized if ratio.job == DELTA and ratio.case == case]
        told += f"; {_grown('JVM', jvm)}"
        told += "".join(f"; JVM of {DELTA} {with_spread(peer.values)} times" for peer in same)
    least = python[0].peer.removeprefix("the same at ")
    return f"memory at {most:,} rows divided by memory at {least}: {told}{_few(run)}"


def _grown(what: str, ratios: Sequence[Ratio]) -> str:
    one = _most(ratios)
    return f"{what} ({one.case.get('of')}, of {one.job}) {with_spread(one.values)} times"


def _most(ratios: Sequence[Ratio]) -> Ratio:
    return max(ratios, key=lambda ratio: statistics.median(ratio.values))


def _rows(ratio: Ratio) -> int:
    rows = ratio.case["rows"]
    assert isinstance(rows, int)
    return rows


FIGURES: Sequence[Figure] = (
    Figure(
        "Correctness as outside readers see it; a cell is one kind of fault in one mode of one sink",
        ("consistency",),
        _right,
    ),
    Figure(
        "Postgres, 2 million rows of 132 bytes",
        ("throughput",),
        _speed("postgres-jdbc-rewritten", "Spark JDBC with rewritten batches"),
    ),
    Figure(
        "Kafka, 2 million rows of key and value, 116 bytes",
        ("throughput",),
        _speed("kafka-spark", "Spark's at-least-once sink"),
    ),
    Figure("Delta, the same rows as for Postgres", ("throughput",), _speed("delta-plain", "a plain append")),
    Figure(
        "Duration of an epoch with three sinks",
        ("throughput",),
        _of_goal("three-sum", "times the sum of the durations of the three sinks alone"),
    ),
    Figure(
        "Duration of a small epoch (1,000 rows, Postgres)",
        ("small",),
        _of_goal("small-one", "s more than a bare foreachBatch"),
    ),
    Figure("Time from making a row until a reader sees it, median row, trigger interval 1 s", ("latency",), _latency),
    Figure(
        "Restart after a fault, the worst case", ("recovery",), _of_goal("recovery", "s more than Spark's own restart")
    ),
    Figure("Duration of epoch 100,000, compared with that of epoch 10", GROWTH, _growth, "growth"),
    Figure("How the peak memory grows with the size of an epoch, the worst case", ("memory",), _memory),
)


def rows(folder: Path = FOLDER) -> list[tuple[str, str, str]]:
    """Return (what, figure, command) for each figure, from the newest full runs that have it."""
    tables = dict.fromkeys(name for figure in FIGURES for name in figure.tables)
    runs = {name: stored(name, folder=folder) for name in tables}
    return [(figure.what, _told(figure, runs), figure.command) for figure in FIGURES]


def _told(figure: Figure, runs: Mapping[str, Sequence[Run]]) -> str:
    newest = {name: _newest(figure, runs[name]) for name in figure.tables}
    telling = [run for run in newest.values() if run is not None]
    if not telling:
        return MISSING
    missing = "".join(f"; {name} {MISSING}" for name, run in newest.items() if run is None)
    return f"{figure.told(_together(telling))}{missing}"


def _newest(figure: Figure, of_table: Sequence[Run]) -> Run | None:
    """The newest run that has the figure; None if there is no run at all.  Raises NotTold if no run has it."""
    telling = next((run for run in of_table if figure.told(run) is not None), None)
    if telling is None and of_table:
        raise NotTold(f"{figure.what!r}: nothing in {[run.file for run in of_table]} tells it")
    return telling


def _together(runs: Sequence[Run]) -> Run:
    """Join several runs as if one run had measured everything."""
    results = [run.result for run in runs]
    measures = [measure for result in results for measure in result.measures]
    ratios = [ratio for result in results for ratio in result.ratios]
    least = min(result.rounds for result in results)
    return replace(runs[0], result=replace(results[0], rounds=least, measures=measures, ratios=ratios))


def table(folder: Path = FOLDER) -> str:
    """Return the table as Markdown."""
    lines = [f"| {what} | {told} | `{made}` |" for what, told, made in rows(folder)]
    return "\n".join(["| what | median (quartiles) | made by |", "|---|---|---|", *lines]) + "\n"


def put(table: str, into: Path) -> None:
    """Replace what is between the two marks of a page.  Raises ValueError if the marks are missing."""
    before, begin, rest = into.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{into} has no {BEGIN.strip()} ... {END}")
    into.write_text(f"{before}{begin}{table}{end}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description="The ten figures, as Markdown.")
    parser.add_argument(
        "--from", type=folder_of_results, default=FOLDER, dest="folder", help="the folder of the results"
    )
    parser.add_argument("--into", type=Path, help="put the table between the marks of this page, and do not print it")
    options = parser.parse_args(arguments)
    if options.into is None:
        print(table(options.folder), end="")
    else:
        put(table(options.folder), options.into)


if __name__ == "__main__":
    main()
