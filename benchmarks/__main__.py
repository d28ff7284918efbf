"""``python -m benchmarks TABLE ...`` runs tables and stores their results, by default in ``benchmarks/results/``."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import say
from benchmarks.results import FOLDER, save
from benchmarks.summary import show
from benchmarks.tables import LONG, SEVERAL, TABLES, Options, table


def main(arguments: Sequence[str] | None = None) -> int:
    tables = "\n".join(f"  {name:17} {about}" for name, about in TABLES.items())
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
        help=f"one or more of these; `growth` means its three, `all` all, `most` all but {', '.join(LONG)}",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, after the warm-up (5)")
    parser.add_argument("--quick", action="store_true", help="fewer rows and cases; results are stored apart")
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
    """Measure one table; return whether there is a result.  An error is printed, and the other tables still run."""
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
