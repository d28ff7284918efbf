"""A start that died at a line of its sink runs none of the sink's code any more, whatever stands there to undo."""

from __future__ import annotations

import contextlib
import functools
import gc
import sqlite3
import sys
import timeit
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from epochal.chaos.simulate.pipelines import SimulatedCrash
from epochal.chaos.trial.lines import Lines

done: list[str] = []


@contextlib.contextmanager
def guarded(name: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        done.append(f"undone in {name}")
        raise
    finally:
        done.append(f"left {name}")


class Guard:
    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *error: object) -> None:
        done.append("left a guard")


class Held:
    def __del__(self) -> None:
        done.append("deleted")


def helper() -> None:
    with guarded("a"), Guard():
        held = Held()
        try:
            with sqlite3.connect(":memory:") as connection:
                connection.execute("CREATE TABLE t (c)")
                done.append("one")
                done.append("two")
        except BaseException:
            done.append("handled")
            with guarded("b"):
                done.append("undone at length")
            raise
        finally:
            done.append("finally")
        del held


class Cleans:
    """All that Python can do on the way out."""

    def verb(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(done.append, "a callback of another's")
            stack.callback(lambda: done.append("a callback"))
            try:
                helper()
                done.append("helped")
            except BaseException:
                done.append("swallowed")
            done.append("on it goes")


class Swallows:
    def verb(self) -> int:
        try:
            done.append("one")
            done.append("two")
        except BaseException:
            return 1
        return 0


def crashed_at(kind: Callable[[], Any], at: int) -> tuple[bool, list[str], list[str]]:
    """Whether it died, what was done by then, and what after."""
    done.clear()
    count, before = 0, list(done)

    def tell(place: str, called_back: bool) -> None:  # noqa: ARG001
        nonlocal count, before
        count += 1
        if count == at:
            before = list(done)
            raise SimulatedCrash

    sink = kind()
    try:
        with Lines(type(sink), tell).told():
            sink.verb()
        died = False
    except SimulatedCrash:
        died = True
    gc.collect()
    return died, before, done[len(before) :]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lines"), [(Cleans, 25), (Swallows, 3)])
def test_nothing_happens_after_a_crash_at_any_line(kind: Callable[[], Any], lines: int) -> None:
    hooks = sys.gettrace(), sys.getprofile(), sys.unraisablehook
    for at in range(1, lines + 1):
        died, _, after = crashed_at(kind, at)
        assert died, at
        assert after == [], at
    assert not crashed_at(kind, lines + 10)[0]
    assert (sys.gettrace(), sys.getprofile(), sys.unraisablehook) == hooks


def test_nor_after_a_crash_between_rows() -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise SimulatedCrash

    class Writes:
        def verb(self) -> None:
            try:
                with guarded("rows"):
                    done.extend(str(row) for row in rows())
            except BaseException:
                done.append("undone")

    done.clear()
    with pytest.raises(SimulatedCrash), Lines(Writes, None).told():
        Writes().verb()
    assert done == ["1"]


def test_what_the_dead_left_open_is_closed_by_then(tmp_path: Any) -> None:
    """As the system closes it: a transaction is rolled back, and holds nobody up."""
    file = tmp_path / "a.db"

    class Opens:
        def verb(self) -> None:
            connection = sqlite3.connect(file, isolation_level=None)
            try:
                connection.execute("CREATE TABLE t (c)")
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO t VALUES (1)")
                connection.execute("COMMIT")
            finally:
                connection.close()

    count = 0

    def tell(place: str, called_back: bool) -> None:  # noqa: ARG001
        nonlocal count
        count += 1
        if count == 6:
            raise SimulatedCrash

    with pytest.raises(SimulatedCrash), Lines(Opens, tell).told():
        Opens().verb()
    with contextlib.closing(sqlite3.connect(file, 0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert other.execute("SELECT * FROM t").fetchall() == []


def test_a_line_that_a_library_calls_back_is_told_as_that() -> None:
    called: list[tuple[str, bool]] = []

    class Sorts:
        def verb(self) -> None:
            functools.reduce(lambda a, b: a + b, [1, 2])
            timeit.timeit(lambda: done.append("called"), number=1)

    with Lines(Sorts, lambda place, back: called.append((place, back))).told():
        Sorts().verb()
    assert [back for _, back in called] == [False, False, False, True]


def test_a_debugger_gets_its_turn_back_after_a_crash() -> None:
    def trace(frame: FrameType, event: str, argument: object) -> None: ...

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert crashed_at(Cleans, 12)[0]
        mine = sys.gettrace()
    finally:
        sys.settrace(before)
    assert mine is trace
