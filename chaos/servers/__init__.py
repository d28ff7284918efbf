"""Where do the servers come from that demo, tests and benchmarks need?

They are embedded servers, containers, or the user's own servers.

`EPOCHAL_SERVERS` is `embedded` (default) or `containers`. `EPOCHAL_POSTGRES_DSN` and `EPOCHAL_KAFKA_BOOTSTRAP` name a
server that runs already. It is used as it is and cannot be stopped or crashed from here. `EPOCHAL_POSTGRES_VERSION` and
`EPOCHAL_KAFKA_VERSION` choose the version of an embedded server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from epochal.chaos.servers.errors import ServerUnavailable
from epochal.coordinator.environment.versions import KAFKA_BROKER, POSTGRES

__all__ = ["Kafka", "Postgres", "ServerUnavailable", "choose_kafka", "choose_postgres"]


class Lifecycle(Protocol):
    """The methods of every server. After `stop` or `crash`, `start` uses the same data and port."""

    @property
    def address(self) -> str: ...
    def running(self) -> bool: ...
    def start(self) -> object: ...
    def stop(self) -> None: ...
    def crash(self) -> None: ...
    def restart(self) -> object: ...
    def close(self) -> None: ...


class Postgres(Lifecycle, Protocol):
    """A Postgres whose superuser is available."""

    @property
    def dsn(self) -> str: ...
    def database_dsn(self, database: str, user: str | None = None, port: int | None = None) -> str: ...
    def create_database(self, name: str) -> str: ...
    def drop_database(self, name: str) -> None: ...


class Kafka(Lifecycle, Protocol):
    """A broker with a second listener for a proxy; see KafkaServer."""

    @property
    def proxied_port(self) -> int: ...
    @property
    def bootstrap(self) -> str: ...
    @property
    def proxied_upstream(self) -> str: ...
    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None: ...
    def delete_topic(self, name: str) -> None: ...


def choose_postgres(settings: Mapping[str, str] | None = None) -> Postgres:
    """Return the Postgres that the environment names, not started yet. `settings` are used by an embedded one."""
    named = os.environ.get("EPOCHAL_POSTGRES_DSN")
    if named:
        from epochal.chaos.servers.foreign import ForeignPostgres

        return ForeignPostgres(named)
    if chosen() == "containers":
        from epochal.chaos.servers.containers import ContainerPostgres

        return ContainerPostgres()
    from epochal.chaos.servers.postgres import PostgresServer

    return PostgresServer(version=os.environ.get("EPOCHAL_POSTGRES_VERSION", POSTGRES[-1]), settings=settings)


def choose_kafka(*, long_lived: bool = False) -> Kafka:
    """Return the Kafka that the environment names, not started yet. `long_lived`: an embedded one will be measured."""
    named = os.environ.get("EPOCHAL_KAFKA_BOOTSTRAP")
    if named:
        from epochal.chaos.servers.foreign import ForeignKafka

        return ForeignKafka(named)
    if chosen() == "containers":
        from epochal.chaos.servers.containers import ContainerKafka

        return ContainerKafka()
    from epochal.chaos.servers.kafka import KafkaServer

    return KafkaServer(version=os.environ.get("EPOCHAL_KAFKA_VERSION", KAFKA_BROKER), long_lived=long_lived)


def chosen() -> str:
    """Return `embedded` or `containers`. Raises ServerUnavailable for any other value of `EPOCHAL_SERVERS`."""
    choice = os.environ.get("EPOCHAL_SERVERS", "embedded")
    if choice not in ("embedded", "containers"):
        raise ServerUnavailable(f"EPOCHAL_SERVERS={choice!r}", "set it to `embedded` or `containers`, or unset it")
    return choice
