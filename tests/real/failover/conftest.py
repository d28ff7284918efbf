"""A Postgres with a synchronous standby."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from epochal.chaos.servers.postgres import PostgresServer
from epochal.chaos.servers.postgres_standby import SYNCHRONOUS, PostgresStandby

LOGS = {"log_connections": "on"}


@dataclass(frozen=True)
class Pair:
    """The COMMIT of the primary waits for the standby, which logs who connects."""

    primary: PostgresServer
    standby: PostgresStandby

    def asked_the_standby(self, name: str) -> bool | None:
        """True if somebody of this application name has connected to the standby, else None."""
        return f"application_name={name}" in self.standby.log_file.read_text() or None


@pytest.fixture
def pair() -> Iterator[Pair]:
    with PostgresServer(settings=SYNCHRONOUS) as primary, PostgresStandby(primary, settings=LOGS) as standby:
        standby.wait_until_followed()
        yield Pair(primary, standby)
