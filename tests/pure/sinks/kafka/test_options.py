"""Every option of librdkafka is judged: what it can do to an epoch that is decided, and where that is found before."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path

import confluent_kafka
import pytest

from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.kafka import client

OURS = "refused by name, or fixed"
START = "a start makes a producer and connects with it, in the driver and on an executor"
CALLBACK = "the client refuses it as text; as a function it must be picklable, which a start tries"
ROWS = "rows and markers are judged by it before the vote"
SPEED = "changes how fast an epoch is produced, and nothing else: transaction_timeout= bounds that"
NOTHING = "changes what is logged or measured"

JUDGED: Mapping[str, str] = {
    OURS: """
        acks bootstrap.servers default_topic_conf delivery.timeout.ms enable.gapless.guarantee enable.idempotence
        enabled_events error_cb internal.termination.signal message.max.bytes message.timeout.ms metadata.broker.list
        partitioner request.required.acks topic.blacklist transaction.timeout.ms transactional.id
    """,
    START: """
        allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
        broker.address.family broker.version.fallback builtin.features client.dns.lookup client.id client.rack
        compression.codec compression.level compression.type enable.sasl.oauthbearer.unsecure.jwt
        enable.ssl.certificate.verification https.ca.location https.ca.pem max.in.flight
        max.in.flight.requests.per.connection message.send.max.retries plugin.library.paths queuing.strategy
        receive.message.max.bytes retries security.protocol
        sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
        sasl.kerberos.service.name sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm
        sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
        sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
        sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
        sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
        sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
        sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
        sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
        sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
        sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
        sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username
        ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
        ssl.cipher.suites ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id
        ssl.engine.location ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password
        ssl.providers ssl.sigalgs.list
    """,
    CALLBACK: """
        background_event_cb closesocket_cb connect_cb dr_cb dr_msg_cb interceptors log_cb msg_order_cmp
        oauthbearer_token_refresh_cb opaque open_cb partitioner_cb resolve_cb socket_cb ssl.certificate.verify_cb
        ssl_ca ssl_certificate ssl_engine_callback_data ssl_key stats_cb throttle_cb
    """,
    ROWS: "batch.size queue.buffering.max.kbytes",
    SPEED: """
        batch.num.messages broker.address.ttl connections.max.idle.ms linger.ms message.copy.max.bytes
        metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
        queue.buffering.backpressure.threshold queue.buffering.max.messages queue.buffering.max.ms
        reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms
        retry.backoff.max.ms retry.backoff.ms socket.blocking.max.ms socket.connection.setup.timeout.ms
        socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
        socket.send.buffer.bytes socket.timeout.ms sticky.partitioning.linger.ms topic.metadata.propagation.max.ms
        topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
        topic.metadata.refresh.sparse
    """,
    NOTHING: """
        debug delivery.report.only.error enable.metrics.push enable.random.seed log.connection.close log.queue
        log.thread.name log_level produce.offset.report statistics.interval.ms
    """,
}


def options_of_producers(file: Path) -> set[str]:
    """The names that librdkafka itself lists, but those of consumers alone."""
    (library,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*.so*")
    librdkafka, libc = ctypes.CDLL(str(library)), ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fopen(str(file).encode(), b"w"))
    librdkafka.rd_kafka_conf_properties_show(stream)
    libc.fclose(stream)
    return set(re.findall(r"^([\w.]+) *\| +[P*] +\|", file.read_text(), re.MULTILINE))


def test_every_option_is_judged_once(tmp_path: Path) -> None:
    """K1: an option that is new in librdkafka fails this test until somebody has judged it."""
    judged = [name for names in JUDGED.values() for name in names.split()]
    assert len(judged) == len(set(judged))
    assert set(judged) == options_of_producers(tmp_path / "options")


@pytest.mark.parametrize("option", sorted({*JUDGED[OURS].split()} - {"default_topic_conf"} | {"default.topic.config"}))
def test_what_is_ours_is_refused_by_name(option: str) -> None:
    """The client's own name of ``default_topic_conf`` is ``default.topic.config``."""
    with pytest.raises(Misconfigured, match=rf"the options \['{re.escape(option)}'\] are not for the user to set"):
        client.check_options({option: "no value that is allowed"}, "out")


@pytest.mark.remedy("the option …=… is not a whole number", "see librdkafka's CONFIGURATION.md for its values")
def test_a_number_that_is_none_is_named() -> None:
    with pytest.raises(Misconfigured, match=r"the option batch\.size='many' is not a whole number"):
        client.Link("127.0.0.1:1", "out", 1, {"batch.size": "many"}).number("batch.size", 1)
    assert client.Link("127.0.0.1:1", "out", 1, {"batch.size": "2147483647"}).number("batch.size", 1) == 2147483647
