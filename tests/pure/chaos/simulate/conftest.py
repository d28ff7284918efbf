"""Counts what the simulation did, says it at the end, and wants enough of it where all of this folder runs."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.chaos.simulate.pipelines import Pipeline
from epochal.coordinator.model import failpoints
from tests.pure.chaos.simulate.scenes import MakeScene, Scene
from tests.pure.chaos.simulate.tally import WANTED, Tally

gc.set_threshold(50_000, 20, 20)  # worlds are small and many: a twelfth of the time went into looking for their cycles
if sys.version_info < (3, 12):  # which looks up a protocol's members once; here it is a tenth of the time
    typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)  # type: ignore[attr-defined]

_tally = Tally()


@pytest.fixture
def tally() -> Tally:
    """Where a test writes down the schedules that it played."""
    return _tally


@pytest.fixture
def scene() -> Iterator[MakeScene]:
    """Makes a world: ``scene(pipeline)``; all that it was told to do must have happened."""
    worlds: list[Scene] = []
    with contextlib.ExitStack() as stack:

        def make(pipeline: Pipeline, kind: type[Scene] = Scene) -> Scene:
            world = kind(pipeline, zombies=True)
            stack.enter_context(failpoints.handler(world.hit))
            worlds.append(world)
            return world

        yield make
    assert [order for world in worlds for order in world.unstruck()] == []


def _is_whole(session: pytest.Session) -> bool:
    """Whether every test of this folder was asked for, in this process: neither the proof nor a lane has them all."""
    files = {item.path for item in session.items}
    chosen = session.config.getoption("--proof") or session.config.option.keyword or session.config.option.markexpr
    return not chosen and files >= set(Path(__file__).parent.glob("test_*.py"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    _tally.is_owed = _is_whole(session)
    if _tally.too_few and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _tally.all.schedules:
        terminalreporter.section("simulation")
        few = f"; at least {WANTED} ARE WANTED" if _tally.too_few else ""
        terminalreporter.write_line(f"{_tally}{few}")
