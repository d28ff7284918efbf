"""What a Kafka sink writes into its marker topic and reads from it, in every version; and what a task answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from epochal.coordinator.model.epoch import Actor, Digest, Marker
from epochal.coordinator.model.errors import Misconfigured, PrepareRefused
from epochal.sinks.kafka import marker
from epochal.sinks.kafka.marker import MarkerTopic, PreviousEpoch, State
from epochal.sinks.kafka.produce import AttemptResult, Evaluation, ObjectionCount, Outcome
from epochal.sinks.kafka.rows import HASH, KEPT, MET, Encoding

PLACE = MarkerTopic("flights", "out")
ACTOR = Actor(3, 33)
DIGEST = Digest(2, 2**63 - 1)

HEAD = '"app": "flights", "sink": "out", "fence": {"generation": 3, "token": 33}, "marker": '
REST = '"targets": {}, "slots": 1, "span": 1, "before": {"marker": {"position": 6, "decision": 60}, "span": 1}}'
FIRST = f'{{"version": 1, {HEAD}{{"position": 7, "decision": 70}}, "epoch": null}}'
SECOND = (
    f'{{"version": 2, {HEAD}{{"position": 7, "decision": 70}}, "epoch": null, "targets": {{"a": "id-a"}}, "slots": 2,'
    ' "span": 2, "before": {"marker": null, "span": 0}}'
)
THIRD = (
    f'{{"version": 3, {HEAD}{{"position": 7, "decision": 70, "digest": {{"rows": 2, "sum": 9223372036854775807}}}},'
    f' "epoch": {{"rows": 1}}, {REST}'
)

PLAIN = Marker(7, 70)
DIGESTED = Marker(7, 70, DIGEST)
STATES: dict[str, tuple[State, dict[str, Any] | None]] = {
    FIRST: (State(ACTOR, PLAIN), None),
    SECOND: (State(ACTOR, PLAIN, {"a": "id-a"}, slots=2, span=2), None),
    THIRD: (State(ACTOR, DIGESTED, before=PreviousEpoch(Marker(6, 60), 1)), {"rows": 1}),
}


@pytest.mark.parametrize("text", STATES)
def test_a_record_of_every_version_is_written_and_read_as_it_was(text: str) -> None:
    state, about = STATES[text]
    assert marker.record(PLACE, state, about).decode() == text
    read = marker.parse(PLACE, text.encode())
    assert read == state
    assert read.marker is not None
    assert state.marker is not None
    assert read.marker.digest == state.marker.digest


def test_a_record_of_a_version_to_come_is_refused() -> None:
    with pytest.raises(Misconfigured, match="a newer Epochal has run this sink") as refused:
        marker.parse(PLACE, THIRD.replace('"version": 3', '"version": 4').encode())
    assert "fence and marker are of version 4" in refused.value.what
    assert "topic __epochal.flights.out; this one reads up to version 3" in str(refused.value.state)


def test_the_digest_of_the_epoch_before_stays_with_it() -> None:
    """With several slots that one is the sink's marker until every slot has the newest epoch."""
    state = State(ACTOR, Marker(8, 80), slots=2, span=2, before=PreviousEpoch(DIGESTED, 1))
    read = marker.parse(PLACE, marker.record(PLACE, state))
    assert json.loads(marker.record(PLACE, state))["version"] == 2
    assert read.before.marker is not None
    assert read.before.marker.digest == DIGEST


@pytest.mark.parametrize(
    "answer",
    [
        AttemptResult(Outcome.COMMITTED, digest=DIGEST),
        AttemptResult(Outcome.STOPPED, digest=Digest(0, 0), met=ObjectionCount(2, 5, "77")),
        AttemptResult(Outcome.STOPPED, met=ObjectionCount(0, 1, None)),
        AttemptResult(Outcome.EXPIRED),
    ],
)
def test_an_answer_survives_as_text(answer: AttemptResult) -> None:
    assert AttemptResult.from_json(answer.to_json()) == answer


def test_the_error_of_an_answer_survives_as_text() -> None:
    error = PrepareRefused("what", help="help", sink="s", epoch=3, state="state")
    back = AttemptResult.from_json(AttemptResult(Outcome.STOPPED, error, DIGEST).to_json())
    assert (type(back.error), str(back.error), back.digest) == (PrepareRefused, str(error), DIGEST)


def batch(hashes: list[int], kept: list[bool] | None = None, met: list[Any] | None = None) -> pa.RecordBatch:
    size = len(hashes)
    columns = {
        "key": pa.array([None] * size, pa.binary()),
        "value": pa.array([str(n).encode() for n in range(size)], pa.binary()),
        HASH: pa.array(hashes, pa.int64()),
        KEPT: pa.array(kept or [True] * size, pa.bool_()),
        MET: pa.array(met or [None] * size, pa.struct([("number", pa.int32()), ("shown", pa.string())])),
    }
    return pa.RecordBatch.from_pydict(columns)


HASHES = [0, -1, 1, -(2**63), 2**63 - 1, 2**62, -5, 2**32, 2**31, -(2**32)] * 9


@pytest.mark.parametrize(
    ("routes", "version"), [({}, 1), ({"headers": "h"}, 3), ({"topic": "t", "partition": "p"}, 3), ({"made": True}, 3)]
)
def test_an_encoding_survives_as_text(routes: dict[str, Any], version: int) -> None:
    encoding = Encoding("k", "v", "random", **routes)
    told = json.loads(json.dumps(encoding.to_json()))
    assert told["version"] == version
    again = Encoding.from_json(told)
    assert again == replace(encoding, projection=again.projection)


def test_the_digest_is_that_of_all_hashes_whatever_their_batches() -> None:
    whole = Digest.of(HASHES)
    for cut in (1, 7, len(HASHES)):
        evaluation = Evaluation(batch(HASHES[n : n + cut]) for n in range(0, len(HASHES), cut))
        assert evaluation.digest is None
        assert sum(map(len, evaluation)) == len(HASHES)
        assert evaluation.digest == whole
    assert list(Evaluation([batch([])])) == [[]]


def test_rows_that_the_sink_does_not_get_count_and_are_not_produced() -> None:
    evaluation = Evaluation([batch([5, 6, 7], [True, False, True])])
    assert list(evaluation) == [[(None, b"0"), (None, b"2")]]
    assert evaluation.digest == Digest(3, 18)


def test_nothing_is_produced_after_the_first_objection_and_all_are_counted() -> None:
    met: list[list[Any]] = [[None, (1, "9")], [(0, "b"), (1, "10")], [(0, "a"), None]]
    batches = [batch([n, n], met=[m and {"number": m[0], "shown": m[1]} for m in two]) for n, two in enumerate(met)]
    evaluation = Evaluation(batches, largest=frozenset({1}))
    assert list(evaluation) == []
    assert evaluation.digest == Digest(6, 6)
    assert evaluation.met == ObjectionCount(0, 2, "a")
    assert Evaluation([batch([1])]).met is None
    of_sizes = Evaluation(
        [batch([1, 1], met=[{"number": 1, "shown": "10"}, {"number": 1, "shown": "9"}])], largest=frozenset({1})
    )
    list(of_sizes)
    assert of_sizes.met == ObjectionCount(1, 2, "10")
