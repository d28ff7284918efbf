"""Where a campaign runs: a working folder, embedded servers if requested, and new names for each round.

Targets find what they need in environment variables: ``EPOCHAL_CHAOS_POSTGRES`` (a connection string),
``EPOCHAL_CHAOS_KAFKA`` (bootstrap servers), ``EPOCHAL_CHAOS_FOLDER`` (a folder that is removed at the end) and
``EPOCHAL_CHAOS_RUN`` (a name that only this round has; with a Kafka server, a topic of that name exists).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from epochal.chaos.job.targets import RUN, Usage
from epochal.chaos.servers.kafka import KafkaServer
from epochal.chaos.servers.postgres import PostgresServer
from epochal.chaos.servers.process import Server
from epochal.chaos.servers.toxiproxy import Proxy, ToxiproxyServer
from epochal.chaos.strike.strikes import SERVERS

POSTGRES = "EPOCHAL_CHAOS_POSTGRES"
KAFKA = "EPOCHAL_CHAOS_KAFKA"
FOLDER = "EPOCHAL_CHAOS_FOLDER"
PARTITIONS = 2


class Bench:
    """The folder, the servers, and ``links``: proxies in front of servers, which can disturb the network."""

    def __init__(self, folder: Path, servers: Mapping[str, Server], links: Mapping[str, Proxy]) -> None:
        self.folder = folder
        self.servers = servers
        self.links = links
        self._rounds = 0

    @contextlib.contextmanager
    def round(self) -> Iterator[Path]:
        """Make a folder for one round, and set the round's names in the environment of this process meanwhile."""
        self._rounds += 1
        folder = self.folder / f"round-{self._rounds}"
        folder.mkdir()
        name = f"chaos-{uuid.uuid4().hex[:10]}"
        ours = {RUN: name, FOLDER: str(folder), **self._addresses(name)}
        before = {key: os.environ.get(key) for key in ours}
        os.environ.update(ours)
        try:
            yield folder
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value

    def _addresses(self, name: str) -> dict[str, str]:
        found = {}
        if isinstance(postgres := self.servers.get("postgres"), PostgresServer):
            found[POSTGRES] = postgres.create_database(name.replace("-", "_"))
            if link := self.links.get("postgres"):
                found[POSTGRES] = found[POSTGRES].replace(postgres.address, link.address)
        if isinstance(kafka := self.servers.get("kafka"), KafkaServer):
            kafka.create_topic(name, PARTITIONS)
            found[KAFKA] = self.links["kafka"].address if "kafka" in self.links else kafka.bootstrap
        return found


@contextlib.contextmanager
def bench(servers: Sequence[str], *, proxied: bool = False) -> Iterator[Bench]:
    """Start the named servers, and always stop and remove them at the end.  ``proxied``: put a proxy before each.

    Raises Usage for an unknown name.
    """
    unknown = [name for name in servers if name not in SERVERS]
    if unknown:
        raise Usage(f"no server {unknown[0]!r} can be started: {' or '.join(SERVERS)}")
    folder = Path(tempfile.mkdtemp(prefix="epochal-chaos-"))
    folder.chmod(0o755)  # Postgres may have to run as another user, who needs access to its data
    try:
        with contextlib.ExitStack() as stack:
            started = {name: stack.enter_context(_server(name)) for name in servers}
            links = _links(stack, started) if proxied else {}
            yield Bench(folder, started, links)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _server(name: str) -> Server:
    return PostgresServer() if name == "postgres" else KafkaServer()


def _links(stack: contextlib.ExitStack, started: Mapping[str, Server]) -> dict[str, Proxy]:
    proxies = stack.enter_context(ToxiproxyServer())
    links = {}
    for name, server in started.items():
        if isinstance(server, KafkaServer):  # the broker tells its clients to connect to the proxy's port
            link = proxies.proxy(server.proxied_upstream, port=server.proxied_port)
        else:
            link = proxies.proxy(server.address)
        links[name] = stack.enter_context(link)
    return links
