"""Plants the known bugs of ``tests/planted/*.toml``, one at a time, and runs the unchanged suite with each.

The ``first`` tests of a bug are those of its suite that should catch it.  If they pass, the whole suite is run.  All
tests that were run with a bug are also run without any bug, and must pass then (the control).  A bug is *caught* if a
test fails, and *survived* if the suite passes.  It is *invalid* if its patch does not apply, or if the suite does not
run, does not end, or has an error in a set-up.  An invalid result says nothing.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochal.chaos.mutants import checkout

CONTROL = "nothing planted:"


@dataclass(frozen=True)
class Bug:
    """Replaces ``old`` by ``new`` in ``file``, which removes ``guard``.  The tests in ``suite`` must catch it."""

    name: str
    guard: str
    file: str
    old: str
    new: str
    suite: tuple[str, ...]
    first: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """The result of one bug or control.

    ``verdict`` is caught, survived or invalid.  ``by`` is the first test that failed, or why it is invalid.  ``ran``
    are the tests that were run.
    """

    name: str
    guard: str
    file: str
    verdict: str
    by: str
    seconds: float
    ran: tuple[str, ...]

    @property
    def is_control(self) -> bool:
        """Whether this was a run without any bug, which should be *survived*."""
        return self.name.startswith(CONTROL)

    def to_json(self) -> dict[str, Any]:
        """Return the result as ``--json`` shows it.  ``by`` names the test that caught the bug, and is else empty."""
        return {
            "name": self.name,
            "caught": self.verdict == "caught",
            "by": self.by if self.verdict == "caught" else "",
            "seconds": self.seconds,
            "guard": self.guard,
            "file": self.file,
            "ran": list(self.ran),
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        verdict = {"survived": "green", "caught": "red"}.get(self.verdict, self.verdict)
        return f"{verdict if self.is_control else self.verdict:9} {self.seconds:6.1f} s  {self.name:45} {self.by}"


@dataclass(frozen=True)
class PlantedRun:
    """The result.  ``code`` is 0: all caught, controls pass; 1: a bug survived or a control failed; 3: unknown."""

    results: tuple[Result, ...]

    @property
    def bugs(self) -> tuple[Result, ...]:
        return tuple(r for r in self.results if not r.is_control)

    @property
    def controls(self) -> tuple[Result, ...]:
        return tuple(r for r in self.results if r.is_control)

    @property
    def code(self) -> int:
        if any(r.verdict == "survived" for r in self.bugs) or any(r.verdict == "caught" for r in self.controls):
            return 1
        return 3 if not self.bugs or any(r.verdict == "invalid" for r in self.results) else 0

    def to_json(self) -> list[dict[str, Any]]:
        """Return the results of the bugs, without the controls, as JSON."""
        return [result.to_json() for result in self.bugs]

    def __str__(self) -> str:
        caught = sum(r.verdict == "caught" for r in self.bugs)
        green = sum(r.verdict == "survived" for r in self.controls)
        return (
            f"{caught} of {len(self.bugs)} planted bugs caught,"
            f" {green} of {len(self.controls)} controls green (with nothing planted)"
        )


def bugs(root: Path) -> list[Bug]:
    """Return all planted bugs of a checkout."""
    import tomli

    found: list[Bug] = []
    for path in sorted((root / checkout.PLANTED).glob("*.toml")):
        for data in tomli.loads(path.read_text(encoding="utf-8"))["bug"]:
            found.append(Bug(**{**data, "suite": tuple(data["suite"]), "first": tuple(data.get("first", ()))}))
    return found


def plant(bug: Bug, tree: Path) -> str | None:
    """Apply the patch.  Return why it does not apply, or None."""
    path = tree / bug.file
    if not path.is_file():
        return f"there is no file {bug.file}"
    text = path.read_text(encoding="utf-8")
    if (times := text.count(bug.old)) != 1:
        return f"the old text occurs {times} times in {bug.file}"
    path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
    return None


def judge(code: int, output: str) -> tuple[str, str]:
    """Return (verdict, by) of one run of pytest."""
    if code == 0:
        return "survived", ""
    failed = re.search(r"^FAILED (\S+::.*?)(?: - .*)?$", output, re.MULTILINE)
    if code == 1 and failed is not None:
        return "caught", failed[1]
    return "invalid", f"pytest ended with {code}: {output[-400:]}"


@dataclass
class Planter:
    """Runs suites in copies of ``root``.

    ``seconds``: how long one run of a suite may take.  ``options`` of pytest say which tests of it count.
    """

    root: Path
    seconds: float = 900.0
    options: Sequence[str] = ()
    _live: set[int] = field(default_factory=set)
    _ending: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, chosen: Sequence[Bug], jobs: int) -> Iterator[Result]:
        """Yield results as they come in: those of the bugs, then those of their controls."""
        results = []
        pool = concurrent.futures.ThreadPoolExecutor(jobs)
        try:
            for future in concurrent.futures.as_completed([pool.submit(self.try_bug, bug) for bug in chosen]):
                results.append(future.result())
                yield results[-1]
            green = [pool.submit(self.control, tests) for tests in controls(results, chosen)]
            for future in concurrent.futures.as_completed(green):
                yield future.result()
        finally:  # also if the caller was interrupted, nothing must be left running
            self._end()
            pool.shutdown(cancel_futures=True)

    def try_bug(self, bug: Bug) -> Result:
        """Plant ``bug`` in a fresh copy; run its first tests there, and its whole suite if they pass."""
        began = time.monotonic()
        verdict, by, ran = "survived", "", list[str]()
        with checkout.fresh_copy(self.root) as tree:
            if trouble := plant(bug, tree):
                verdict, by = "invalid", trouble
            for tests in filter(None, (bug.first, bug.suite)):
                if verdict == "survived":
                    verdict, by = judge(*self.run_suite(tree, tests))
                    ran += tests
        return Result(bug.name, bug.guard, bug.file, verdict, by, round(time.monotonic() - began, 1), tuple(ran))

    def control(self, tests: Sequence[str]) -> Result:
        """Run the same tests in a copy without any bug."""
        began = time.monotonic()
        with checkout.fresh_copy(self.root) as tree:
            verdict, by = judge(*self.run_suite(tree, tests))
        name = f"{CONTROL} {len(tests)} tests or folders of {tests[0].partition('::')[0]}"
        return Result(name, "", "", verdict, by, round(time.monotonic() - began, 1), tuple(tests))

    def run_suite(self, tree: Path, suite: Sequence[str]) -> tuple[int, str]:
        """Run tests in a copy, with the copy's code; return pytest's exit code and output."""
        if trouble := checkout.what_is_imported(self.root, tree):
            return 99, trouble
        quiet = ["-x", "-q", "--no-header", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *quiet, *self.options, *suite]
        with self._lock:
            if self._ending:
                return 97, "interrupted"
            process = subprocess.Popen(
                command,
                cwd=tree,
                env=checkout.environment(self.root, tree),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self._live.add(process.pid)
        try:
            output, _ = process.communicate(timeout=self.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return 98, f"{output}\nthe suite did not end within {self.seconds:.0f} s"
        finally:
            with self._lock:
                self._live.discard(process.pid)
        return process.returncode, output

    def _end(self) -> None:
        with self._lock:
            self._ending = True
            for group in self._live:
                os.killpg(group, signal.SIGKILL)


def controls(results: Sequence[Result], chosen: Sequence[Bug]) -> list[tuple[str, ...]]:
    """Return the tests that must pass without any bug: one run per suite, with all tests that were run on its bugs."""
    suite = {bug.name: bug.suite for bug in chosen}
    ran: dict[tuple[str, ...], set[str]] = {}
    for result in results:
        ran.setdefault(suite[result.name], set()).update(result.ran)
    return [tuple(sorted(tests)) for tests in ran.values() if tests]


def planted(
    *,
    only: Sequence[str] = (),
    jobs: int = 2,
    seconds: float = 900.0,
    options: Sequence[str] = (),
    root: Path | None = None,
    tell: Callable[[str], None] = print,
) -> PlantedRun:
    """Plant every bug whose name contains one of ``only`` (all, if empty).  Call ``tell`` with a line for each.

    ``options`` of pytest say which tests count: ``--proof`` leaves out what ``make test`` leaves out.

    Raises NoCheckout if there is no checkout around the current directory (or ``root``).
    """
    root = checkout.find(root)
    chosen = [bug for bug in bugs(root) if not only or any(part in bug.name for part in only)]
    if not chosen:
        tell(f"no planted bug has a name with {' or '.join(map(repr, only))} in it")
    results = []
    for result in Planter(root, seconds, options).run(chosen, jobs):
        tell(str(result))
        results.append(result)
    run = PlantedRun(tuple(results))
    tell(str(run))
    return run
