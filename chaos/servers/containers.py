"""Postgres and Kafka in containers, through testcontainers.

As a program it checks whether a container engine answers: exit status 0, or 3 with one line that says why not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.kafka import SETTINGS as KAFKA_SETTINGS
from epochal.chaos.servers.kafka import Topics, await_fencing, controller_only
from epochal.chaos.servers.postgres import Databases
from epochal.chaos.servers.process import LOOPBACK, START_TIMEOUT_S, free_port, wait_until
from epochal.coordinator.environment.versions import KAFKA_BROKER, POSTGRES

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

POSTGRES_IMAGE = os.environ.get("EPOCHAL_POSTGRES_IMAGE", f"postgres:{POSTGRES[0]}")
KAFKA_IMAGE = os.environ.get("EPOCHAL_KAFKA_IMAGE", f"apache/kafka:{KAFKA_BROKER}")
KAFKA_DATA = "/var/lib/kafka/data"  # a volume of both images, which a second container can see
STOP_TIMEOUT_S = 60
NO_ENGINE = 3

# The watchdog of testcontainers is a separate image, which may not be reachable.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")


class ContainerServer:
    """A server in a container, on fixed loopback ports, so that it has the same address after a restart."""

    kind: str
    address: str
    _container: DockerContainer

    def __init__(self) -> None:
        self._made = False
        self._crashed = False

    def answers(self) -> bool:
        """Return whether the server answers a client."""
        raise NotImplementedError

    def running(self) -> bool:
        """Return whether the container runs."""
        if not self._made:
            return False
        docker = self._container.get_wrapped_container()
        docker.reload()
        return bool(docker.status == "running")

    def start(self) -> None:
        """Create or start the container, and wait until the server answers. Raises ServerUnavailable if it does not."""
        if self._crashed:
            self._recover()
            self._crashed = False
        if self._made:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._made = True
        if wait_until(lambda: True if self.answers() else None, START_TIMEOUT_S, 0.2) is None:
            log = _log(self._container)[-3000:]
            self.close()
            raise ServerUnavailable(
                f"{self.kind} in a container did not answer on {self.address} in {START_TIMEOUT_S:.0f} s",
                "the log above says why",
                log,
            )

    def stop(self) -> None:
        """Ask the server to stop. The container stays."""
        if self.running():
            self._container.get_wrapped_container().stop(timeout=STOP_TIMEOUT_S)

    def crash(self) -> None:
        """Kill everything in the container with SIGKILL."""
        self._crashed = True
        self._container.get_wrapped_container().kill()
        if wait_until(lambda: None if self.running() else True, STOP_TIMEOUT_S) is None:
            raise ServerUnavailable(f"{self.kind}'s container outlives SIGKILL", "look at it with docker ps")

    def restart(self) -> None:
        """Stop if it is running, and start on the same data and ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Remove the container with its data."""
        if self._made:
            self._container.stop()
            self._made = False

    def _recover(self) -> None:
        """Repair data that a crash left behind, if necessary. Called before the next start."""

    def _publish(self, ports: Mapping[int, int]) -> None:
        """Publish ports on loopback only: container port -> host port."""
        published: Any = {f"{inside}/tcp": (LOOPBACK, outside) for inside, outside in ports.items()}
        self._container.ports = published


class ContainerPostgres(ContainerServer, Databases):
    """Postgres from the image in `EPOCHAL_POSTGRES_IMAGE`, by default the official one."""

    kind = "postgres"

    def __init__(self) -> None:
        from testcontainers.community.postgres import PostgresContainer

        super().__init__()
        port = free_port()
        self.address = f"{LOOPBACK}:{port}"
        self._container = PostgresContainer(
            POSTGRES_IMAGE, username=self.user, password="unused", dbname="postgres", driver=None
        )
        self._container.with_env("POSTGRES_HOST_AUTH_METHOD", "trust")  # no password, like the embedded one
        self._container.with_command(["postgres", "-c", "max_prepared_transactions=64"])
        self._publish({5432: port})

    def answers(self) -> bool:
        return Databases.answers(self)


class ContainerKafka(ContainerServer, Topics):
    """A one-node broker from the image in `EPOCHAL_KAFKA_IMAGE`, by default the official one.

    KAFKA_* variables configure it.
    """

    kind = "kafka"

    def __init__(self) -> None:
        from testcontainers.core.container import DockerContainer

        super().__init__()
        port = free_port()
        self.address = f"{LOOPBACK}:{port}"
        self.proxied_port = free_port()
        proxied_listen = free_port()
        self.proxied_upstream = f"{LOOPBACK}:{proxied_listen}"
        self._container = DockerContainer(KAFKA_IMAGE, env=_variables(self._settings()))
        self._publish({9092: port, 9094: proxied_listen})

    def answers(self) -> bool:
        return Topics.answers(self)

    def _recover(self) -> None:
        """Let a controller without a broker, in another container on the same data, fence the crashed broker."""
        from testcontainers.core.container import DockerContainer

        settings = controller_only(self._settings(), "CONTROLLER://:9093")
        crashed = self._container.get_wrapped_container().id
        env = {**_variables(settings), "KAFKA_LOG4J_LOGGERS": "org.apache.kafka.controller.QuorumController=DEBUG"}
        controller = DockerContainer(KAFKA_IMAGE, env=env, volumes_from=[crashed])
        controller.start()
        try:
            await_fencing(lambda: _log(controller))
            controller.get_wrapped_container().stop(timeout=STOP_TIMEOUT_S)
        finally:
            controller.stop(delete_volume=False)

    def _settings(self) -> dict[str, str]:
        """The settings of the embedded broker, with a listener INTERNAL for its own connections in the container."""
        kinds = ("CONTROLLER", "INTERNAL", "PLAINTEXT", "PROXIED")
        return {
            **KAFKA_SETTINGS,
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": ",".join(f"{kind}:PLAINTEXT" for kind in kinds),
            "controller.quorum.voters": "1@localhost:9093",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093,PROXIED://:9094,INTERNAL://:9095",
            "advertised.listeners": (
                f"PLAINTEXT://{self.address},PROXIED://{LOOPBACK}:{self.proxied_port},INTERNAL://localhost:9095"
            ),
            "log.dirs": KAFKA_DATA,
        }


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    """The broker's settings as environment variables for the image."""
    return {"KAFKA_" + name.replace(".", "_").upper(): value for name, value in settings.items()}


def _log(container: DockerContainer) -> str:
    """Everything that a container has printed."""
    return b"".join(container.get_logs()).decode(errors="replace")


def engine_missing() -> str | None:
    """Return why no container engine answers; None if one does."""
    import docker

    try:
        client = docker.from_env(timeout=60)
        client.ping()
        client.close()
    except docker.errors.DockerException as error:
        return f"no container engine answers: {str(error).splitlines()[0]}"
    return None


if __name__ == "__main__":
    missing = engine_missing()
    if missing is not None:
        print(missing, file=sys.stderr)
        sys.exit(NO_ENGINE)
