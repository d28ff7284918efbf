"""Which errors of a batch are told as a stop of the query.  On a real query: ``real/coordinator/query/test_run.py``."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from epochal.coordinator.model.errors import Interrupted, SinkUnavailable
from epochal.coordinator.query.spark import StreamingQuery


@dataclass
class OfTheJvm:
    """Spark's query; None: the JVM is gone, and nothing can be asked."""

    active: bool | None

    def isActive(self) -> bool:  # noqa: N802
        assert self.active is not None, "the JVM is asked"
        return self.active


def explained(error: Exception, active: bool | None) -> Exception:
    query = object.__new__(StreamingQuery)
    query.__dict__.update(_query=OfTheJvm(active), _batch="7")
    return query.explain(error)


STOPPED = [
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException: 5",
    "Job 3 cancelled part of cancelled job",
]


@pytest.mark.parametrize("text", STOPPED)
def test_an_interruption_of_a_query_that_is_over_is_told_as_a_stop(text: str) -> None:
    told = explained(RuntimeError(text), active=False)
    assert isinstance(told, Interrupted)
    assert told.epoch == 7
    assert text in (told.state or "")


def test_a_cause_counts_too() -> None:
    error = SinkUnavailable("the copy failed", help="try again")
    error.__cause__ = RuntimeError(STOPPED[0])
    assert isinstance(explained(error, active=False), Interrupted)


def test_any_other_error_stays_and_nobody_is_asked() -> None:
    error = SinkUnavailable("the server is down", help="start it")
    assert explained(error, active=None) is error


def test_an_interruption_of_a_query_that_goes_on_stays() -> None:
    error = RuntimeError(STOPPED[0])
    assert explained(error, active=True) is error


def test_what_is_told_already_stays() -> None:
    error = Interrupted("the query was stopped", state=STOPPED[0], help="nothing")
    assert explained(error, active=None) is error
