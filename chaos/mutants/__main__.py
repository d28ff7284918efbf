"""``python -m epochal.chaos.mutants`` does the same as ``epochal chaos mutants``, without the console command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from epochal.chaos.mutants import NoCheckout, checkout, mechanical, planted
from epochal.chaos.mutants.guards import registry
from epochal.chaos.mutants.mutator import SAMPLE, MechanicalRun
from epochal.chaos.mutants.planting import PlantedRun
from epochal.chaos.mutants.reach import FAST, SERVERS
from epochal.coordinator.console.cli import exit_on_sigterm


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes. 0: all caught; 1: one survived, or a test fails without a bug; 3: the result is unknown."""
    options = _options(arguments)
    try:
        if options.guards:
            for entry in registry(checkout.find()):
                print(entry)
            return 0
        return _run(options)
    except NoCheckout as error:
        print(error, file=sys.stderr)
        return 3


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="epochal chaos mutants", description=main.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="only mutants or bugs whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write results as JSON to a file, or to standard output"
    )
    parser.add_argument("--guards", action="store_true", help="list the guards and what removes them; run nothing")
    parser.add_argument("--mechanical", action="store_true", help="run the mechanical mutants, not the planted bugs")
    parser.add_argument("--budget", type=float, help="time limit in seconds; mutants after it are listed as not run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sample", type=int, default=SAMPLE, help="mutants to run in sinks/, besides those that remove a guard"
    )
    parser.add_argument("--suite", action="append", help="tests to run, instead of all")
    parser.add_argument("--proof", action="store_true", help="only the tests that `make test` runs")
    parser.add_argument("--only-guards", action="store_true", help="only mechanical mutants that remove a guard")
    parser.add_argument("--fast", action="store_true", help="only the tests that need neither Spark nor servers")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds of tests for one mutant")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> int:
    def tell(line: str) -> None:
        print(line, file=sys.stderr if options.json == "-" else sys.stdout, flush=True)

    run: MechanicalRun | PlantedRun
    proof = ("--proof",) if options.proof else ()
    if options.mechanical:
        run = mechanical(
            budget=options.budget,
            seed=options.seed,
            sample=options.sample,
            only=options.only,
            only_guards=options.only_guards,
            jobs=options.jobs,
            options=proof,
            suite=options.suite or (FAST if options.fast else (*FAST, *SERVERS)),
            patience=options.patience,
            tell=tell,
        )
    else:
        run = planted(only=options.only, jobs=options.jobs, options=proof, tell=tell)
    text = json.dumps(run.to_json(), indent=1)
    if options.json == "-":
        print(text)
    elif options.json:
        Path(options.json).write_text(f"{text}\n", encoding="utf-8")
    return run.code


if __name__ == "__main__":
    exit_on_sigterm()
    raise SystemExit(main())
