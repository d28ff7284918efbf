"""Codes of brokers: their names, and what may be repeated."""

from __future__ import annotations

import pickle

import pytest
from kafka import errors as known

from epochal.sinks.kafka.wire.errors import (
    NAMES,
    AnswerNotUnderstood,
    BrokerError,
    NotByHand,
    is_fenced,
    is_moved,
    is_refused,
    is_retriable_at_coordinator,
    name_of,
)

RENAMED = {-1, 0, 6, 10, 17}
"""Codes that kafka-python names as Kafka did long ago."""


def test_codes_have_the_names_that_kafka_gives_them() -> None:
    theirs = {code: known.kafka_errors[code].message for code in NAMES if code not in RENAMED}
    assert {code: name for code, name in NAMES.items() if code not in RENAMED} == theirs
    assert name_of(9999) == "9999"


def test_what_may_be_repeated_at_a_leader_is_what_kafka_calls_retriable() -> None:
    moved = {code for code in range(200) if is_moved(code)}
    assert moved == {3, 5, 6, 7, 9, 13, 19, 20, 56, 72}
    assert all(known.kafka_errors[code].retriable for code in moved)


def test_what_may_be_repeated_at_a_coordinator_and_what_fences() -> None:
    again = {code for code in range(200) if is_retriable_at_coordinator(code)}
    fenced = {code for code in range(200) if is_fenced(code)}
    assert again == {14, 15, 16, 51}
    assert fenced == {47, 48, 49, 59, 90, 120}


def test_what_only_a_person_can_change_is_not_what_kafka_calls_retriable() -> None:
    refused = {code for code in range(200) if is_refused(code)}
    assert refused <= NAMES.keys()
    assert not [known.kafka_errors[code] for code in refused if known.kafka_errors[code].retriable]
    assert not [code for code in refused if is_moved(code) or is_fenced(code) or is_retriable_at_coordinator(code)]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BrokerError(90, "EndTxn of 'x'"), "PRODUCER_FENCED: EndTxn of 'x'"),
        (BrokerError(777, "it"), "777: it"),
        (NotByHand("ssl.providers", "no"), "option 'ssl.providers': no"),
        (AnswerNotUnderstood("no", b"\1", 3, 7), "no (API 3, version 7, the answer begins with 01)"),
    ],
)
def test_errors_cross_from_tasks_to_the_driver(error: Exception, told: str) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == told
    assert vars(again) == vars(error)
