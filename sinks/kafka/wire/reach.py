"""All that is needed to open connections to a cluster, read from librdkafka's options."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epochal.sinks.kafka.wire import options as table
from epochal.sinks.kafka.wire.errors import NotByHand
from epochal.sinks.kafka.wire.messages import Address
from epochal.sinks.kafka.wire.pauses import Backoff
from epochal.sinks.kafka.wire.tls import Tls

DEFAULT_PORT = 9092
MOST_IN_FLIGHT = 5
"""How many batches of one producer a broker can tell from repeats."""

HIGHEST_LEVEL = {"gzip": 9}
"""Of codecs whose levels end below those that ``compression.level`` takes."""

ATTEMPT_S = 10.0
"""How long one attempt at a request may take, unless ``socket.timeout.ms`` says otherwise.  Then another connection is
tried, so that a broker that has vanished costs a part of the time and not all of it."""

RETRY = Backoff(0.02, 1.0)
RECONNECT = Backoff(0.05, 2.0)

_SERVER = re.compile(
    r"(?:(?P<protocol>\w+)://)?(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:\[\]\s/]+))(?::(?P<port>\d+))?"
)


@dataclass(frozen=True)
class Sasl:
    """Who we are: a user with a password, or a function that returns a token."""

    mechanism: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    oauth_cb: Callable[..., Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SocketOptions:
    """How sockets are made; 0 leaves the size of a buffer to the system."""

    family: str = "any"
    keepalive: bool = False
    nodelay: bool = True
    send_buffer: int = 0
    receive_buffer: int = 0
    setup_s: float = 30.0


@dataclass(frozen=True)
class Reach:
    """All that a process needs to open connections.

    It can be pickled, and then holds the secrets: it is sent to tasks and never kept.  ``repr`` shows none.
    """

    bootstrap: tuple[Address, ...]
    timeout: float
    """Seconds that a request with its repeats may take, where no deadline is given."""
    client_id: str = "epochal"
    tls: Tls | None = None
    sasl: Sasl | None = None
    socket: SocketOptions = SocketOptions()
    attempt_s: float = ATTEMPT_S
    """Seconds that one attempt at a request may take."""
    request_timeout_ms: int = 30_000
    """How long a broker may wait for its replicas before it answers a produce request."""
    retry: Backoff = RETRY
    reconnect: Backoff = RECONNECT


def reach_of(bootstrap: str, options: Mapping[str, Any], timeout: float) -> Reach:
    """Return how these servers are reached.

    ``options`` are librdkafka's.  Raise ``NotByHand`` for the first option that is not honoured by hand, and for a
    value that is of the wrong kind: librdkafka then says what it thinks of it.  No file is read here.
    """
    given = table.read(options)
    protocol = given.get("security.protocol", "plaintext")
    servers = tuple(_address(server, protocol) for server in bootstrap.split(",") if server.strip())
    if not servers:
        raise NotByHand("bootstrap.servers", f"{bootstrap!r} names no server")
    return Reach(
        servers,
        timeout,
        client_id=given.get("client.id", Reach.client_id),
        tls=_tls(given) if protocol in ("ssl", "sasl_ssl") else None,
        sasl=_sasl(given) if protocol.startswith("sasl_") else None,
        socket=_socket(given),
        attempt_s=given.get("socket.timeout.ms", ATTEMPT_S * 1000) / 1000,
        request_timeout_ms=given.get("request.timeout.ms", Reach.request_timeout_ms),
        retry=_backoff(given, "retry.backoff", RETRY),
        reconnect=_backoff(given, "reconnect.backoff", RECONNECT),
    )


def codec_of(options: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Return the codec of record batches, None for none, and its level, None for its default.

    As in librdkafka, a level that the codec has not is its highest, and snappy has no levels.
    """
    given = table.only(options, "compression.codec", "compression.level")
    codec, level = given.get("compression.codec", "none"), given.get("compression.level", -1)
    if codec == "none":
        return None, None
    return codec, None if level < 0 or codec == "snappy" else min(level, HIGHEST_LEVEL.get(codec, level))


