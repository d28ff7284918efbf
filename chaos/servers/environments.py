"""Virtual environments for packages that cannot be installed beside ours. They are made in the cache and kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from epochal.chaos.servers import cache
from epochal.chaos.servers.errors import ServerUnavailable

PIP_TIMEOUT_S = 1800


def python_with(
    name: str, *requirements: str, making: Callable[[], None] = lambda: None, interpreter: str | None = None
) -> Path:
    """Return the Python of a virtual environment with these requirements. `making` is called before it is made.

    `name` must contain the versions of the requirements, because an environment is reused if its name exists.
    `interpreter`: a program like `python3.12`; by default this Python.
    """
    version = interpreter.rpartition("python")[2] if interpreter else sysconfig.get_python_version()
    name = f"{name}-python{version}"
    with cache.locked(name) as directory:
        folder = directory / name
        python = folder / "bin" / "python"
        whole = folder / "whole"
        if not whole.exists():
            making()
            shutil.rmtree(folder, ignore_errors=True)
            call([interpreter or sys.executable, "-m", "venv", "--without-pip", str(folder)])
            call([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *requirements])
            whole.touch()
    return python


def call(command: list[str]) -> None:
    """Run a command. Raises ServerUnavailable, with the last line of its error output, if it fails."""
    shown = f"`{' '.join(command[1:])}`"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ServerUnavailable(
            f"{shown} did not end within {PIP_TIMEOUT_S} s", "look whether its index answers"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ServerUnavailable(
            f"{shown} ended with {done.returncode}: {last}",
            "look whether the package index of pip answers",
            done.stderr[-3000:],
        )
