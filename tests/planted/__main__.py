"""Plants known bugs, one at a time, in a copy of the checkout, and runs the unchanged suite on it.

``python -m tests.planted [--only NAME] [--jobs N] [--json FILE]``.  Each suite is first run with nothing
planted and must be green (the control).  A bug is *caught* when a test then fails, *survived* when the suite
stays green, *invalid* when its patch does not apply, the suite does not run or end, or a test could not be
set up.  Exit code 0: every control green, every bug caught.
"""

from __future__ import annotations

import argparse
import concurrent.futures
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
    """Replace ``old`` by ``new`` in ``file``; ``suite`` is what is run, ``guard`` what is taken away."""

    name: str
    guard: str
    file: str
    old: str
    new: str
    suite: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """``verdict``: caught, survived or invalid; ``by``: the first test that failed."""

    name: str
    guard: str
    verdict: str
    by: str
    seconds: float


def bugs() -> list[Bug]:
    """All planted bugs, from the TOML files beside this one."""
    found: list[Bug] = []
    for path in sorted(HERE.glob("*.toml")):
        for data in tomli.loads(path.read_text(encoding="utf-8"))["bug"]:
            found.append(Bug(**{**data, "suite": tuple(data["suite"])}))
    return found


def copy_checkout(target: Path) -> None:
    """Tracked and untracked files, not the ignored ones; links stay links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if not source.is_symlink() and not source.exists():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / name, follow_symlinks=False)


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


def try_bug(bug: Bug | None, suite: Sequence[str]) -> Result:
    """Plant ``bug`` (None: nothing, the control run) in a fresh copy and run the suite there."""
    began = time.monotonic()
    name, guard = (bug.name, bug.guard) if bug is not None else (f"{CONTROL} {' '.join(suite)}", "")
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder).resolve()
        copy_checkout(tree)
        trouble = plant(bug, tree) if bug is not None else None
        verdict, by = ("invalid", trouble) if trouble else judge(*run_suite(tree, suite))
    return Result(name, guard, verdict, by, round(time.monotonic() - began, 1))


def run(chosen: Sequence[Bug], jobs: int) -> Iterator[Result]:
    """Results as they come in, a control for every suite among them."""
    controls = sorted({bug.suite for bug in chosen})
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(try_bug, None, suite) for suite in controls]
        futures += [pool.submit(try_bug, bug, bug.suite) for bug in chosen]
        for future in concurrent.futures.as_completed(futures):
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
    controls = [r for r in results if r.name.startswith(CONTROL)]
    green = sum(r.verdict == "survived" for r in controls)
    caught = sum(r.verdict == "caught" for r in results if r not in controls)
    print(f"{caught} of {len(chosen)} planted bugs caught, {green} of {len(controls)} controls green")
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n", encoding="utf-8")
    return 0 if chosen and (caught, green) == (len(chosen), len(controls)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
