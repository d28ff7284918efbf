"""Tier 2 in its default profile: nearly the same runs every time.

Hypothesis also draws from the constants of the modules that are loaded, so a change far away may change some runs.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import Verbosity, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from epochal.chaos.simulate.machine import DEFAULT, CoordinatorMachine, FilesLogMachine

Captured = pytest.CaptureFixture[str]


def holds_and_comes_to_every_rule(machine: type[RuleBasedStateMachine], profile: settings, capsys: Captured) -> None:
    run_state_machine_as_test(machine, settings=settings(profile, verbosity=Verbosity.debug))
    ran = set(re.findall(r"state\.(\w+)\(", capsys.readouterr().out))
    made = machine()
    made.teardown()
    assert ran >= {rule.function.__name__ for rule in made.rules}


@pytest.mark.slow
def test_the_coordinator_holds_in_every_run(capsys: Captured) -> None:
    holds_and_comes_to_every_rule(CoordinatorMachine, DEFAULT, capsys)


@pytest.mark.slow
def test_a_log_in_a_folder_holds_in_every_run(capsys: Captured) -> None:
    holds_and_comes_to_every_rule(FilesLogMachine, settings(DEFAULT, max_examples=150), capsys)
