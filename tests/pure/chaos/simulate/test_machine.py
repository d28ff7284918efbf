"""Tier 2 in its default profile: the same runs every time."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from epochal.chaos.simulate.machine import DEFAULT, CoordinatorMachine, FilesLogMachine


@pytest.mark.slow
def test_the_coordinator_holds_in_every_run() -> None:
    run_state_machine_as_test(CoordinatorMachine, settings=DEFAULT)


@pytest.mark.slow
def test_a_log_in_a_folder_holds_in_every_run() -> None:
    run_state_machine_as_test(FilesLogMachine, settings=settings(DEFAULT, max_examples=150))
