"""Against ourselves: every kind of strike once, on driver, servers, network, checkpoint, disk and prepared rows."""

from __future__ import annotations

import pytest

from epochal.chaos.campaign import menus, own, rounds
from epochal.chaos.campaign.plan import Plan
from epochal.chaos.campaign.striker import DISK
from epochal.chaos.observe.checker import Verdict
from epochal.chaos.observe.history import Ended
from epochal.chaos.strike import disk
from epochal.chaos.strike.strikes import ON, Menu, Strike

pytestmark = pytest.mark.timeout(1800)

OURS = own.OWN["plain"]
"""Without Delta, whose drivers take twice as long to start."""


def every_kind() -> list[Strike]:
    """One strike for each action of the kit.  `make chaos` has every moment, and a third sink."""
    moments = OURS.moments
    all_of_them = (
        *menus.our_menu(moments),
        *menus.our_errors(moments),
        *menus.SERVER_MENU,
        *menus.checkpoint_menu(moments.losing),
    )
    return list({strike.action: strike for strike in reversed(all_of_them)}.values())


def test_every_action_of_the_kit_is_among_them() -> None:
    assert {strike.action for strike in every_kind()} == set(ON)


def test_every_kind_of_strike_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing may be mounted, a disk cannot be struck."""
    menu = Menu(every_kind())
    with capsys.disabled():
        plan = Plan(own.target("plain"), workload="map", strikes=len(menu.strikes))
        [result] = rounds.play(plan, print, menu=menu)
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
