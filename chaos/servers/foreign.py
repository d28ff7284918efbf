"""Servers of the user's own, named by address: used as they are, never stopped or crashed."""

from __future__ import annotations

from typing import NoReturn

from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.kafka import Topics
from epochal.chaos.servers.postgres import Databases
from epochal.chaos.servers.process import START_TIMEOUT_S, wait_until


class ForeignServer:
    """The life of a server that somebody else keeps."""

    address: str

    def answers(self) -> bool:
        """Whether it answers a client."""
        raise NotImplementedError

    def running(self) -> bool:
        """Whether it answers a client."""
        return self.answers()

    def start(self) -> None:
        """Wait until it answers; ServerUnavailable if it does not."""
        if wait_until(lambda: True if self.answers() else None, START_TIMEOUT_S, 0.5) is None:
            raise ServerUnavailable(
                f"no answer from {self.address} in {START_TIMEOUT_S:.0f} s",
                "start that server, or unset the EPOCHAL_* variable that names it",
            )

    def stop(self) -> NoReturn:
        """Refused."""
        raise ServerUnavailable(
            f"the server at {self.address} is not ours to stop",
            "unset the EPOCHAL_* variable that names it, and an embedded one is used",
        )

    crash = restart = stop

    def close(self) -> None:
        """Leave it running."""


class ForeignPostgres(ForeignServer, Databases):
    """A Postgres named by a connection string of its superuser."""

    def __init__(self, dsn: str) -> None:
        from psycopg.conninfo import conninfo_to_dict

        parts = conninfo_to_dict(dsn)
        self.address = f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}"
        self.user = str(parts.get("user", "postgres"))
        self.password = str(parts["password"]) if "password" in parts else None

    def answers(self) -> bool:
        return Databases.answers(self)


class ForeignKafka(ForeignServer, Topics):
    """A Kafka named by its bootstrap server."""

    def __init__(self, bootstrap: str) -> None:
        self.address = bootstrap

    def answers(self) -> bool:
        return Topics.answers(self)

    @property
    def proxied_port(self) -> int:
        """Refused: only a listener of its own makes clients come back through a proxy."""
        return self.stop()

    @property
    def proxied_upstream(self) -> str:
        """Refused, as `proxied_port`."""
        return self.stop()