def batch_limits(options: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return how many bytes and how many rows a record batch may have, each None where it is not given."""
    given = table.only(options, "batch.size", "batch.num.messages")
    return given.get("batch.size"), given.get("batch.num.messages")


def in_flight_of(options: Mapping[str, Any]) -> int:
    """Return how many produce requests may wait for their answers on one connection."""
    name = "max.in.flight.requests.per.connection"
    given: int = table.only(options, name).get(name, MOST_IN_FLIGHT)
    return min(MOST_IN_FLIGHT, given)


def _address(server: str, protocol: str) -> Address:
    """Read ``host``, ``host:port`` or ``[v6]:port``, each perhaps after ``PROTOCOL://``."""
    found = _SERVER.fullmatch(server.strip())
    if found is None or not 0 < int(found["port"] or DEFAULT_PORT) < 65536:
        raise NotByHand("bootstrap.servers", f"{server.strip()!r} is not host:port")
    if found["protocol"] and found["protocol"].lower() != protocol:
        raise NotByHand("bootstrap.servers", f"{server.strip()!r} names another protocol than security.protocol")
    return Address(found["v6"] or found["host"], int(found["port"] or DEFAULT_PORT))


def _tls(given: Mapping[str, Any]) -> Tls:
    certificate = [name for name in given if name.startswith("ssl.certificate.")]
    key = [name for name in given if name in ("ssl.key.location", "ssl.key.pem")]
    for names in (certificate, key):
        if len(names) > 1:
            raise NotByHand(names[1], f"{names[0]} is given, too")
    if key and not certificate:
        raise NotByHand(key[0], "a key needs its certificate: ssl.certificate.location or ssl.certificate.pem")
    return Tls(
        ca_location=given.get("ssl.ca.location"),
        ca_pem=given.get("ssl.ca.pem"),
        certificate_location=given.get("ssl.certificate.location"),
        certificate_pem=given.get("ssl.certificate.pem"),
        key_location=given.get("ssl.key.location"),
        key_pem=given.get("ssl.key.pem"),
        key_password=given.get("ssl.key.password"),
        crl_location=given.get("ssl.crl.location"),
        ciphers=given.get("ssl.cipher.suites"),
        verifies=given.get("enable.ssl.certificate.verification", True),
        identifies=given.get("ssl.endpoint.identification.algorithm", "https") == "https",
    )


def _sasl(given: Mapping[str, Any]) -> Sasl:
    mechanism = given.get("sasl.mechanisms")
    if mechanism is None:
        raise NotByHand("sasl.mechanisms", "it is GSSAPI unless it is given, and Kerberos is librdkafka's alone")
    if mechanism == "OAUTHBEARER":
        return Sasl(mechanism, oauth_cb=_callback(given))
    for name in ("sasl.username", "sasl.password"):
        if name not in given:
            raise NotByHand(name, f"{mechanism} needs it")
    return Sasl(mechanism, given["sasl.username"], given["sasl.password"])


def _callback(given: Mapping[str, Any]) -> Callable[..., Any]:
    callback: Callable[..., Any] | None = given.get("oauth_cb")
    if callback is None:
        raise NotByHand("oauth_cb", "OAUTHBEARER needs it")
    try:
        pickle.dumps(callback)
    except Exception as error:  # whatever the callback's own code raises
        raise NotByHand("oauth_cb", f"it cannot be sent to tasks: pickle raised {type(error).__name__}") from None
    return callback


def _socket(given: Mapping[str, Any]) -> SocketOptions:
    default = SocketOptions()
    return SocketOptions(
        family=given.get("broker.address.family", default.family),
        keepalive=given.get("socket.keepalive.enable", default.keepalive),
        nodelay=given.get("socket.nagle.disable", default.nodelay),
        send_buffer=given.get("socket.send.buffer.bytes", default.send_buffer),
        receive_buffer=given.get("socket.receive.buffer.bytes", default.receive_buffer),
        setup_s=given.get("socket.connection.setup.timeout.ms", default.setup_s * 1000) / 1000,
    )


def _backoff(given: Mapping[str, Any], name: str, default: Backoff) -> Backoff:
    """Return the pauses; where only the first or only the longest is given, the other one follows it."""
    first = given.get(f"{name}.ms", default.first * 1000) / 1000
    most = given.get(f"{name}.max.ms", max(default.most, first) * 1000) / 1000
    return Backoff(min(first, most), most)
