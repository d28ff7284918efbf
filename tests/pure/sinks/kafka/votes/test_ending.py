"""The end of a transaction, asked of brokers that say what a test has them say; and whose end a committable asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from epochal.coordinator.model.epoch import Actor, Committable, Decision, Marker
from epochal.coordinator.model.errors import OutcomeUnknown
from epochal.sinks.conditions import marker_of
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.ending import Vote, end
from epochal.sinks.kafka.wire import messages as m
from epochal.sinks.kafka.wire.messages import Producer
from epochal.sinks.kafka.wire.primitives import NO_TAGS, compact_array, compact_string, int16, int32, int64
from epochal.sinks.protocol import CommitOutcome
from tests.pure.sinks.kafka.wire.test_cluster import HANG_UP, PRODUCER, ZERO, Brokers, coordinator, ended

VOTE = Vote("x", PRODUCER, Marker(1, 5))
CONCURRENT = 51


def described(state: str, producer: Producer = PRODUCER, error: int = 0) -> bytes:
    found = int16(error) + compact_string("x") + compact_string(state) + int32(60_000) + int64(0)
    found += int64(producer.id) + int16(producer.epoch) + compact_array([]) + NO_TAGS
    return int32(0) + compact_array([found]) + NO_TAGS


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    made.coordinate(ZERO)
    made.say(m.DESCRIBE_TRANSACTIONS, described("Ongoing"))
    yield made
    made.close()


def ask(brokers: Brokers, seconds: float = 30) -> CommitOutcome | None:
    servers = ",".join(f"{at.host}:{at.port}" for at in brokers.addresses)
    return end(Link(servers, "a", seconds, {}), VOTE, 0)


# what the answers mean


def test_the_end_is_asked_for_until_every_partition_knows(brokers: Brokers) -> None:
    """The first answer says that it is decided; readers see all rows only when the second says that it is done."""
    brokers.say(m.END_TXN, ended(0), ended(CONCURRENT), ended(CONCURRENT), ended(0))
    assert ask(brokers) is CommitOutcome.COMMITTED
    assert len(brokers.asked_for(m.END_TXN)) == 4


@pytest.mark.parametrize(
    ("was", "outcome"),
    [
        (described("Ongoing"), CommitOutcome.COMMITTED),
        (described("PrepareCommit"), CommitOutcome.ALREADY_COMMITTED),
        (described("CompleteCommit"), CommitOutcome.ALREADY_COMMITTED),
        (described("CompleteCommit", Producer(PRODUCER.id, PRODUCER.epoch - 1)), CommitOutcome.COMMITTED),
        (described("", Producer(-1, -1), error=105), CommitOutcome.COMMITTED),
    ],
)
def test_who_committed_it_is_told_by_the_state_before(brokers: Brokers, was: bytes, outcome: CommitOutcome) -> None:
    brokers.say(m.DESCRIBE_TRANSACTIONS, was)
    brokers.say(m.END_TXN, ended(0))
    assert ask(brokers) is outcome
    assert len(brokers.asked_for(m.END_TXN)) == 2


@pytest.mark.parametrize("code", [47, 48, 49, 59, 90, 120])
@pytest.mark.parametrize("before", [(), (0,)])
def test_a_transaction_that_is_not_the_newest_cannot_be_ended(
    brokers: Brokers, code: int, before: tuple[int, ...]
) -> None:
    """Also if another producer comes between the two requests: then the marker tells that it was committed."""
    brokers.say(m.END_TXN, *map(ended, (*before, code)))
    assert ask(brokers) is None


@pytest.mark.parametrize("code", [53, 31, -1])
def test_an_answer_that_says_nothing_of_the_end_is_no_end(brokers: Brokers, code: int) -> None:
    brokers.say(m.END_TXN, ended(code))
    with pytest.raises(OutcomeUnknown, match=r"the broker answers .* to the commit of transaction x"):
        ask(brokers)


@pytest.mark.parametrize("told", [ended(CONCURRENT), HANG_UP, b"\0"])
def test_without_an_answer_the_outcome_is_not_known(brokers: Brokers, told: bytes | None) -> None:
    brokers.say(m.END_TXN, told)
    with pytest.raises(OutcomeUnknown, match="was asked for and not answered"):
        ask(brokers, 0.3)


@pytest.mark.parametrize("told", [HANG_UP, b"\0"])
def test_an_error_before_the_request_says_that_nothing_was_asked_for(brokers: Brokers, told: bytes | None) -> None:
    brokers.say(m.DESCRIBE_TRANSACTIONS, told)
    with pytest.raises(OutcomeUnknown, match="was not asked for"):
        ask(brokers, 0.3)
    assert brokers.asked_for(m.END_TXN) == []


def test_a_user_who_is_not_let_in_is_not_told_to_start_the_brokers(brokers: Brokers) -> None:
    brokers.say(m.FIND_COORDINATOR, coordinator(53, -1, brokers.addresses[ZERO]))
    with pytest.raises(OutcomeUnknown, match="the broker answers TRANSACTIONAL_ID_AUTHORIZATION_FAILED") as unknown:
        ask(brokers)
    assert "start the brokers" not in str(unknown.value)
    assert brokers.asked_for(m.END_TXN) == []


# whose end


def committable(**changed: Any) -> Committable:
    decision = Decision("q1", 3, Actor(1, 11), "f")
    made = Committable("a", decision, 4, 10, {})
    return replace(made, payload={"votes": Vote("x", PRODUCER, marker_of(made)).to_json()}, **changed)


def test_a_committable_names_its_transaction() -> None:
    kept = Committable.from_json(json.loads(json.dumps(committable().to_json())))
    assert Vote.of(kept) == Vote("x", PRODUCER, marker_of(kept))
    assert Vote.of(replace(kept, payload={})) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"position": 5},
        {"decision": Decision("q1", 3, Actor(1, 11), "f", redo=1)},
        {"decision": Decision("q1", 3, Actor(2, 22), "f")},
    ],
)
def test_a_transaction_whose_marker_is_of_another_decision_is_not_this_ones(changed: dict[str, Any]) -> None:
    assert Vote.of(committable(**changed)) is None
