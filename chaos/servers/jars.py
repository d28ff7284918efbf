"""Jars from Maven, downloaded once with the Ivy in PySpark. This needs neither Maven nor a Spark session."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from epochal.chaos.servers import cache, java
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.coordinator.environment.versions import Jars

RESOLVE_TIMEOUT_S = 900


def resolve(jars: Jars) -> list[Path]:
    """Return the jar files of `jars`, from the cache if they are all there, else downloaded.

    Raises ServerUnavailable if that fails.
    """
    listing = f"jars-{jars.name}-{_digest(jars)}.json"
    known = _read(cache.cache_dir() / listing)
    if known is not None:
        return known
    with cache.locked("jars") as directory:
        known = _read(directory / listing)  # another process may have resolved them while this one waited
        if known is None:
            known = _resolve_in_child(jars, directory / "ivy")
            _write(directory / listing, known)
    return known


def progress() -> str:
    """Return how much was downloaded so far, for a person who waits: ``31 jars, 85 MB``."""
    fetched = [path.stat().st_size for path in (cache.cache_dir() / "ivy").rglob("*.jar")]
    return f"{len(fetched)} jars, {sum(fetched) / 1e6:.0f} MB"


def of_pyspark() -> Path:
    """Return the folder with PySpark's jars. Raises ServerUnavailable without pyspark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ServerUnavailable("jars are resolved by pyspark, which is missing", "`pip install 'epochal[chaos]'`")
    return Path(spec.submodule_search_locations[0]) / "jars"


def _digest(jars: Jars) -> str:
    return hashlib.sha256(repr(jars).encode()).hexdigest()[:12]


def _read(listing: Path) -> list[Path] | None:
    """The paths that an earlier call listed; None if there is no list, or if it names a file that is gone."""
    try:
        names = json.loads(listing.read_text())
    except FileNotFoundError:
        return None
    paths = [listing.parent / name for name in names]
    return paths if all(path.is_file() for path in paths) else None


def _write(listing: Path, paths: list[Path]) -> None:
    names = [str(path.relative_to(listing.parent)) for path in paths]
    partial = listing.with_suffix(".partial")
    partial.write_text(json.dumps(names, indent=1))
    partial.replace(listing)


def _resolve_in_child(jars: Jars, ivy: Path) -> list[Path]:
    """Download in another process, so that the caller gets no JVM and keeps its environment."""
    request = json.dumps({"coordinates": jars.coordinates, "transitive": jars.transitive, "ivy": str(ivy)})
    environment = {**os.environ, "JAVA_HOME": str(java.java_home()), "PYSPARK_SUBMIT_ARGS": "pyspark-shell"}
    command = [sys.executable, "-m", "epochal.chaos.servers.jars", request]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise _unavailable(jars, f"no answer within {RESOLVE_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise _unavailable(jars, done.stderr[-3000:])
    return [Path(line) for line in done.stdout.splitlines() if line.endswith(".jar")]


def _unavailable(jars: Jars, log: str) -> ServerUnavailable:
    return ServerUnavailable(
        f"jars could not be resolved: {', '.join(jars.coordinates)}",
        "check that Maven Central (or the mirror that Ivy is set up for) answers, and that pyspark is installed",
        log,
    )


def _ivy_resolve(coordinates: list[str], transitive: bool, ivy: str) -> list[str]:
    from pyspark.java_gateway import launch_gateway

    jvm = launch_gateway().jvm  # type: ignore[no-untyped-call]
    ivy_utils = jvm.org.apache.spark.util.MavenUtils
    quiet = jvm.java.io.PrintStream(jvm.java.io.ByteArrayOutputStream())
    nothing = jvm.scala.Option.empty()
    settings = ivy_utils.buildIvySettings(nothing, jvm.scala.Option.apply(ivy), False, quiet)
    no_excludes = getattr(ivy_utils, "resolveMavenCoordinates$default$5")()
    found = ivy_utils.resolveMavenCoordinates(
        ",".join(coordinates), settings, nothing, transitive, no_excludes, False, quiet
    )
    return str(found.mkString("\n")).split("\n")


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print("\n".join(_ivy_resolve(asked["coordinates"], asked["transitive"], asked["ivy"])))
