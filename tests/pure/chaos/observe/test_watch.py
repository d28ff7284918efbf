"""Outside readers: what they tell, in which order, and what they never tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from epochal.chaos.observe.history import Decided, Read, Row, TookOver
from epochal.chaos.observe.roles import Output
from epochal.chaos.observe.watch import Keys, LockedHistory, Watcher, attempt_number
from epochal.checkpoints.log import Commit, Fence
from epochal.checkpoints.memory import MemoryLog
from epochal.coordinator.model.epoch import Actor, Decision, Query

FIRST = 1_000
ONE = Row(0, 0, attempt_number("x"), 5)
TWO = Row(0, 1, attempt_number("x"), 5)


class Scripted:
    """A reader that answers with one output after the other; the last again and again."""

    def __init__(self, *outputs: Output | Exception) -> None:
        self._outputs = list(outputs)

    def read(self) -> Output:
        output = self._outputs.pop(0) if len(self._outputs) > 1 else self._outputs[0]
        if isinstance(output, Exception):
            raise output
        return output


def out(*ids: int) -> list[Mapping[str, Any]]:
    return [{"id": FIRST + i, "attempt": "x"} for i in ids]


def watcher(*outputs: Output | Exception, log: MemoryLog | None = None) -> Watcher:
    keys = Keys(FIRST, FIRST + 100)
    keys.rows({0: (Row(0, FIRST, 0, 5), Row(0, FIRST + 1, 0, 5))})
    return Watcher(LockedHistory(), Scripted(*outputs), keys, lambda: log)


def reads(of: Watcher, passes: int) -> Sequence[Mapping[str, tuple[Row, ...]]]:
    for _ in range(passes):
        of.look()
    return [read.content for _, read in of.history.of(Read)]


def test_what_two_passes_agree_on_was_there_at_one_time() -> None:
    watched = watcher({"a": out(0), "b": []}, {"a": out(0), "b": out(0)}, {"a": out(0), "b": out(0)})
    assert reads(watched, 3) == [
        {"a": (ONE,)},
        {"b": ()},
        {"a": (ONE,)},
        {"b": (ONE,)},
        {"a": (ONE,), "b": (ONE,)},
    ]


def test_rows_of_other_runs_are_nobodys_and_unknown_ones_of_this_run_are_told() -> None:
    foreign = [{"id": 5}, {"id": FIRST + 100}]
    watched = watcher({"a": [*foreign, *out(1, 0), {"id": FIRST + 50, "n": 9}]})
    assert reads(watched, 1) == [{"a": (Row(-1, 50, 0, 9), ONE, TWO)}]


def test_a_row_that_is_there_twice_is_told_twice() -> None:
    assert reads(watcher({"a": out(0, 0)}), 1) == [{"a": (ONE, ONE)}]


def test_the_value_counts_where_the_output_keeps_it() -> None:
    assert reads(watcher({"a": [{"id": FIRST, "n": 6, "attempt": "x"}]}), 1) == [{"a": (ONE._replace(value=6),)}]


def test_a_row_that_is_replaced_is_of_the_epoch_that_wrote_its_value() -> None:
    keys = Keys(FIRST, FIRST + 100)
    keys.rows({0: (Row(0, FIRST, 0, 5),), 3: (Row(3, FIRST, 0, 7),)})
    told = [keys.row({"id": FIRST, "n": value}) for value in (5, 7, 6, None)]
    assert told == [Row(0, 0, 0, 5), Row(3, 0, 0, 7), Row(-1, 0, 0, 6), Row(3, 0, 0, 7)]


def test_the_log_is_told_before_what_the_outputs_show() -> None:
    actor = Actor(1, 7)
    log = MemoryLog()
    watched = watcher({"a": []}, {"a": out(0)}, log=log)
    log.append(0, Fence(actor, Query("app", "q", "r", "/c"), 0))
    watched.look()
    decision = Decision("q", 0, actor, "f")
    log.append(1, Commit(decision, actor, {}))
    watched.look()
    watched.look()
    kinds = [type(event) for event in watched.history.events]
    assert kinds == [TookOver, Read, Decided, Read, Read]
    assert watched.history.events[2] == Decided(0, decision.id, "g1/7")


def test_a_pass_that_fails_tells_nothing_and_is_no_pass() -> None:
    watched = watcher(OSError("down"), {"a": out(0)})
    with pytest.raises(OSError, match="down"):
        watched.look()
    assert (watched.passes, watched.history.events) == (0, [])


def test_it_goes_on_reading_when_a_reader_fails() -> None:
    with watcher(OSError("down"), OSError("down"), {"a": out(0)}) as watched:
        assert watched.wait_passes(3, timeout=120)
        assert watched.troubles == ["OSError: down"] * 2
    told = len(watched.history.events)
    time.sleep(0.3)
    assert len(watched.history.events) == told > 0


def test_waiting_for_passes_is_bounded() -> None:
    with watcher(OSError("down")) as watched:
        assert not watched.wait_passes(1, timeout=0.5)


def test_nobody_tells_anything_in_between() -> None:
    history = LockedHistory()
    inside = threading.Event()

    def other() -> None:
        inside.wait(120)
        history.add(Read({"b": ()}))

    thread = threading.Thread(target=other)
    thread.start()
    with history.together():
        history.add(Read({"a": ()}))
        inside.set()
        time.sleep(0.2)
        history.add(Read({"a": ()}))
    thread.join(120)
    assert [list(read.content) for _, read in history.of(Read)] == [["a"], ["a"], ["b"]]
    assert len(history.times) == 3


def test_attempts_are_equal_only_where_their_texts_are() -> None:
    assert attempt_number("a") == attempt_number("a") != attempt_number("b")
    assert attempt_number(None) == 0 != attempt_number("")
