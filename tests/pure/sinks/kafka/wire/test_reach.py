"""Which of librdkafka's options are honoured by hand, with which values, and what is refused."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochal.sinks.kafka.wire import options as table
from epochal.sinks.kafka.wire.errors import NotByHand
from epochal.sinks.kafka.wire.messages import Address
from epochal.sinks.kafka.wire.pauses import Backoff
from epochal.sinks.kafka.wire.reach import (
    ATTEMPT_S,
    Reach,
    Sasl,
    SocketOptions,
    batch_limits,
    codec_of,
    in_flight_of,
    reach_of,
)
from epochal.sinks.kafka.wire.tls import Tls

SECRET = "open-Sesame-42"
TLS = {"security.protocol": "SSL"}
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "pw"}


def reach(**given: Any) -> Reach:
    """Options are written with ``_`` for each dot."""
    return of({name.replace("_", "."): value for name, value in given.items()})


def of(options: Mapping[str, Any], bootstrap: str = "one:1") -> Reach:
    return reach_of(bootstrap, options, 30)


def fetch_token(_config: str | None) -> tuple[str, float]:
    return SECRET, 0.0


def test_without_options_a_broker_is_reached_in_plain_text() -> None:
    made = of({}, " one:1, two ,[::1]:9094")
    assert made == Reach((Address("one", 1), Address("two", 9092), Address("::1", 9094)), 30)
    assert (made.tls, made.sasl, made.attempt_s) == (None, None, ATTEMPT_S)


@pytest.mark.parametrize("bootstrap", ["", " , ", "one:x", "one:0", "one:70000", "a b:1", "one:1:2", "http://one:1"])
def test_servers_that_are_not_host_and_port_are_refused(bootstrap: str) -> None:
    with pytest.raises(NotByHand, match=r"bootstrap\.servers"):
        of({}, bootstrap)


def test_a_server_may_name_the_protocol() -> None:
    assert of(TLS, "SSL://one:1").bootstrap == (Address("one", 1),)
    with pytest.raises(NotByHand, match="names another protocol"):
        of({}, "SSL://one:1")


SOCKETS = {
    "broker.address.family": ("V4", SocketOptions(family="v4")),
    "socket.keepalive.enable": ("true", SocketOptions(keepalive=True)),
    "socket.nagle.disable": (False, SocketOptions(nodelay=False)),
    "socket.send.buffer.bytes": ("1000", SocketOptions(send_buffer=1000)),
    "socket.receive.buffer.bytes": (1000, SocketOptions(receive_buffer=1000)),
    "socket.connection.setup.timeout.ms": (1500, SocketOptions(setup_s=1.5)),
    "client.dns.lookup": ("use_all_dns_ips", SocketOptions()),
}
TLS_OPTIONS = {
    "ssl.ca.location": ("ca.pem", Tls(ca_location="ca.pem")),
    "ssl.ca.pem": ("pem", Tls(ca_pem="pem")),
    "ssl.certificate.location": ("c.pem", Tls(certificate_location="c.pem")),
    "ssl.certificate.pem": ("pem", Tls(certificate_pem="pem")),
    "ssl.crl.location": ("crl.pem", Tls(crl_location="crl.pem")),
    "ssl.cipher.suites": ("ECDHE+AESGCM", Tls(ciphers="ECDHE+AESGCM")),
    "ssl.key.password": (SECRET, Tls(key_password=SECRET)),
    "enable.ssl.certificate.verification": ("False", Tls(verifies=False)),
    "ssl.endpoint.identification.algorithm": ("NONE", Tls(identifies=False)),
}
OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "client.id": ("me", {"client_id": "me"}),
    "socket.timeout.ms": (2000, {"attempt_s": 2.0}),
    "request.timeout.ms": ("7000", {"request_timeout_ms": 7000}),
    "retry.backoff.ms": (100, {"retry": Backoff(0.1, 1.0)}),
    "retry.backoff.max.ms": (300, {"retry": Backoff(0.02, 0.3)}),
    "reconnect.backoff.ms": (5000, {"reconnect": Backoff(5.0, 5.0)}),
    "reconnect.backoff.max.ms": (10, {"reconnect": Backoff(0.01, 0.01)}),
}
ELSEWHERE = {
    *("security.protocol", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.oauthbearer.method", "oauth_cb"),
    *("ssl.key.location", "ssl.key.pem", "compression.codec", "compression.level", "batch.size", "batch.num.messages"),
    "max.in.flight.requests.per.connection",
}
"""Honoured options that tests of their own have."""


def test_each_honoured_option_has_its_test() -> None:
    assert {*SOCKETS, *TLS_OPTIONS, *OTHERS, *ELSEWHERE} == set(table.HONOURED)


@pytest.mark.parametrize("name", SOCKETS)
def test_sockets_are_made_as_options_say(name: str) -> None:
    value, made = SOCKETS[name]
    assert of({name: value}).socket == made


@pytest.mark.parametrize("name", TLS_OPTIONS)
def test_tls_is_as_options_say_and_only_where_the_protocol_has_it(name: str) -> None:
    value, made = TLS_OPTIONS[name]
    assert of({**TLS, name: value}).tls == made
    assert of({**LOGIN, "security.protocol": "sasl_ssl", name: value}).tls == made
    assert of({name: value}).tls is None


@pytest.mark.parametrize("name", OTHERS)
def test_times_and_names_are_as_options_say(name: str) -> None:
    value, changed = OTHERS[name]
    assert of({name: value}) == replace(of({}), **changed)


def test_a_key_comes_with_its_certificate() -> None:
    made = of({**TLS, "ssl.certificate.location": "c", "ssl.key.pem": SECRET, "ssl.key.password": "p"})
    assert made.tls == Tls(certificate_location="c", key_pem=SECRET, key_password="p")
    made = of({**TLS, "ssl.certificate.pem": "c", "ssl.key.location": "k"})
    assert made.tls == Tls(certificate_pem="c", key_location="k")
    for name in ("ssl.key.location", "ssl.key.pem"):
        with pytest.raises(NotByHand, match="a key needs its certificate"):
            of({**TLS, name: "k"})
    for kind in ("certificate", "key"):
        with pytest.raises(NotByHand, match=rf"ssl\.{kind}\.\w+ is given, too"):
            of({**TLS, "ssl.certificate.pem": "c", f"ssl.{kind}.location": "k", f"ssl.{kind}.pem": "k"})


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_logs_in(name: str, mechanism: str) -> None:
    login = {"security.protocol": "Sasl_Plaintext", name: mechanism, "sasl.username": "me", "sasl.password": "pw"}
    assert of(login).sasl == Sasl(mechanism, "me", "pw")
    for missing in ("sasl.username", "sasl.password"):
        with pytest.raises(NotByHand, match=f"{missing}.*{mechanism} needs it"):
            of({each: value for each, value in login.items() if each != missing})
    assert of({**login, "security.protocol": "ssl"}).sasl is None


def test_a_token_logs_in() -> None:
    login = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.method": "default"}
    assert of({**login, "oauth_cb": fetch_token}).sasl == Sasl("OAUTHBEARER", oauth_cb=fetch_token)
    for callback, why in ((None, "needs it"), (lambda _: ("t", 0.0), "cannot be sent to tasks"), ("t", "a function")):
        with pytest.raises(NotByHand, match=f"oauth_cb.*{why}"):
            of({**login, "oauth_cb": callback})


@pytest.mark.parametrize("mechanism", [None, "GSSAPI", "plain", "AWS_MSK_IAM", "PLAIN,GSSAPI"])
def test_another_mechanism_is_not_spoken(mechanism: str | None) -> None:
    with pytest.raises(NotByHand, match=r"sasl\.mechanism"):
        of({**LOGIN, "sasl.mechanism": mechanism})


def test_of_two_names_of_one_option_the_later_counts() -> None:
    assert codec_of({"compression.codec": "lz4", "compression.type": "zstd"}) == ("zstd", None)
    assert codec_of({"compression.type": "zstd", "compression.codec": "lz4"}) == ("lz4", None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "1") for name in ("linger.ms", "queue.buffering.max.ms", "queue.buffering.max.kbytes", "retries")),
        *((name, 1) for name in ("sticky.partitioning.linger.ms", "message.send.max.retries", "metadata.max.age.ms")),
        *((name, 1) for name in ("topic.metadata.refresh.interval.ms", "topic.metadata.propagation.max.ms")),
        *((name, 1) for name in ("connections.max.idle.ms", "statistics.interval.ms", "log_level")),
        *((name, 1) for name in ("message.copy.max.bytes", "api.version.request.timeout.ms")),
        *((name, True) for name in ("enable.metrics.push", "delivery.report.only.error", "api.version.request")),
        *(("debug", "all"), ("broker.version.fallback", "0.10.0"), ("acks", "all"), ("acks", -1)),
        *(("request.required.acks", "-1"), ("enable.idempotence", True), ("enable.idempotence", "true")),
        *(("ssl.keystore.location", None), ("client.id", None)),
    ],
)
def test_options_without_meaning_here_change_nothing(name: str, value: Any) -> None:
    if value is None and name not in table.HONOURED:
        with pytest.raises(NotByHand):
            of({name: value})
    else:
        assert of({name: value}) == of({})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ssl.keystore.location", "PKCS#12"),
        ("ssl.keystore.password", "PKCS#12"),
        ("ssl.engine.location", "no such setting"),
        ("ssl.engine.id", "no such setting"),
        ("ssl.providers", "no such setting"),
        ("ssl.curves.list", "no such setting"),
        ("ssl.sigalgs.list", "no such setting"),
        ("ssl.ca.certificate.stores", "no such setting"),
        ("https.ca.location", "tokens are fetched"),
        ("https.ca.pem", "tokens are fetched"),
        ("sasl.kerberos.service.name", "Kerberos"),
        ("sasl.kerberos.keytab", "Kerberos"),
        ("sasl.oauthbearer.config", "tokens are fetched"),
        ("sasl.oauthbearer.client.secret", "tokens are fetched"),
        ("sasl.oauthbearer.assertion.private.key.pem", "tokens are fetched"),
        ("sasl.oauthbearer.metadata.authentication.type", "tokens are fetched"),
        ("enable.sasl.oauthbearer.unsecure.jwt", "librdkafka's alone"),
        ("plugin.library.paths", "plugins"),
        ("interceptors", "librdkafka's alone"),
        ("client.rack", "librdkafka's alone"),
        ("Client.Id", "librdkafka's alone"),
        ("linger.ms.x", "librdkafka's alone"),
        ("no.such.option", "librdkafka's alone"),
    ],
)
def test_an_option_of_librdkafka_alone_is_named_and_its_value_is_not(name: str, why: str) -> None:
    with pytest.raises(NotByHand) as refused:
        of({"client.id": "me", name: SECRET})
    assert refused.value.option == name
    assert why in refused.value.why
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("security.protocol", "TLS"),
        ("security.protocol", 1),
        ("socket.nagle.disable", "yes"),
        ("socket.nagle.disable", ""),
        ("socket.nagle.disable", []),
        ("socket.timeout.ms", "soon"),
        ("socket.timeout.ms", 1.5),
        ("socket.timeout.ms", True),
        ("socket.timeout.ms", 9),
        ("socket.timeout.ms", 300_001),
        ("socket.connection.setup.timeout.ms", 999),
        ("socket.send.buffer.bytes", -1),
        ("broker.address.family", "v5"),
        ("client.dns.lookup", "resolve_canonical_bootstrap_servers_only"),
        ("client.id", b"bytes"),
        ("ssl.endpoint.identification.algorithm", "ldap"),
        ("sasl.oauthbearer.method", "oidc"),
        ("acks", 1),
        ("acks", "0"),
        ("enable.idempotence", False),
        ("compression.type", "inherit"),
        ("compression.level", 13),
        ("batch.size", 0),
        ("batch.num.messages", 1_000_001),
        ("max.in.flight", 0),
        ("reconnect.backoff.ms", -1),
    ],
)
def test_a_value_of_another_kind_is_refused(name: str, value: Any) -> None:
    with pytest.raises(NotByHand) as refused:
        of({name: value})
    assert refused.value.option == name


@pytest.mark.parametrize("value", [b"open-Sesame-42", 42, ""])
@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.pem", "ssl.key.password"])
def test_a_secret_of_another_kind_is_refused_and_not_shown(name: str, value: Any) -> None:
    with pytest.raises(NotByHand) as refused:
        of({**LOGIN, name: value})
    assert refused.value.option == name
    assert "42" not in str(refused.value)


@pytest.mark.parametrize("value", ["TRUE", "t", "1", True, 1])
def test_values_are_read_as_librdkafka_reads_them(value: Any) -> None:
    assert reach(socket_keepalive_enable=value).socket.keepalive
    assert reach(socket_timeout_ms=" 2000 ").attempt_s == 2
    assert of({**TLS, "ssl.ca.location": Path("ca.pem")}).tls == Tls(ca_location="ca.pem")


def test_codecs_limits_and_requests_in_flight() -> None:
    assert codec_of({}) == codec_of({"compression.type": "NONE", "compression.level": "-1"}) == (None, None)
    assert codec_of({"compression.codec": "zstd", "compression.level": 3, "no.such": 1}) == ("zstd", 3)
    assert codec_of({"compression.type": "lz4"}) == ("lz4", None)
    levels = {codec: codec_of({"compression.type": codec, "compression.level": 12}) for codec in table.CODECS}
    assert levels == {
        "none": (None, None),
        "gzip": ("gzip", 9),
        "snappy": ("snappy", None),
        "lz4": ("lz4", 12),
        "zstd": ("zstd", 12),
    }
    assert batch_limits({"no.such": 1}) == (None, None)
    assert batch_limits({"batch.size": "1000", "batch.num.messages": 7}) == (1000, 7)
    assert [in_flight_of({"max.in.flight": n}) for n in (1, "3", 1_000_000)] == [1, 3, 5]
    assert in_flight_of({"max.in.flight.requests.per.connection": 2}) == 2
    assert in_flight_of({}) == 5
    for read, bad in ((codec_of, "compression.type"), (batch_limits, "batch.size"), (in_flight_of, "max.in.flight")):
        with pytest.raises(NotByHand, match=bad):
            read({bad: "bad"})


def test_what_reaches_a_task_shows_no_secret_and_is_the_same() -> None:
    files = {"ssl.certificate.pem": f"c{SECRET}", "ssl.key.pem": SECRET, "ssl.key.password": SECRET}
    secured = {**LOGIN, "security.protocol": "SASL_SSL", "sasl.password": SECRET, "ssl.ca.pem": SECRET, **files}
    token = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": fetch_token}
    for options in (secured, token):
        made = of(options)
        sent = pickle.loads(pickle.dumps(made))
        assert sent == made
        for shown in (repr(made), repr(sent), str(sent)):
            assert SECRET not in shown
            assert "fetch_token" not in shown
    assert sys.getsizeof(pickle.dumps(of({}))) < 1000
