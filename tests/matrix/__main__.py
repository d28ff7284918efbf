"""Run the tests against every version that `rows.py` lists, and print what was seen.

    python -m tests.matrix [word ...]      # only the rows whose part or version begins with one of the words

Exit status 0: all passed; 1: something failed; 3: nothing failed and something is missing, which is named. Nothing is
installed on the system; what is downloaded stays in the cache.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from epochal.chaos.servers import cache
from epochal.chaos.servers.errors import ServerUnavailable
from tests.matrix.rows import Missing, Ready, Row, rows

ROOT = Path(__file__).parents[2]
ROW_TIMEOUT_S = 3600
SUMMARY = re.compile(r"^(\d+) collected (=|IS NOT) (.*)$", re.M)


class Verdict(Enum):
    """What became of a row; the value is its exit status."""

    PASSED = 0
    FAILED = 1
    MISSING = 3


@dataclass(frozen=True)
class Result:
    """How a row ended, in words that stand in the table."""

    verdict: Verdict
    told: str
    seconds: float


def main(words: Sequence[str]) -> int:
    """Exit status."""
    chosen = choose(rows(), words)
    if not chosen:
        print(f"no row begins with {' or '.join(words)}", file=sys.stderr)
        return Verdict.FAILED.value
    results = []
    for number, row in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {row.part} {row.version}: {row.what}", flush=True)
        results.append(run(row))
        print(f"    {results[-1].told} ({results[-1].seconds:.0f} s)", flush=True)
    print("\n" + table(chosen, results))
    return exit_status(results)


def choose(every: Sequence[Row], words: Sequence[str]) -> list[Row]:
    """All without words."""
    begins = tuple(word.lower() for word in words)
    return [row for row in every if not words or f"{row.part} {row.version}".lower().startswith(begins)]


def exit_status(results: Sequence[Result]) -> int:
    """A failure says more than something missing, and that more than nothing."""
    verdicts = {result.verdict for result in results}
    return next((v.value for v in (Verdict.FAILED, Verdict.MISSING) if v in verdicts), Verdict.PASSED.value)


def table(shown: Sequence[Row], results: Sequence[Result]) -> str:
    """Part, version, what was run, result, seconds; in Markdown."""
    cells = [("part", "version", "what was run", "result", "seconds")]
    cells += [
        (row.part, row.version, row.what, result.told, f"{result.seconds:.0f}")
        for row, result in zip(shown, results, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def run(row: Row) -> Result:
    """Get what the row needs, and run its tests."""
    begun = time.monotonic()
    try:
        ready = row.ready()
    except (Missing, ServerUnavailable) as error:
        verdict, told = Verdict.MISSING, f"missing: {str(error).splitlines()[0]}"
    else:
        verdict, told = _test(row, ready)
    return Result(verdict, told, time.monotonic() - begun)


def _test(row: Row, ready: Ready) -> tuple[Verdict, str]:
    log = cache.cache_dir() / "matrix" / f"{row.part}-{row.version}.log".replace(" ", "-")
    log.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    # Servers of the user's own would be those of every row.
    own = {name: value for name, value in os.environ.items() if name not in _NAMED_BY_USER}
    environment = {**own, **ready.environment, "PYTHONPATH": path, "EPOCHAL_EVERY_TEST": "1"}
    with log.open("w") as output:
        # The archive of classes takes longer than a test may.
        for command in (
            ["-m", "epochal.chaos.job.archive"],
            ["-m", "pytest", "-v", "--timeout=600", "-p", "no:cacheprovider", *ready.options, *row.tests],
        ):
            try:
                subprocess.run(
                    [str(ready.python), *command],
                    cwd=ROOT,
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=ROW_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return Verdict.FAILED, f"failed: not done within {ROW_TIMEOUT_S} s"
    verdict, told = judge(log.read_text(errors="replace"))
    if verdict is not Verdict.PASSED:
        print(
            "\n".join(log.read_text(errors="replace").splitlines()[-60:]), f"\n    the whole of it: {log}", flush=True
        )
    return verdict, told


_NAMED_BY_USER = ("EPOCHAL_SERVERS", "EPOCHAL_POSTGRES_DSN", "EPOCHAL_KAFKA_BOOTSTRAP", "PG_BIN")


def judge(output: str) -> tuple[Verdict, str]:
    """What pytest printed under EPOCHAL_EVERY_TEST: a test that did not run has not passed."""
    found = SUMMARY.search(output)
    if found is None:
        return Verdict.FAILED, f"failed: {(output.strip().splitlines() or ['nothing was printed'])[-1]}"
    collected, sign, reported = found.groups()
    if sign == "=" and collected != "0":
        return Verdict.PASSED, f"passed {collected} tests"
    return Verdict.FAILED, f"failed: {reported} of {collected} tests"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
