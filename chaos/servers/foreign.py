"""The user's own servers, named by address. They are used as they are, and never stopped or crashed."""

from __future__ import annotations

from typing import NoReturn

from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.kafka import Topics
from epochal.chaos.servers.postgres import Databases
from epochal.chaos.servers.process import START_TIMEOUT_S, wait_until


class ForeignServer:
    """A server that somebody else runs."""

    address: str

    def answers(self) -> bool:
        """Return whether it answers a client."""
        raise NotImplementedError

    def running(self) -> bool:
        """Return whether it answers a client."""
        return self.answers()

    def start(self) -> None:
        """Wait until it answers. Raises ServerUnavailable after START_TIMEOUT_S."""
        if wait_until(lambda: True if self.answers() else None, START_TIMEOUT_S, 0.5) is None:
            raise ServerUnavailable(
                f"no answer from {self.address} in {START_TIMEOUT_S:.0f} s",
                "start that server, or unset the EPOCHAL_* variable that names it",
            )

    def stop(self) -> NoReturn:
        """Always raise ServerUnavailable."""
        raise ServerUnavailable(
            f"the server at {self.address} is not ours to stop",
            "unset the EPOCHAL_* variable that names it, and an embedded one is used",
        )

    crash = restart = stop

    def close(self) -> None:
        """Do nothing; the server goes on running."""


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
        """Always raise: without a second listener, clients would not connect to the proxy again."""
        return self.stop()

    @property
    def proxied_upstream(self) -> str:
        """Always raise, as `proxied_port` does."""
        return self.stop()
