"""The state machines notice a promise that is broken, and print the program that breaks it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from epochal.chaos.observe.checker import Verdict
from epochal.chaos.simulate.machine import DEEP, DEFAULT, CoordinatorMachine, FilesLogMachine, fuzz
from epochal.checkpoints import files
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.names import encode_floor
from epochal.coordinator.model.epoch import Actor, EpochRequest
from epochal.coordinator.model.errors import EpochalError
from epochal.coordinator.protocol import appends, coordinator, judge
from epochal.coordinator.protocol.start import Start
from epochal.sinks import memory
from epochal.sinks.conditions import Conditions

UNSHRUNK = settings(DEFAULT, phases=[Phase.generate])
Patch = pytest.MonkeyPatch


def notes(error: BaseException) -> str:
    """Where Hypothesis puts its program."""
    return "\n".join(getattr(error, "__notes__", ()))


def without(rule_name: str) -> Callable[[Patch], None]:
    """The judgement without one of its rules."""

    def plant(patch: Patch) -> None:
        for table in ("LOOK", "LOOK_AGAIN", "IDENTIFY"):
            patch.setattr(judge, table, tuple(r for r in getattr(judge, table) if r.__name__ != rule_name))

    return plant


def no_owner(patch: Patch) -> None:
    """Sinks do not ask who is calling."""
    patch.setattr(Conditions, "check_owner", lambda *_, **__: None)


def no_marker(patch: Patch) -> None:
    """Sinks do not ask what they show already."""
    patch.setattr(Conditions, "already_committed", lambda self, held, by, *_: self.check_owner(held, by) or False)


def taken_is_mine(patch: Patch) -> None:
    """Who lost the race for a position believes to have won it."""
    patch.setattr(appends, "is_mine", lambda *_: True)


def drops_all(patch: Patch) -> None:
    """Who cleans up drops what newer actors made, too."""
    patch.setattr(memory, "may_drop", lambda *_: True)


def refused_and_written(patch: Patch) -> None:
    """A start that is refused has fenced the sinks before."""
    look = coordinator.look

    def fence_first(start: Start, ask: EpochRequest) -> int:
        try:
            return look(start, ask)
        except EpochalError:
            for sink in start.sinks.values():
                assert isinstance(sink, memory.MemorySink | memory.MemoryRedoSink)
                sink._server.table(ask.query.app, sink.name).fence = Actor(99, 1)
            raise

    patch.setattr(coordinator, "look", fence_first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "says"),
    [
        pytest.param(no_owner, "fenced it", id="no owner"),
        pytest.param(no_marker, "too many", id="no marker"),
        pytest.param(taken_is_mine, "not decided|lacks", id="a lost race"),
        pytest.param(drops_all, "dropped what", id="drops what is newer"),
        pytest.param(without("_same_place"), "refused: r", id="a copy runs"),
        pytest.param(without("_empty_log_means_untouched_sinks"), "refused: r", id="a second checkpoint runs"),
        pytest.param(refused_and_written, "has written", id="a refused start writes"),
    ],
)
def test_the_default_profile_notices(monkeypatch: Patch, plant: Callable[[Patch], None], says: str) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=says) as failed:
        run_state_machine_as_test(CoordinatorMachine, settings=UNSHRUNK)
    program = notes(failed.value)
    assert "state = CoordinatorMachine()" in program
    assert "state.teardown()" in program


def test_a_table_of_another_identity_is_noticed(monkeypatch: Patch) -> None:
    """Three rules bar a recreated table, each alone would."""
    for name in ("_participants_unchanged", "_participants_fenced", "_markers_belong"):
        without(name)(monkeypatch)
    with pytest.raises(AssertionError, match="refused: r"):
        run_state_machine_as_test(CoordinatorMachine, settings=UNSHRUNK)


def never_looks_again(patch: Patch) -> None:
    """An append does not ask whether a compaction was faster."""
    patch.setattr(FilesLog, "_is_last", lambda *_: True)


def keeps_nothing(patch: Patch) -> None:
    """A compaction loses what it was to keep."""
    patch.setattr(files, "encode_floor", lambda floor, _: encode_floor(floor, ()))


@pytest.mark.slow
@pytest.mark.parametrize("plant", [never_looks_again, keeps_nothing])
def test_the_machine_of_the_log_notices(monkeypatch: Patch, plant: Callable[[Patch], None]) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError) as failed:
        run_state_machine_as_test(FilesLogMachine, settings=UNSHRUNK)
    assert "state = FilesLogMachine()" in notes(failed.value)


def test_a_failed_run_leaves_no_thread_behind(monkeypatch: Patch) -> None:
    no_owner(monkeypatch)
    before = len(sys._current_frames())
    with pytest.raises(AssertionError):
        run_state_machine_as_test(CoordinatorMachine, settings=UNSHRUNK)
    limit = time.monotonic() + 120
    while len(sys._current_frames()) > before and time.monotonic() < limit:
        time.sleep(0.01)
    assert len(sys._current_frames()) <= before


def test_fuzzing_ends_with_the_time_and_says_how_much_it_ran() -> None:
    fuzzed = fuzz(seconds=0.01, profile=settings(DEEP, max_examples=5, stateful_step_count=5))
    assert (fuzzed.verdict, fuzzed.program) == (Verdict.TRUE, "")
    assert 1 <= fuzzed.runs <= 20
    assert "true: " in str(fuzzed)


@pytest.mark.slow
def test_fuzzing_finds_the_same_with_the_same_seed(monkeypatch: Patch) -> None:
    no_owner(monkeypatch)
    unshrunk = settings(DEEP, phases=[Phase.generate])
    first, second = (fuzz(seconds=60, seed=7, profile=unshrunk) for _ in range(2))
    assert first.verdict is Verdict.FALSE
    assert "state = CoordinatorMachine()" in first.program
    start = "state = CoordinatorMachine()"  # what stands before it names actors by their random tokens
    assert first.program.partition(start)[2] == second.program.partition(start)[2]
    assert first.runs == second.runs
