"""What the driver makes of the answers and errors of the tasks that write rows."""

from __future__ import annotations

import pytest

from epochal.coordinator.model.epoch import Actor, Decision, Epoch, Json
from epochal.coordinator.model.errors import EpochalError, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.sinks import PostgresSink
from epochal.sinks.postgres.preparing import error_of_a_task, raise_refusals

SINK = PostgresSink("postgresql://127.0.0.1:1/nowhere", table="flights", name="out")._core
BY = Actor(1, 11)


def as_spark_tells_it(error: BaseException) -> Exception:
    """Spark passes on only the text of a task's error."""
    return RuntimeError(f"Job aborted\n{type(error).__module__}.{type(error).__qualname__}: {error}\n  at a line")


@pytest.mark.parametrize("kind", [SinkUnavailable, OutcomeUnknown])
def test_a_server_that_a_task_does_not_reach_is_an_unavailable_sink(kind: type[EpochalError]) -> None:
    made = error_of_a_task(SINK, as_spark_tells_it(kind("no route to host", sink="out", help="see there")), 7)
    assert isinstance(made, SinkUnavailable)
    assert (made.what, made.sink, made.epoch) == ("a task could not write: no route to host", "out", 7)


def test_the_help_is_that_of_the_task_unless_it_speaks_of_an_outcome() -> None:
    """What a task read is never in doubt, so what an unknown outcome asks for does not apply."""
    slow = SinkUnavailable("too slow", state="SQLSTATE 57014", help="raise bulk_timeout=")
    made = [error_of_a_task(SINK, as_spark_tells_it(error), 7) for error in (slow, OutcomeUnknown("lost", help="look"))]
    told = "make the server reachable from the executors, and restart the query"
    assert [error.help for error in made if error is not None] == ["raise bulk_timeout=", told]


def test_a_worker_without_epochal_is_a_misconfiguration() -> None:
    made = error_of_a_task(SINK, as_spark_tells_it(ModuleNotFoundError("No module named 'epochal'")), 7)
    assert isinstance(made, Misconfigured)
    assert (made.what, made.sink) == ("Epochal is not installed on the executors", "out")


def test_any_other_error_of_a_task_stays_as_it_is() -> None:
    assert error_of_a_task(SINK, as_spark_tells_it(ZeroDivisionError("of the query itself")), 7) is None


def test_a_task_without_its_client_library_is_a_misconfiguration() -> None:
    votes: list[Json] = [{"rows": 1}, {"client": "numpy is missing here"}]
    with pytest.raises(Misconfigured, match="an executor cannot write: numpy is missing here") as refused:
        raise_refusals(SINK, votes, Epoch(Decision("q", 7, BY, "f"), 1), BY)
    assert (refused.value.sink, refused.value.epoch) == ("out", 7)
