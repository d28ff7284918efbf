"""Sinks of somebody else's under the real coordinator: right ones survive every schedule, wrong ones do not."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from epochal.chaos.simulate.schedule import Action, Strike
from epochal.chaos.trial import DidNotSurvive, NotExact, Plan, Subject, Survival, Target, survives
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Epoch
from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.conditions import Conditions, marker_of
from epochal.sinks.memory import MemoryRedoSink, MemoryServer, MemorySink, Row, Shown, prepared_rows
from epochal.sinks.protocol import CommitOutcome, Sink


class Place:
    """A subject over servers in memory: one for every target."""

    def __init__(
        self, voting: Sequence[str] = ("out",), redo: Sequence[str] = (), kind: type[MemoryServer] = MemoryServer
    ):
        self._voting, self._redo, self._kind = voting, redo, kind
        self._servers: dict[str, MemoryServer] = {}
        self.targets: list[str] = []

    def server(self, target: Target) -> MemoryServer:
        if target.name not in self._servers:
            self._servers = {target.name: self._kind()}
            self.targets.append(target.name)
        return self._servers[target.name]

    def sinks(self, target: Target) -> list[Sink]:
        server = self.server(target)
        made: list[Sink] = [MemorySink(name, server) for name in self._voting]
        return [*made, *(MemoryRedoSink(name, server, target.stage) for name in self._redo)]

    def read(self, target: Target) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        return {name: self.server(target).visible(target.app, name) for name in (*self._voting, *self._redo)}

    def survives(self, plan: Plan | None = None) -> Survival:
        return survives(Subject(self.sinks, self.read), plan)


PLACES: Mapping[str, Callable[[], Place]] = {
    "votes": Place,
    "redoes": lambda: Place((), ("out",)),
    "both": lambda: Place(("a",), ("b",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_a_right_sink_survives_every_single_fault(name: str) -> None:
    survival = PLACES[name]().survives(Plan(lines=False))
    assert survival.schedules == len(survival.traces) >= 190


@pytest.mark.slow
def test_it_survives_a_crash_at_every_line_of_its_own() -> None:
    survival = Place().survives(Plan(actions=(Action.CRASH,)))
    without = Place().survives(Plan(actions=(Action.CRASH,), lines=False))
    assert survival.schedules - without.schedules >= 50


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_a_right_sink_survives_pairs_of_faults(name: str) -> None:
    survival = PLACES[name]().survives(Plan("pairs", at_most=150, seed=5))
    assert survival.schedules == 150
    assert len(survival.traces) >= 140


@pytest.mark.slow
def test_all_pairs_are_many() -> None:
    survival = Place().survives(Plan("pairs", actions=(Action.CRASH,), epochs=1, lines=False))
    assert survival.schedules == len(survival.traces) >= 170


def test_more_than_there_are_are_not_played() -> None:
    assert Place().survives(Plan("pairs", actions=(Action.DROP_ANSWER,), at_most=10)).schedules == 5


def test_every_schedule_has_a_target_of_its_own() -> None:
    place = Place()
    survival = place.survives(Plan(actions=(Action.CRASH,)))
    assert len(set(place.targets)) == len(place.targets) == survival.schedules + 1
    assert all(name.isidentifier() and name == name.lower() for name in place.targets)


def test_a_seed_chooses_the_same_schedules() -> None:
    few = Plan("pairs", at_most=20, seed=3)
    assert Place().survives(few).traces == Place().survives(few).traces
    assert Place().survives(few).traces != Place().survives(Plan("pairs", at_most=20, seed=4)).traces


def test_at_most_so_many_singles_are_played() -> None:
    assert Place().survives(Plan(at_most=7)).schedules == 7


def test_a_schedule_is_played_alone() -> None:
    crash = Strike("d1", 12, Action.CRASH)
    assert Place().survives(Plan(schedules=((crash,), (crash, Strike("d2", 20, Action.PAUSE))))).schedules == 2


def test_a_strike_that_never_happens_is_no_pass() -> None:
    with pytest.raises(DidNotSurvive, match="crash at event 900 of d1 never happened"):
        Place().survives(Plan(schedules=((Strike("d1", 900, Action.CRASH),),)))


# --- wrong sinks ------------------------------------------------------------------------------------


class AsksNoFence(MemoryServer):
    """Whoever commits."""

    def already_committed(self, app: str, c: Committable, by: Actor) -> bool:  # noqa: ARG002
        owner = self.table(app, c.sink).fence
        assert owner is not None
        return super().already_committed(app, c, owner)


class TakesAnyFence(MemoryServer):
    """Also an older one."""

    def fence(self, app: str, sink: str, by: Actor) -> None:
        self.table(app, sink).fence = by


class DropsForAnybody(MemoryServer):
    """Whoever aborts."""

    def abort(self, app: str, sink: str, by: Actor) -> int:  # noqa: ARG002
        self.table(app, sink).prepared = {}
        return 0


class WritesInTwoSteps(MemoryServer):
    """The rows, and then the marker."""

    def publish(self, app: str, c: Committable, by: Actor, rows: tuple[Row, ...] | None) -> CommitOutcome:  # noqa: ARG002
        if self.already_committed(app, c, by):
            return CommitOutcome.ALREADY_COMMITTED
        table = self.table(app, c.sink)
        table.shown.append(Shown(c.position, c.decision.id, prepared_rows(table, c)))
        failpoints.hit(Point.BEFORE_PUBLISH, c.sink, c.decision.epoch)
        table.marker = marker_of(c)
        return CommitOutcome.COMMITTED


class ShowsEveryAttempt(MemoryServer):
    """All that is prepared at the position, also by starts that are dead."""

    def publish(self, app: str, c: Committable, by: Actor, rows: tuple[Row, ...] | None) -> CommitOutcome:  # noqa: ARG002
        if self.already_committed(app, c, by):
            return CommitOutcome.ALREADY_COMMITTED
        table = self.table(app, c.sink)
        every = tuple(row for p in table.prepared.values() if p.position == c.position for row in p.rows)
        table.shown.append(Shown(c.position, c.decision.id, every))
        table.marker, table.prepared = marker_of(c), {}
        return CommitOutcome.COMMITTED

    def abort(self, app: str, sink: str, by: Actor) -> int:
        Conditions(sink, self.name).check_owner(self.table(app, sink), by)
        return 0


class TakesItsWord(MemoryServer):
    """Answers that it is committed, for an epoch that another start prepared."""

    def publish(self, app: str, c: Committable, by: Actor, rows: tuple[Row, ...] | None) -> CommitOutcome:
        if c.decision.actor != by:
            return CommitOutcome.ALREADY_COMMITTED
        return super().publish(app, c, by, rows)


class Chokes(MemoryServer):
    """Ends with an error of its own where the contract names one."""

    def publish(self, app: str, c: Committable, by: Actor, rows: tuple[Row, ...] | None) -> CommitOutcome:
        if c.decision.actor != by:
            raise KeyError(c.payload["attempt"])
        return super().publish(app, c, by, rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (AsksNoFence, r"fence: commit in out by g1/\w+ succeeded, but the fence belonged to g2/"),
        (TakesAnyFence, r"fence: (.*; )?out accepted the fence of g1/\w+ after that of g2/"),
        (DropsForAnybody, r"fence: abort in out by g1/\w+ succeeded, but the fence belonged to g2/"),
        (WritesInTwoSteps, "I2: false: out has too many"),
        (ShowsEveryAttempt, r"I4: false: .*epoch \d has rows of attempts"),
        (TakesItsWord, "I1: false: out lacks"),
        (Chokes, r"stuck: no driver finished; the last error was CommitInDoubt\(.*KeyError"),
    ],
)
def test_a_wrong_sink_does_not_survive_one_fault(kind: type[MemoryServer], says: str) -> None:
    with pytest.raises(DidNotSurvive, match=says) as failed:
        Place(kind=kind).survives()
    (strike,) = failed.value.outcome.schedule
    assert f"<== {strike.action.value.upper()}" in str(failed.value)
    with pytest.raises(DidNotSurvive, match=says):
        Place(kind=kind).survives(Plan(schedules=((strike,),)))


class ShowsTheNewest(MemoryServer):
    """Not the attempt that was voted for; only a late twin tells the difference."""

    def publish(self, app: str, c: Committable, by: Actor, rows: tuple[Row, ...] | None) -> CommitOutcome:  # noqa: ARG002
        if self.already_committed(app, c, by):
            return CommitOutcome.ALREADY_COMMITTED
        table = self.table(app, c.sink)
        table.shown.append(Shown(c.position, c.decision.id, [*table.prepared.values()][-1].rows))
        table.marker = marker_of(c)
        return CommitOutcome.COMMITTED


@pytest.mark.slow
def test_some_wrong_sinks_take_two_faults() -> None:
    Place(kind=ShowsTheNewest).survives()
    with pytest.raises(DidNotSurvive, match="I1: false: out lacks"):
        Place(kind=ShowsTheNewest).survives(Plan("pairs", actions=(Action.LATE,)))


def test_an_unsafe_order_of_statements_is_found_by_a_crash_between_them() -> None:
    """No failpoint stands there; the start dies at a line of the sink."""
    shown: dict[str, list[Row]] = {}

    class MarksFirst(MemorySink):
        def commit(self, committable: Committable, by: Actor) -> CommitOutcome:
            rows = [row for p in self._server.table(self._looked(), self.name).prepared.values() for row in p.rows]
            outcome = super().commit(committable, by)
            if outcome is CommitOutcome.COMMITTED:
                shown.setdefault(self._looked(), []).extend(rows)
            return outcome

    def subject() -> Subject:
        place = Place()
        return Subject(
            lambda target: [MarksFirst("out", place.server(target))],
            lambda target: {"out": list(shown.get(target.app, ()))},
        )

    plan = Plan(actions=(Action.CRASH,), epochs=1)
    with pytest.raises(DidNotSurvive, match=r"I1: false: out lacks") as failed:
        survives(subject(), plan)
    assert re.search(r"\w+\.py:\d+ out <== CRASH", str(failed.value))
    schedule = failed.value.outcome.schedule
    with pytest.raises(DidNotSurvive, match="I1: false: out lacks"):
        survives(subject(), replace(plan, schedules=(schedule,)))


def test_a_debugger_gets_its_turn_back() -> None:
    seen = []

    def trace(frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG001
        seen.append(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        Place().survives(Plan(actions=(Action.CRASH,), at_most=5, epochs=1))
        mine = sys.gettrace()
    finally:
        sys.settrace(before)
    assert mine is trace
    assert "survives" in seen


class ShowsAtOnce(MemoryServer):
    """What is prepared is visible."""

    def prepare(self, app: str, sink: str, epoch: Epoch, rows: tuple[Row, ...], by: Actor) -> Any:
        self.table(app, sink).shown.append(Shown(epoch.position, 0, rows))
        return super().prepare(app, sink, epoch, rows, by)


def test_a_sink_that_is_wrong_without_any_fault_is_told_so() -> None:
    with pytest.raises(NotExact, match="without any fault: no fault\n  I2: false: out has too many"):
        Place(kind=ShowsAtOnce).survives()


# --- what the author gives --------------------------------------------------------------------------


def test_a_reader_that_fails_is_no_pass_and_is_named() -> None:
    place = Place()

    def read(target: Target) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        return {"out": [{"id": row["id"]} for row in place.read(target)["out"]]}

    with pytest.raises(NotExact, match="reader: the reader failed with KeyError: 'epoch'"):
        survives(Subject(place.sinks, read))


def test_a_reader_that_leaves_a_sink_out_is_named() -> None:
    with pytest.raises(NotExact, match="reader: the reader failed with KeyError: 'out'"):
        survives(Subject(Place().sinks, lambda target: {}))  # noqa: ARG005


def test_a_reader_may_give_text_and_no_value() -> None:
    place = Place()

    def read(target: Target) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        return {
            "out": [{key: str(row[key]) for key in ("id", "attempt", "epoch")} for row in place.read(target)["out"]]
        }

    assert survives(Subject(place.sinks, read), Plan(at_most=20)).schedules == 20


def test_rows_may_be_of_a_kind_of_their_own() -> None:
    place, given = Place(), []

    class Frame:
        def __init__(self, rows: Sequence[Row]) -> None:
            self.rows = rows
            given.append(self)

        def collect(self) -> list[Any]:
            return [type("R", (), {"asDict": lambda self, recursive, row=row: dict(row)})() for row in self.rows]  # noqa: ARG005

    assert survives(Subject(place.sinks, place.read, rows=Frame), Plan(at_most=30)).schedules == 30
    assert len(given) > 30


def test_no_sinks_are_a_mistake() -> None:
    with pytest.raises(Misconfigured, match="the factory of sinks made none"):
        survives(Subject(lambda target: [], lambda target: {}))  # noqa: ARG005


def test_sinks_are_closed_with_the_start_that_made_them() -> None:
    place, opened, closed = Place(), [], []

    class Closing(MemorySink):
        def look(self, *args: Any, **options: Any) -> Any:
            opened.append(self)
            return super().look(*args, **options)

        def close(self) -> None:
            closed.append(self)
            super().close()

    def sinks(target: Target) -> list[Sink]:
        return [Closing("out", place.server(target))]

    survives(Subject(sinks, place.read), Plan(actions=(Action.CRASH, Action.PAUSE, Action.LATE), at_most=40))
    assert {id(sink) for sink in opened} <= {id(sink) for sink in closed}
