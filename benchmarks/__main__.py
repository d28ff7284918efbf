"""``python -m benchmarks TABLE ...``: run tables, keep what they found under ``benchmarks/results/``."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.measuring import say
from benchmarks.results import FOLDER, Result, save
from benchmarks.summary import show

TABLES: Mapping[str, str] = {
    "throughput": "rows per second of each sink and of three together, beside each peer",
    "small": "time of a small epoch over a bare foreachBatch, phase by phase",
    "modes": "each mode of each sink, beside a plain append",
    "reader-view": "scans and look-ups through a Postgres sink's view, beside a plain table",
    "flink": "rows per second into Kafka beside Flink's KafkaSink, exactly-once and at-least-once, 8 million rows",
    "recovery": "from the start of a driver to its first new commit after each kind of fault, beside Spark alone",
    "latency": "from a row's making to its being seen by a reader of the sink, at triggers of 1 s, beside each peer",
    "memory": "peaks of driver, JVM and Python workers at 1, 10 and 50 million rows per epoch",
    "growth": "an epoch, a start, the bytes kept and the view, from epoch 10 to 100,000",
    "consistency": "what faults do to each sink, mode and peer: lost, duplicated, torn, out of order; the cost beside",
}


LONG = ("growth", "consistency")
"""Those that have a command of their own."""
SEVERAL: Mapping[str, Sequence[str]] = {
    "all": tuple(TABLES),
    "most": tuple(name for name in TABLES if name not in LONG),
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


def main(arguments: Sequence[str] | None = None) -> int:
    tables = "\n".join(f"  {name:14} {about}" for name, about in TABLES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measure on embedded real servers, which are started and ended here.\n\ntables:\n{tables}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "tables",
        nargs="+",
        choices=[*TABLES, *SEVERAL],
        metavar="TABLE",
        help=f"or all, or most: not {', '.join(LONG)}",
    )
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one for warm-up (5)")
    parser.add_argument("--quick", action="store_true", help="fewer rows and cases; its results are kept apart")
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder of the results")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    names = [name for word in options.tables for name in SEVERAL.get(word, [word])]
    began = time.monotonic()
    failed = [name for name in names if not _measured(name, Options(options.rounds, options.quick), options.into)]
    say(f"{len(names) - len(failed)} of {len(names)} tables in {time.monotonic() - began:.0f} s")
    if failed:
        say(f"without a result, as said above: {', '.join(failed)}")
    return int(bool(failed))


def _measured(name: str, options: Options, into: Path) -> bool:
    """Whether there is a result; a table that ends with an error, which is shown, takes no other with it."""
    say(f"{name}: {TABLES[name]}")
    began = time.monotonic()
    try:
        result = table(name).run(options)
        path = save(result, into)
    except Exception:
        traceback.print_exc()
        return False
    show(result)
    say(f"{name}: {time.monotonic() - began:.0f} s, kept in {path.name}\n")
    return True


if __name__ == "__main__":
    sys.exit(main())
