"""A standby of a real Postgres: a copy that follows its primary, and can be promoted in its place."""

from __future__ import annotations

from collections.abc import Mapping

from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.postgres import PostgresServer
from epochal.chaos.servers.process import wait_until

FOLLOWED_TIMEOUT_S = 120.0
SYNCHRONOUS: Mapping[str, str] = {"synchronous_standby_names": "*"}
"""Setting of a primary whose COMMIT waits until a standby has it.  Without a standby it waits for ever."""


class PostgresStandby(PostgresServer):
    """A standby that copies the data of ``primary`` at its first start, and then follows it."""

    kind = "postgres-standby"

    def __init__(self, primary: PostgresServer, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(bin=primary._bin, settings=settings)
        self._primary = primary

    def promote(self) -> None:
        """Make it a primary of its own.  Raises ServerUnavailable if it does not become one."""
        self._execute("SELECT pg_promote(true, 60)")
        if not wait_until(lambda: None if self._execute("SELECT pg_is_in_recovery()") else True, FOLLOWED_TIMEOUT_S):
            raise ServerUnavailable("the standby was not promoted", f"its log is in {self.directory}")

    def wait_until_followed(self) -> None:
        """Wait until it has all that the primary has written.  Raises ServerUnavailable if it does not get it."""
        written = self._primary._execute("SELECT pg_current_wal_flush_lsn()")
        behind = f"SELECT pg_last_wal_replay_lsn() < '{written}'::pg_lsn"
        if not wait_until(lambda: None if self._execute(behind) else True, FOLLOWED_TIMEOUT_S):
            raise ServerUnavailable("the standby does not follow its primary", f"its log is in {self.directory}")

    def _prepare(self) -> None:
        if (self._data / "PG_VERSION").exists():
            return
        source = ["-d", self._primary.dsn, "--wal-method=stream", "--checkpoint=fast", "--write-recovery-conf"]
        self._initialize("pg_basebackup", "-D", str(self._data), *source)
