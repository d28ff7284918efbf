"""Archives of classes that are parsed and verified already (class data sharing, JEP 350): a JVM starts sooner with one.

An archive is made once on a machine, by a process that does what those do that will use it. Where a Java makes none,
they start without.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path

from epochal.chaos.servers import cache, java

_log = logging.getLogger(__name__)


def name(kind: str, *of: object) -> str:
    """What the archive is called that is right for the kit's Java and for ``of``, say jars."""
    version = _version(java.java_home() / "bin" / "java")
    return f"{kind}-{hashlib.sha256(repr((version, *of)).encode()).hexdigest()[:12]}"


@functools.cache
def _version(program: Path) -> bytes:
    """What it says of itself: the file may be a shim, written anew at every look."""
    return subprocess.run([program, "-version"], capture_output=True, check=True).stderr


def known(name: str) -> Path | None:
    """The archive, if it was made; None otherwise, and nobody makes it now."""
    archive = cache.cache_dir() / f"{name}.jsa"
    return archive if archive.exists() else None


def made(name: str, what: str, make: Callable[[Path], str | None]) -> Path | None:
    """The archive; the first call on a machine makes it, others wait. ``make`` is given its path, and answers None or
    why it could not, which is then not tried again."""
    with cache.locked(name.partition("-")[0]) as directory:
        archive, none = directory / f"{name}.jsa", directory / f"{name}.none"
        if archive.exists():
            return archive
        if not none.exists():
            _log.warning("making an archive of %s, once on this machine", what)
            why = make(archive)
            if why is None:
                return archive
            none.write_text(why)
            _log.warning("%s is started without an archive of classes, for this Java made none: see %s", what, none)
    return None


def options(archive: Path | None) -> list[str]:
    """Those of a JVM that starts with it."""
    return [] if archive is None else [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=error"]
