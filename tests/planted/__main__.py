"""Plants known bugs, one at a time, in a copy of the checkout, and runs the unchanged suite on it.

``python -m tests.planted [--only NAME] [--jobs N] [--json FILE]``.  A bug's ``first`` tests are those of its
suite that should notice it; where they stay green, the whole suite is run.  Everything that was run on a bug is
also run with nothing planted and must be green there (the control).  A bug is *caught* when a test fails,
*survived* when the suite stays green, *invalid* when its patch does not apply, the suite does not run or end,
or a test could not be set up.  Exit code 0: every control green, every bug caught.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SECONDS = 900  # for one bug
CONTROL = "nothing planted:"


@dataclass(frozen=True)
class Bug:
    """Replace ``old`` by ``new`` in ``file``, which takes ``guard`` away; ``suite`` is what must notice."""

    name: str
    guard: str
    file: str
    old: str
    new: str
    suite: tuple[str, ...]
    first: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """``verdict``: caught, survived or invalid; ``by``: the first test that failed; ``ran``: what was run."""

    name: str
    guard: str
    verdict: str
    by: str
    seconds: float
    ran: tuple[str, ...]


def bugs() -> list[Bug]:
    """All planted bugs, from the TOML files beside this one."""
    found: list[Bug] = []
    for path in sorted(HERE.glob("*.toml")):
        for data in tomli.loads(path.read_text(encoding="utf-8"))["bug"]:
            found.append(Bug(**{**data, "suite": tuple(data["suite"]), "first": tuple(data.get("first", ()))}))
    return found


@contextlib.contextmanager
def fresh_copy() -> Iterator[Path]:
    """A copy of the checkout: tracked and untracked files, not the ignored ones; links stay links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder).resolve()
        for name in filter(None, listed.split("\0")):
            source = ROOT / name
            if source.is_symlink() or source.exists():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, tree / name, follow_symlinks=False)
        yield tree


def plant(bug: Bug, tree: Path) -> str | None:
    """Apply the patch; why it does not apply, or None."""
    path = tree / bug.file
    text = path.read_text(encoding="utf-8")
    if (times := text.count(bug.old)) != 1:
        return f"the old text stands {times} times in {bug.file}"
    path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
    return None


def run_suite(tree: Path, suite: Sequence[str]) -> tuple[int, str]:
    """pytest's exit code and output on a copy; the copy's code, not the checkout's, is imported."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "EPOCHAL_CACHE": os.environ.get("EPOCHAL_CACHE", str(ROOT / ".cache")),
    }
    where = subprocess.run(
        [sys.executable, "-c", "import epochal.coordinator as c; print(c.__file__)"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    if not where.startswith(str(tree)):
        return 99, f"the copy is not what gets imported: {where!r}"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *suite]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return 98, f"{output}\nthe suite did not end within {SECONDS} s"
    return process.returncode, output


def judge(code: int, output: str) -> tuple[str, str]:
    """(verdict, by) of one run."""
    if code == 0:
        return "survived", ""
    failed = re.search(r"^FAILED (\S+::\S+)", output, re.MULTILINE)
    if code == 1 and failed is not None:
        return "caught", failed[1]
    return "invalid", f"pytest ended with {code}: {output[-400:]}"


def try_bug(bug: Bug) -> Result:
    """Plant ``bug`` in a fresh copy; run its first tests there, and its whole suite where they are green."""
    began = time.monotonic()
    verdict, by, ran = "survived", "", list[str]()
    with fresh_copy() as tree:
        if trouble := plant(bug, tree):
            verdict, by = "invalid", trouble
        for tests in filter(None, (bug.first, bug.suite)):
            if verdict == "survived":
                verdict, by = judge(*run_suite(tree, tests))
                ran += tests
    return Result(bug.name, bug.guard, verdict, by, round(time.monotonic() - began, 1), tuple(ran))


def control(tests: Sequence[str]) -> Result:
    """The same tests on a copy with nothing planted."""
    began = time.monotonic()
    with fresh_copy() as tree:
        verdict, by = judge(*run_suite(tree, tests))
    name = f"{CONTROL} {len(tests)} tests or folders of {tests[0].partition('::')[0]}"
    return Result(name, "", verdict, by, round(time.monotonic() - began, 1), tuple(tests))


def controls(results: Sequence[Result], chosen: Sequence[Bug]) -> list[tuple[str, ...]]:
    """What has to be green with nothing planted: a run per suite, of all that was run on its bugs."""
    suite = {bug.name: bug.suite for bug in chosen}
    ran: dict[tuple[str, ...], set[str]] = {}
    for result in results:
        ran.setdefault(suite[result.name], set()).update(result.ran)
    return [tuple(sorted(tests)) for tests in ran.values() if tests]


def run(chosen: Sequence[Bug], jobs: int) -> Iterator[Result]:
    """Results as they come in: the bugs', then their controls'."""
    results = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for future in concurrent.futures.as_completed([pool.submit(try_bug, bug) for bug in chosen]):
            results.append(future.result())
            yield results[-1]
        green = [pool.submit(control, tests) for tests in controls(results, chosen)]
        for future in concurrent.futures.as_completed(green):
            yield future.result()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--only", action="append", help="only bugs whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    chosen = [b for b in bugs() if not options.only or any(o in b.name for o in options.only)]
    results = []
    for result in run(chosen, options.jobs):
        print(f"{result.verdict:9} {result.seconds:6.1f} s  {result.name:45} {result.by}", flush=True)
        results.append(result)
    clean = [r for r in results if r.name.startswith(CONTROL)]
    green = sum(r.verdict == "survived" for r in clean)
    caught = sum(r.verdict == "caught" for r in results if r not in clean)
    print(f"{caught} of {len(chosen)} planted bugs caught, {green} of {len(clean)} controls green")
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n", encoding="utf-8")
    return 0 if chosen and (caught, green) == (len(chosen), len(clean)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
