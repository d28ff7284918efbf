"""The checkout under test, and copies of it.  Nothing is ever planted in the checkout itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PLANTED = Path("tests", "planted")


class NoCheckout(Exception):
    """Mutants need the tests, which only a checkout has."""

    def __init__(self, where: Path, why: str) -> None:
        super().__init__(
            f"{where} is in no checkout of Epochal: {why}\n"
            "  Help: change into a checkout (git clone) and call it there; an installed package has no tests"
        )


def find(start: Path | None = None) -> Path:
    """Return the root of the git checkout around ``start``, by default the current directory.

    Raises NoCheckout if there is none.
    """
    where = (start or Path.cwd()).resolve()
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--show-toplevel"], cwd=where, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise NoCheckout(where, "there is no program `git`") from None
    if done.returncode != 0:
        raise NoCheckout(where, done.stderr.strip())
    root = Path(done.stdout.strip())
    if not (root / PLANTED).is_dir():
        raise NoCheckout(where, f"{root} has no folder {PLANTED}")
    return root


def files(root: Path) -> list[str]:
    """Return the files of a copy as paths below ``root``: tracked and untracked files, but not the ignored ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout.decode()
    names = sorted(set(filter(None, listed.split("\0"))))
    return [name for name in names if (root / name).is_symlink() or (root / name).exists()]


@contextlib.contextmanager
def fresh_copy(root: Path) -> Iterator[Path]:
    """Copy the checkout as it is now, with uncommitted changes.  Links stay links.  The copy is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder).resolve()
        for name in files(root):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name, follow_symlinks=False)
        yield tree


def environment(root: Path, tree: Path) -> dict[str, str]:
    """Return an environment in which Python imports the copy's code and finds the checkout's downloads."""
    return {
        **os.environ,
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "EPOCHAL_CACHE": os.environ.get("EPOCHAL_CACHE", str(root / ".cache")),
    }


def what_is_imported(root: Path, tree: Path) -> str | None:
    """Return why Python does not import the copy's code there, or None if it does."""
    done = subprocess.run(
        [sys.executable, "-c", "import epochal.coordinator as c; print(c.__file__)"],
        cwd=tree,
        env=environment(root, tree),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stdout.startswith(str(tree)):
        return None
    return f"the copy is not what gets imported: {done.stdout or done.stderr[-400:]!r}"
