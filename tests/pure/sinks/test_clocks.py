"""What is told of a clock that is not in step, and how far an answer is to be trusted."""

from __future__ import annotations

import time

import pytest

from epochal.sinks.clocks import CLOCKS_S, compared, of_newest_record


def test_a_clock_that_is_in_step_is_told_with_the_inaccuracy() -> None:
    answer = compared("the server's clock", time.time)
    assert answer.value.startswith("the server's clock is 0.0")
    assert "this machine's, give or take 0.0" in answer.value
    assert answer.cautions == []


@pytest.mark.parametrize(("ahead", "told"), [(CLOCKS_S + 1, "s ahead of"), (-CLOCKS_S - 1, "s behind")])
def test_a_clock_that_is_not_is_a_caution(ahead: float, told: str) -> None:
    (caution,) = compared("the server's clock", lambda: time.time() + ahead).cautions
    assert f"the server's clock is {abs(ahead):.1f}"[:-2] in caution
    assert told in caution
    assert "NTP" in caution


def test_a_slow_answer_is_no_clock_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 130.0])  # asked, and answered 30 s later
    monkeypatch.setattr("epochal.sinks.clocks.time.time", lambda: next(now))
    answer = compared("the server's clock", lambda: 100.0)
    assert answer.value == "the server's clock is 15.000 s behind this machine's, give or take 15.000 s"
    assert answer.cautions == []


def test_a_record_of_the_past_says_only_how_old_it_is() -> None:
    answer = of_newest_record("t", time.time() - 3600)
    assert answer.value.startswith("a record of topic 't' is dated 3600.0")
    assert "s behind this machine's clock; Kafka tells nobody its time" in answer.value
    assert answer.cautions == []


def test_a_record_of_the_future_is_a_caution() -> None:
    assert of_newest_record("t", time.time() + CLOCKS_S - 1).cautions == []
    (caution,) = of_newest_record("t", time.time() + CLOCKS_S + 1).cautions
    assert "s ahead of this machine's clock. This is more than 10 s" in caution


def test_a_topic_without_a_record_tells_nothing() -> None:
    assert of_newest_record("t", None).value == "not known: Kafka tells nobody its time, and topic 't' has no record"
