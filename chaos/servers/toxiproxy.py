"""Toxiproxy between a client and a server: lost answers, cut and half-open connections, delays."""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochal.chaos.servers import go
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.process import LOOPBACK, Command, Server, free_port
from epochal.coordinator.environment.versions import TOXIPROXY

MODULE = "github.com/Shopify/toxiproxy/v2"
REQUEST_TIMEOUT_S = 60
HELD_MS = 600_000  # longer than any test


class Proxy:
    """A link from 127.0.0.1:`port` to an upstream. A fault holds for open and for new connections until `clear`."""

    def __init__(self, server: ToxiproxyServer, name: str, port: int) -> None:
        self._server = server
        self._path = f"/proxies/{name}"
        self.name = name
        self.port = port

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{LOOPBACK}:{self.port}"

    def lose_answer(self) -> None:
        """Let requests arrive, but drop the next answer and close its connection at once."""
        self._add("lose_answer", "limit_data", {"bytes": 0})

    def half_open(self) -> None:
        """Let requests arrive, but no answers, and keep connections open. The client must limit its wait."""
        self._add("half_open", "timeout", {"timeout": 0})

    def latency(self, milliseconds: int, jitter: int = 0) -> None:
        """Delay every answer by so many milliseconds."""
        self._add("latency", "latency", {"latency": milliseconds, "jitter": jitter})

    def slow_close(self, milliseconds: int) -> None:
        """When one side closes a connection, keep it open for the other side for so many milliseconds."""
        self._add("slow_close", "slow_close", {"delay": milliseconds})

    def hold_requests(self) -> None:
        """Hold back what clients send. `clear` delivers it, even if its client is gone."""
        self._add("hold_requests", "latency", {"latency": HELD_MS, "jitter": 0}, stream="upstream")

    def cut(self) -> None:
        """Close all connections and refuse new ones."""
        self._server.request("post", self._path, {"enabled": False})

    def clear(self) -> None:
        """Undo every fault."""
        for toxic in self._server.request("get", f"{self._path}/toxics"):
            self._server.request("delete", f"{self._path}/toxics/{toxic['name']}")
        self._server.request("post", self._path, {"enabled": True})

    def lead_to(self, upstream: str) -> None:
        """Close all connections, and lead new ones to another `host:port`."""
        self._server.request("post", self._path, {"upstream": upstream})

    def close(self) -> None:
        """Remove the proxy with its connections."""
        self._server.request("delete", self._path)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, name: str, kind: str, attributes: Mapping[str, int], stream: str = "downstream") -> None:
        toxic = {"name": name, "type": kind, "stream": stream, "toxicity": 1.0, "attributes": attributes}
        self._server.request("post", f"{self._path}/toxics", toxic)


class ToxiproxyServer(Server):
    """The proxy process. `address` is that of its HTTP interface."""

    kind = "toxiproxy"

    def proxy(self, upstream: str, *, port: int | None = None) -> Proxy:
        """Make a link to `upstream` (`host:port`) from `port`, by default a free port."""
        name = f"link-{uuid.uuid4().hex[:8]}"
        port = port or free_port()
        self.request("post", "/proxies", {"name": name, "upstream": upstream, "listen": f"{LOOPBACK}:{port}"})
        return Proxy(self, name, port)

    def request(self, verb: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Call the HTTP interface once, for at most REQUEST_TIMEOUT_S. Raises ServerUnavailable for an error answer.

        toxiproxy-python's own objects are not used: they become outdated, never time out, and ignore port conflicts.
        """
        from toxiproxy.api import APIConsumer
        from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

        APIConsumer.host, APIConsumer.port = LOOPBACK, self.port  # class attributes: only one connection at a time
        options: dict[str, Any] = {"timeout": REQUEST_TIMEOUT_S} | ({} if body is None else {"json": body})
        try:
            answer = getattr(APIConsumer, verb)(path, **options)
        except (InvalidToxic, NotFound, ProxyExists) as refused:
            raise _refused(verb, path, body, repr(refused)) from None
        if answer.status_code >= 400:
            raise _refused(verb, path, body, f"{answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    def _prepare(self) -> None:
        self._binary = binary()

    def _command(self) -> Command:
        return Command([str(self._binary), "-host", LOOPBACK, "-port", str(self.port)])

    def _ready(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((LOOPBACK, self.port), timeout=1).close()
            return True
        return False


def _refused(verb: str, path: str, body: object, answer: str) -> ServerUnavailable:
    return ServerUnavailable(
        f"Toxiproxy answered {answer.strip()} to {verb} {path} {body}",
        "look whether the proxy is still there, and whether its port is free",
    )


def binary() -> Path:
    """Return the Toxiproxy server of the pinned version, built once into the cache."""
    return go.program("toxiproxy", f"{MODULE}/cmd/server", TOXIPROXY, f"-X {MODULE}.Version={TOXIPROXY}")
