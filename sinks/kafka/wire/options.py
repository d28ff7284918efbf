"""librdkafka's options: which ones are honoured by hand, and which values they take.

Names are case-sensitive and values are read as librdkafka reads them: ``True``, ``"true"``, ``"t"`` and ``"1"`` say the
same, and the words of an enumeration may have any case.  ``None`` says that an option is not given.

Source: librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from epochal.sinks.kafka.wire.errors import NotByHand

Kind = Callable[[str, Any], Any]
"""Reads the value of the named option, or raises ``NotByHand``."""

INT_MAX = 2**31 - 1

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FAMILIES = ("any", "v4", "v6")

_TRUE = ("true", "t", "1")
_FALSE = ("false", "f", "0")
_WHOLE = re.compile(r"[+-]?[0-9]+")


def boolean(name: str, value: Any) -> bool:
    word = _plain(name, value, "true or false").lower()
    if word not in _TRUE + _FALSE:
        raise NotByHand(name, f"{value!r} is not true or false")
    return word in _TRUE


def whole(lowest: int, highest: int) -> Kind:
    """Take a whole number from ``lowest`` to ``highest``."""

    def read(name: str, value: Any) -> int:
        text = "" if isinstance(value, bool) else _plain(name, value, "a whole number")
        if not _WHOLE.fullmatch(text) or not lowest <= int(text) <= highest:
            raise NotByHand(name, f"{value!r} is not a whole number from {lowest} to {highest}")
        return int(text)

    return read


def one_of(words: tuple[str, ...], *, cased: bool = False) -> Kind:
    """Take one of these words; with ``cased``, only as they are written here."""

    def read(name: str, value: Any) -> str:
        word = _plain(name, value, f"one of {', '.join(words)}")
        known = word if cased else word.lower()
        if known not in words:
            raise NotByHand(name, f"{word!r} is not spoken by hand, only {', '.join(words)}")
        return known

    return read


def text(name: str, value: Any) -> str:
    """Take a text, or a path."""
    return _plain(name, os.fspath(value) if isinstance(value, os.PathLike) else value, "a text", strip=False)


def secret(name: str, value: Any) -> str:
    """Take a text that no message may show."""
    if not isinstance(value, str) or not value:
        raise NotByHand(name, f"it is not a text but {type(value).__name__}" if value else "it is empty")
    return value


def function(name: str, value: Any) -> Callable[..., Any]:
    if not callable(value):
        raise NotByHand(name, f"it is not a function but {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def anything(name: str, value: Any) -> Any:
    """Take every value: the option means nothing here."""
    del name
    return value


def _plain(name: str, value: Any, wanted: str, *, strip: bool = True) -> str:
    if not isinstance(value, (str, int, float)) or value == "":
        raise NotByHand(name, f"it is {wanted}, and was given as {type(value).__name__ if value else 'an empty text'}")
    return str(value).strip() if strip else str(value)


HONOURED: Mapping[str, Kind] = {
    "security.protocol": one_of(PROTOCOLS),
    "ssl.ca.location": text,
    "ssl.ca.pem": text,
    "ssl.certificate.location": text,
    "ssl.certificate.pem": text,
    "ssl.key.location": text,
    "ssl.key.pem": secret,
    "ssl.key.password": secret,
    "ssl.crl.location": text,
    "ssl.cipher.suites": text,
    "enable.ssl.certificate.verification": boolean,
    "ssl.endpoint.identification.algorithm": one_of(("none", "https")),
    "sasl.mechanisms": one_of(MECHANISMS, cased=True),
    "sasl.username": text,
    "sasl.password": secret,
    "sasl.oauthbearer.method": one_of(("default",)),
    "oauth_cb": function,
    "client.id": text,
    "client.dns.lookup": one_of(("use_all_dns_ips",)),
    "broker.address.family": one_of(FAMILIES),
    "socket.keepalive.enable": boolean,
    "socket.nagle.disable": boolean,
    "socket.send.buffer.bytes": whole(0, 100_000_000),
    "socket.receive.buffer.bytes": whole(0, 100_000_000),
    "socket.connection.setup.timeout.ms": whole(1000, INT_MAX),
    "socket.timeout.ms": whole(10, 300_000),
    "request.timeout.ms": whole(1, 900_000),
    "reconnect.backoff.ms": whole(0, 3_600_000),
    "reconnect.backoff.max.ms": whole(0, 3_600_000),
    "retry.backoff.ms": whole(1, 300_000),
    "retry.backoff.max.ms": whole(1, 300_000),
    "compression.codec": one_of(CODECS),
    "compression.level": whole(-1, 12),
    "batch.size": whole(1, INT_MAX),
    "batch.num.messages": whole(1, 1_000_000),
    "max.in.flight.requests.per.connection": whole(1, 1_000_000),
}
"""Options that are honoured, and the values that are."""

ALIASES: Mapping[str, str] = {
    "sasl.mechanism": "sasl.mechanisms",
    "compression.type": "compression.codec",
    "max.in.flight": "max.in.flight.requests.per.connection",
}

GUARANTEED: Mapping[str, Kind] = {
    "acks": one_of(("all", "-1")),
    "request.required.acks": one_of(("all", "-1")),
    "enable.idempotence": one_of(_TRUE),
}
"""Options that say what is so in any case, because the promise needs it.  With any other value, acknowledged rows could
be lost or sent twice, so ``client.py`` refuses it."""

MEANINGLESS = re.compile(
    r"linger\.ms|queue\.buffering\..+|sticky\.partitioning\.linger\.ms|message\.send\.max\.retries|retries"
    r"|metadata\.max\.age\.ms|topic\.metadata\.(refresh|propagation)\..+|connections\.max\.idle\.ms"
    r"|statistics\.interval\.ms|debug|log_level|enable\.metrics\.push|message\.copy\.max\.bytes|delivery\.report\..+"
    r"|api\.version\..+|broker\.version\.fallback"
)
"""Options of parts that librdkafka has and we have not: its queue, its threads, its metadata cache, its reports."""

_REASONS = (
    (r"ssl\.keystore\..*", "key stores in PKCS#12 are read by librdkafka alone"),
    (r"ssl\.(engine|providers|curves|sigalgs|ca\.certificate\.stores).*", "Python's TLS has no such setting"),
    (r"https\..*|sasl\.oauthbearer\..*", "tokens are fetched by librdkafka alone; oauth_cb can fetch them, too"),
    (r"sasl\.kerberos\..*", "Kerberos is spoken by librdkafka alone"),
    (r"plugin\..*", "plugins are librdkafka's"),
)


def _reader(name: str) -> Kind | None:
    if MEANINGLESS.fullmatch(name):
        return anything
    return HONOURED.get(name) or GUARANTEED.get(name)


def _why(name: str) -> str:
    return next((why for pattern, why in _REASONS if re.fullmatch(pattern, name)), "it is librdkafka's alone")


def read(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of these options under the names of ``HONOURED``.

    Raise ``NotByHand`` for the first one that is not honoured.  Of two names of one option the later counts.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        own = ALIASES.get(name, name)
        kind = _reader(own)
        if kind is None:
            raise NotByHand(name, _why(name))
        if value is not None:
            found[own] = kind(name, value)
    return found


def only(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Read these options and no others, whatever else is given."""
    return read({name: value for name, value in options.items() if ALIASES.get(name, name) in names})
