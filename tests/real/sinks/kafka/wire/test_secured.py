"""By hand, to a broker that speaks TLS and asks who we are, in each way that we can say it."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import BrokerError
from epochal.sinks.kafka.wire.messages import Partition
from epochal.sinks.kafka.wire.reach import reach_of
from tests.real.sinks.kafka.guarded import USER, SecuredKafka
from tests.real.sinks.kafka.support import SECRET, read_topic
from tests.real.sinks.kafka.wire.batches import batch, produce

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
ODD_USER = "a,b=c"


class WellSecuredKafka(SecuredKafka):
    """Asks who we are in each way that we can say it.  Any token without a signature is accepted until it expires."""

    def _login(self) -> dict[str, str]:
        common, listener = "org.apache.kafka.common.security", "listener.name.proxied"
        return {
            **super()._login(),
            f"{listener}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"{listener}.plain.sasl.jaas.config": (f'{common}.plain.PlainLoginModule required user_{USER}="{SECRET}";'),
            f"{listener}.scram-sha-256.sasl.jaas.config": f"{common}.scram.ScramLoginModule required;",
            f"{listener}.oauthbearer.sasl.jaas.config": (
                f'{common}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
            ),
        }

    def add_users(self) -> None:
        """The user for both hashes, and one whose name SCRAM has to escape."""
        mechanisms = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        added = [
            UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), SECRET.encode())
            for user, mechanism in [*((USER, each) for each in mechanisms), (ODD_USER, mechanisms[0])]
        ]
        with AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}) as admin:
            for each in added:
                admin.alter_user_scram_credentials([each])[each.user].result(120)


def token(lives: float) -> str:
    """A token that nobody has signed."""

    def part(value: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': USER, 'iat': now - 60, 'exp': now + lives})}."


def fetch(_config: str | None) -> tuple[str, float]:
    return token(600), time.time() + 600


def fetch_late(_config: str | None) -> tuple[str, float]:
    return token(-3600), time.time()


@pytest.fixture(scope="module")
def kafka() -> Iterator[WellSecuredKafka]:
    with WellSecuredKafka() as server:
        server.add_users()
        yield server


def login(kafka: SecuredKafka, mechanism: str, **changed: Any) -> Cluster:
    """A cluster that is entered in this way; options are written with ``_`` for each dot."""
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(kafka.certificate),
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": SECRET,
        "oauth_cb": fetch,
        **{name if name == "oauth_cb" else name.replace("_", "."): value for name, value in changed.items()},
    }
    return Cluster(reach_of(kafka.guarded, options, 60))


def soon(seconds: float = 60) -> float:
    return time.monotonic() + seconds


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_enters_and_only_with_the_right_secret(kafka: WellSecuredKafka, mechanism: str) -> None:
    with login(kafka, mechanism) as cluster:
        assert cluster.lacking(soon()) == []
    wrong = login(kafka, mechanism, sasl_password=f"not-{SECRET}", oauth_cb=fetch_late)
    started = time.monotonic()
    with wrong, pytest.raises(BrokerError) as refused:
        wrong.lacking(soon())
    assert time.monotonic() - started < 30, "a wrong password is not tried again and again"
    assert refused.value.name == "SASL_AUTHENTICATION_FAILED"
    assert SECRET not in str(refused.value)
    if mechanism == "OAUTHBEARER":
        assert '{"status":"invalid_token"}' in refused.value.what


def test_a_user_with_an_odd_name_enters(kafka: WellSecuredKafka) -> None:
    with login(kafka, "SCRAM-SHA-256", sasl_username=ODD_USER) as cluster:
        assert cluster.lacking(soon()) == []


def test_a_transaction_passes_through_tls(kafka: WellSecuredKafka, topic_name: str) -> None:
    """Rights are needed for each part of it: to describe producers, READ."""
    kafka.create_topic(topic_name)
    kafka.grant(ResourceType.TRANSACTIONAL_ID, topic_name, "WRITE", "DESCRIBE")
    kafka.grant(ResourceType.TOPIC, topic_name, "WRITE", "DESCRIBE")
    partition = Partition(topic_name, 0)
    values = [bytes([number]) * 90_000 for number in range(10)]
    with login(kafka, "SCRAM-SHA-512") as cluster:
        producer = cluster.init_producer(topic_name, 60_000, soon())
        cluster.add_partitions(topic_name, producer, [partition], soon())
        made = batch(producer, values)
        [answer] = produce(cluster, topic_name, {partition: [made[:61], made[61:]]}, soon())
        assert (answer.error, answer.offset) == (0, 0)
        with pytest.raises(BrokerError, match=f"TOPIC_AUTHORIZATION_FAILED.*{topic_name}"):
            cluster.producers([partition], soon())
        kafka.grant(ResourceType.TOPIC, topic_name, "READ")
        assert cluster.producers([partition], soon())[partition][producer.id].last_sequence == 9
        assert cluster.end_transaction(topic_name, producer, soon()) == 0
        assert cluster.end_transaction(topic_name, producer, soon()) == 0
        with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            cluster.init_producer(f"{topic_name}-other", 60_000, soon())
        with pytest.raises(OSError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            cluster.end_transaction(f"{topic_name}-other", producer, soon())
    assert [record.value for record in read_topic(kafka.bootstrap, topic_name)] == values


def test_a_broker_whose_certificate_is_not_known_is_not_trusted(kafka: WellSecuredKafka) -> None:
    started = time.monotonic()
    for changed in ({"ssl_ca_location": None}, {"ssl_ca_location": "no/such/file"}):
        with (
            login(kafka, "PLAIN", **changed) as cluster,
            pytest.raises(OSError, match=r"certificate|no/such") as refused,
        ):
            cluster.lacking(soon())
        assert isinstance(refused.value, ssl.SSLCertVerificationError | FileNotFoundError)
    assert time.monotonic() - started < 30, "it is not tried again and again"
    with login(kafka, "PLAIN", ssl_ca_location=None, enable_ssl_certificate_verification=False) as cluster:
        assert cluster.lacking(soon()) == []
