"""Archives of classes that are parsed and verified already (class data sharing, JEP 350): a JVM starts faster with one.

An archive is made once on a machine, by a process that does the same as the later users of the archive. If a Java
cannot make one, they start without it.
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
    """Return the name of the archive for the kit's Java and for ``of``, for example jars."""
    version = _version(java.java_home() / "bin" / "java")
    return f"{kind}-{hashlib.sha256(repr((version, *of)).encode()).hexdigest()[:12]}"


@functools.cache
def _version(program: Path) -> bytes:
    """The output of ``java -version``. The file itself identifies no Java: it may be a shim that is written again."""
    return subprocess.run([program, "-version"], capture_output=True, check=True).stderr


def known(name: str) -> Path | None:
    """Return the archive if it exists, else None. This call never makes it."""
    archive = cache.cache_dir() / f"{name}.jsa"
    return archive if archive.exists() else None


def made(name: str, what: str, make: Callable[[Path], str | None]) -> Path | None:
    """Return the archive. The first call on a machine makes it, and other calls wait.

    ``make`` gets its path, and returns None or why it failed. After a failure nobody tries again: the result is None.
    """
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
    """Return the options of a JVM that starts with the archive; none for None."""
    return [] if archive is None else [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=error"]
