"""SASL exchanges, with the examples of the RFCs and against kafka-python's client."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient

from epochal.sinks.kafka.wire import sasl
from epochal.sinks.kafka.wire.errors import SASL_AUTHENTICATION_FAILED, BrokerError
from epochal.sinks.kafka.wire.reach import Sasl

SECRET = "open-Sesame-42"
NONCE = b"rOprNGfwEbeRWgbNEkqO"
"""RFC 7677, section 3."""
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
OUTCOME = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


class Broker:
    """Answers with these messages, in order, and notes what it was sent."""

    def __init__(self, *answers: bytes | BrokerError) -> None:
        self._answers = list(answers)
        self.told: list[bytes] = []

    def __call__(self, message: bytes) -> bytes:
        self.told.append(message)
        answer = self._answers.pop(0)
        if isinstance(answer, BrokerError):
            raise answer
        return answer


def refusal(exchange: Callable[[], sasl.Exchange], *answers: bytes | BrokerError) -> str:
    with pytest.raises(BrokerError) as refused:
        sasl.run(exchange(), Broker(*answers))
    assert refused.value.code == SASL_AUTHENTICATION_FAILED
    assert SECRET not in str(refused.value)
    assert "pencil" not in str(refused.value)
    return refused.value.what


def rfc() -> sasl.Exchange:
    return sasl.scram("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_plain_is_that_of_rfc_4616() -> None:
    broker = Broker(b"")
    sasl.run(sasl.plain("tim", "tanstaaftanstaaf"), broker)
    assert broker.told == [b"\0tim\0tanstaaftanstaaf"]
    assert "zero byte" in refusal(lambda: sasl.plain("a\0b", SECRET))


def test_scram_is_that_of_rfc_7677() -> None:
    broker = Broker(CHALLENGE, OUTCOME)
    sasl.run(rfc(), broker)
    assert broker.told == [
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    ]


@settings(max_examples=10)  # each derives keys
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@given(password=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), salt=st.binary(min_size=1))
def test_scram_proves_what_kafka_python_proves(mechanism: str, password: str, salt: bytes) -> None:
    theirs: Any = ScramClient("me", password, mechanism)
    nonce = theirs.nonce
    challenge = b"r=" + nonce + b"more,s=" + base64.b64encode(salt) + b",i=4096"
    first = theirs.first_message()
    theirs.process_server_first_message(challenge)
    broker = Broker(challenge, b"v=" + base64.b64encode(theirs.server_signature))
    sasl.run(sasl.scram(mechanism, "me", password, nonce), broker)
    assert broker.told == [first, theirs.final_message()]


def test_commas_and_equals_signs_of_a_user_are_escaped() -> None:
    assert next(sasl.scram("SCRAM-SHA-512", "a,b=c", "pw", b"n")) == b"n,,n=a=2Cb=3Dc,r=n"


def test_each_exchange_has_a_nonce_of_its_own() -> None:
    first = {next(sasl.scram("SCRAM-SHA-256", "me", "pw")) for _ in range(3)}
    assert len(first) == 3
    assert all(len(message.split(b",r=")[1]) >= 32 for message in first)


@pytest.mark.parametrize(
    ("challenge", "told"),
    [
        (b"", "no a=value form"),
        (b"hello", "no a=value form"),
        (b"e=other-error", "nonce"),
        (CHALLENGE.replace(b"rOpr", b"rOpq"), "nonce does not continue ours"),
        (CHALLENGE.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), "nonce does not continue ours"),
        (CHALLENGE.replace(b"4096", b"4095"), "other than 4096 to 1000000 iterations"),
        (CHALLENGE.replace(b"4096", b"1000001"), "iterations"),
        (CHALLENGE.replace(b"4096", b"9" * 5000), "iterations"),
        (CHALLENGE.replace(b"4096", b"-4096"), "iterations"),
        (CHALLENGE.replace(b"4096", "٤٠٩٦".encode()), "iterations"),
        (CHALLENGE.replace(b",i=4096", b""), "iterations"),
        (CHALLENGE.replace(b"W22Z", b"%%%%"), "salt is missing or not in base64"),
        (CHALLENGE.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="), "salt is missing"),
        (b"m=ext," + CHALLENGE, "extension of SCRAM"),
    ],
)
def test_a_challenge_that_is_not_right_is_refused(challenge: bytes, told: str) -> None:
    assert told in refusal(rfc, challenge)


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (b"v=" + base64.b64encode(b"x" * 32), "the broker's signature is wrong"),
        (b"v=" + base64.b64encode(b"x"), "the broker's signature is wrong"),
        (b"v=", "signature is missing"),
        (b"", "no a=value form"),
        (b"e=invalid-proof", "the broker refuses: invalid-proof"),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_refused(outcome: bytes, told: str) -> None:
    assert told in refusal(rfc, CHALLENGE, outcome)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_no_message_of_a_broker_is_an_error_of_another_kind(challenge: bytes, outcome: bytes) -> None:
    refusal(rfc, challenge)
    refusal(rfc, CHALLENGE, outcome)


def test_a_refusal_of_the_broker_is_the_error() -> None:
    told = BrokerError(58, "Authentication failed")
    for exchange in (rfc, lambda: sasl.plain("me", SECRET), lambda: sasl.oauthbearer(SECRET, {})):
        assert refusal(exchange, told) == "Authentication failed"


# --- tokens ------------------------------------------------------------------------------------------------


def test_a_token_is_shown_as_kip_255_has_it() -> None:
    broker = Broker(b"")
    sasl.run(sasl.oauthbearer("a.b.c", {"traceId": "123"}), broker)
    assert broker.told == [b"n,,\x01auth=Bearer a.b.c\x01traceId=123\x01\x01"]
    broker = Broker(b"")
    sasl.run(sasl.oauthbearer("a.b.c", {}), broker)
    assert broker.told == [b"n,,\x01auth=Bearer a.b.c\x01\x01"]


def test_why_a_token_is_not_accepted_is_answered_and_shown() -> None:
    why = b'{"status":"invalid_token \x07' + SECRET.encode() + b'"}'
    for ended in (BrokerError(58, "it failed"), b""):
        broker = Broker(why, ended)
        with pytest.raises(BrokerError) as refused:
            sasl.run(sasl.oauthbearer(SECRET, {}), broker)
        assert broker.told[1:] == [b"\x01"]
        assert 'the broker says of the token: {"status":"invalid_token ?***"}' in refused.value.what
    assert len(refusal(lambda: sasl.oauthbearer(SECRET, {}), b"x" * 10_000, BrokerError(58, "no"))) < 600


@pytest.mark.parametrize(
    ("token", "extensions"),
    [("", {}), ("a\x01b", {}), ("tökèn", {}), ("t", {"auth": "x"}), ("t", {"a1": "x"}), ("t", {"a": "x\x01auth=y"})],
)
def test_a_token_cannot_say_more_than_a_token(token: str, extensions: dict[str, str]) -> None:
    assert "token" in refusal(lambda: sasl.oauthbearer(token, extensions))


def test_a_token_is_fetched_as_confluent_kafka_fetches_it() -> None:
    assert sasl.token_of(lambda _: ("t", 1.0)) == ("t", {})
    assert sasl.token_of(lambda _: ("t", 1.0, "principal", {"a": "b"})) == ("t", {"a": "b"})

    def fails(_config: None) -> None:
        raise ValueError(SECRET)

    for callback in (fails, lambda _: None, lambda _: ("t",)):
        with pytest.raises(BrokerError, match="oauth_cb raised") as refused:
            sasl.token_of(callback)
        assert SECRET not in str(refused.value)


def test_the_exchange_is_that_of_the_mechanism() -> None:
    assert next(sasl.exchange(Sasl("PLAIN", "me", "pw"))) == b"\0me\0pw"
    assert next(sasl.exchange(Sasl("SCRAM-SHA-512", "me", "pw"))).startswith(b"n,,n=me,r=")
    assert next(sasl.exchange(Sasl("OAUTHBEARER", oauth_cb=lambda _: ("t", 0.0)))) == b"n,,\x01auth=Bearer t\x01\x01"
    for lacking in (Sasl("PLAIN", "me"), Sasl("SCRAM-SHA-256"), Sasl("OAUTHBEARER")):
        with pytest.raises(BrokerError, match="needs"):
            sasl.exchange(lacking)
