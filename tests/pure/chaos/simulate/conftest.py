"""Counts what the simulation did, says it at the end, and wants enough of it where every test has to run."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import typing
from collections.abc import Iterator

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


def _too_few(config: pytest.Config) -> bool:
    wide = config.pluginmanager.get_plugin("wide-last")
    return _tally.too_few(wide.left_out if wide is not None else None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _too_few(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _tally.all.schedules:
        terminalreporter.section("simulation")
        few = f"; at least {WANTED} ARE WANTED" if _too_few(terminalreporter.config) else ""
        terminalreporter.write_line(f"{_tally}{few}")
