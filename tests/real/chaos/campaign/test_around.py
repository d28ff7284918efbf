"""Against ourselves: the checkpoint's files, the disk below it, and rows that were prepared."""

from __future__ import annotations

import pytest

from epochal.chaos.campaign import menus, rounds
from epochal.chaos.campaign.plan import Plan
from epochal.chaos.campaign.striker import DISK
from epochal.chaos.observe.checker import Verdict
from epochal.chaos.observe.history import Ended
from epochal.chaos.strike import disk
from epochal.chaos.strike.strikes import Menu
from tests.real.chaos.campaign import fewer

pytestmark = pytest.mark.timeout(1800)


def test_what_is_done_around_a_driver_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """Every action once (`make chaos` has all moments and a third sink); where nothing may be mounted, a disk cannot be
    struck."""
    each = {strike.action: strike for strike in reversed(menus.checkpoint_menu(["postgres"]))}
    menu = Menu(list(each.values()))
    with capsys.disabled():
        plan = Plan(fewer.TARGET, workload="map", strikes=len(menu.strikes))
        [result] = rounds.play(plan, print, menu=menu, servers=fewer.SINKS)
    assert result.verdict is Verdict.TRUE, (
        result.run.proves_nothing,
        {name: found.why for name, found in result.findings.items() if not found},
    )
    impossible = set(DISK) if disk.why_not() else set()
    assert {strike.action for strike in result.unreached} == impossible
    ends = [end.outcome for _, end in result.run.history.of(Ended)]
    assert ends[-1] == "finished"
    assert impossible or "PrepareRefused" in ends, "a disk that is full under the durable copy is named"
    assert ends.count("CheckpointMismatch") >= 4, "a restored, forgotten, lost or copied checkpoint is refused"
