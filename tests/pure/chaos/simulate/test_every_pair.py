"""Every pair of faults that ``test_schedules.py`` leaves out, over the smaller pipelines: most of all schedules."""

from __future__ import annotations

import pytest

from epochal.chaos.simulate.explore import KINDS, PAIRS, PIPELINES, SINGLES, Kind, explore
from tests.pure.chaos.simulate.tally import Tally

pytestmark = pytest.mark.wide
OTHERS = [kind for kind in KINDS if kind not in (*SINGLES, *PAIRS)]


@pytest.mark.parametrize("kind", OTHERS, ids=str)
@pytest.mark.parametrize("name", ["one", "redo", "idempotent-one"])
def test_any_other_pair_of_faults(tally: Tally, name: str, kind: Kind) -> None:
    tally.check(explore(pipelines=[PIPELINES[name]], kinds=[kind]), at_least=5)


@pytest.mark.parametrize("kind", PAIRS, ids=str)
@pytest.mark.parametrize("name", ["redo", "votes", "transaction", "idempotent-redo"])
def test_a_pair_of_faults_over_other_pipelines(tally: Tally, name: str, kind: Kind) -> None:
    tally.check(explore(pipelines=[PIPELINES[name]], kinds=[kind]), at_least=20)
