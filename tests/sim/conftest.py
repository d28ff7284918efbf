"""Counts what the simulation did, and says it at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.sim.tally import Tally

_tally = Tally()


@pytest.fixture
def tally() -> Iterator[Tally]:
    """Where a test writes down the schedules that it played."""
    began = time.process_time()
    yield _tally
    _tally.seconds += time.process_time() - began


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _tally.schedules:
        terminalreporter.section("simulation")
        terminalreporter.write_line(str(_tally))
