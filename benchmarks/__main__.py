"""``python -m benchmarks TABLE ...``: run tables, keep what they found under ``benchmarks/results/``."""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.measuring import say
from benchmarks.results import FOLDER, Result, save
from benchmarks.summary import show

TABLES: Mapping[str, str] = {
    "throughput": "rows per second of each sink and of three together, beside each peer",
    "growth": "an epoch, a start, the bytes kept and the view, from epoch 10 to 100,000",
}


@dataclass(frozen=True)
class Options:
    """``rounds`` that count; ``quick``: fewer rows and cases, to see that all of it runs."""

    rounds: int
    quick: bool


class Table(Protocol):
    """What a module of ``tables/`` has."""

    def run(self, options: Options) -> Result: ...


def table(name: str) -> Table:
    module: Table = importlib.import_module(f"benchmarks.tables.{name.replace('-', '_')}")
    return module


def main(arguments: Sequence[str] | None = None) -> None:
    tables = "\n".join(f"  {name:14} {about}" for name, about in TABLES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measure on embedded real servers, which are started and ended here.\n\ntables:\n{tables}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tables", nargs="+", choices=list(TABLES), metavar="TABLE")
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one for warm-up (5)")
    parser.add_argument("--quick", action="store_true", help="fewer rows and cases; its results are kept apart")
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder of the results")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    for name in options.tables:
        say(f"{name}: {TABLES[name]}")
        began = time.monotonic()
        result = table(name).run(Options(options.rounds, options.quick))
        path = save(result, options.into)
        show(result)
        say(f"{name}: {time.monotonic() - began:.0f} s, kept in {path.name}\n")


if __name__ == "__main__":
    main()
