"""Every single fault, the pairs that protocols are known to break on, and samples of three and of four faults.

Which schedules there are says ``chaos/simulate/explore.py``; every other pair of faults is in ``test_every_pair.py``.
"""

from __future__ import annotations

import pytest

from epochal.chaos.simulate.explore import PAIRS, PIPELINES, SINGLES, Kind, explore
from tests.pure.chaos.simulate.tally import Tally


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINGLES, ids=str)
@pytest.mark.parametrize("name", PIPELINES)
def test_one_fault_anywhere(tally: Tally, name: str, kind: Kind) -> None:
    tally.check(explore(pipelines=[PIPELINES[name]], kinds=[kind]), at_least=5)


@pytest.mark.wide
@pytest.mark.parametrize("kind", PAIRS, ids=str)
@pytest.mark.parametrize("name", ["one", "two", "three"])
def test_a_pair_of_faults(tally: Tally, name: str, kind: Kind) -> None:
    tally.check(explore(pipelines=[PIPELINES[name]], kinds=[kind]), at_least=25)


@pytest.mark.wide
@pytest.mark.parametrize("kind", PAIRS, ids=str)
@pytest.mark.parametrize("name", ["idempotent-two", "to-idempotent", "to-two-phase"])
def test_a_pair_of_faults_without_a_decision(tally: Tally, name: str, kind: Kind) -> None:
    """A pause is a second driver, and what is struck in it: the two take turns at every event of either."""
    tally.check(explore(pipelines=[PIPELINES[name]], kinds=[kind]), at_least=25)


@pytest.mark.wide
@pytest.mark.parametrize("name", PIPELINES)
def test_three_faults_and_four_at_random(tally: Tally, name: str) -> None:
    tally.check(explore(pipelines=[PIPELINES[name]], kinds=(), samples=45), at_least=950)
