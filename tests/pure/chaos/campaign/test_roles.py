"""Every role has one that does nothing, one that puts several together, and one that refuses what cannot be."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from epochal.chaos.campaign.menus import (
    EXECUTOR_MENU,
    FOREIGN_ERRORS,
    FOREIGN_MENU,
    SERVER_MENU,
    checkpoint_menu,
    our_errors,
    our_menu,
)
from epochal.chaos.campaign.own import OWN
from epochal.chaos.campaign.roles import CheckedReport, Reports, Silent
from epochal.chaos.job import workloads
from epochal.chaos.job.moments import Moments
from epochal.chaos.job.workload import Alternating, CheckedWorkload, Input, NoInput
from epochal.chaos.observe.checker import Finding, Verdict
from epochal.chaos.observe.history import Ended, Event, History, Row, Started
from epochal.chaos.observe.roles import (
    CheckedListener,
    CheckedReader,
    Deaf,
    Listeners,
    NoReader,
    Output,
    Readers,
    RoleError,
)
from epochal.chaos.observe.run import Run
from epochal.chaos.strike.strikes import CheckedNemesis, InTurn, Menu, Nemesis, Nobody, Strike
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.failpoints import Point

EMPTY = Run(History(), ("a",), {})
KILL = Strike("kill", "driver", Point.AFTER_DECIDE, 0)
RAISE = Strike("raise", "driver", Point.BEFORE_RETURN, 0)


@dataclass
class Says:
    """A reader that answers what it was given."""

    output: Any

    def read(self) -> Output:
        found: Output = self.output
        return found


@dataclass
class Told:
    """A report that remembers, or fails."""

    error: Exception | None = None
    verdicts: list[Mapping[str, Finding]] = field(default_factory=list)

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None:  # noqa: ARG002
        self.verdicts.append(findings)
        if self.error is not None:
            raise self.error


# workload


def test_nothing_fed_is_nothing_expected() -> None:
    nothing = CheckedWorkload(NoInput())
    assert nothing.inputs(3, 10) == ()
    assert nothing.expected({0: (), 1: ()}) == {0: (), 1: ()}
    assert (nothing.accounts(()), nothing.pending({})) == ((), 0)


def test_workloads_alternate_by_epoch() -> None:
    both = Alternating([workloads.make_workload("rows", 0), NoInput()])
    assert [len(both.inputs(epoch, 0)) for epoch in range(4)] == [workloads.ROWS, 0, workloads.ROWS, 0]
    assert both.name == "rows+nothing"
    fed = {0: both.inputs(0, 0), 1: ()}
    assert [len(rows) for rows in both.expected(fed).values()] == [workloads.ROWS, 0]


@pytest.mark.parametrize("name", workloads.NAMES)
def test_a_workload_keeps_to_its_ids_and_epochs(name: str) -> None:
    work = workloads.make_workload(name, 1_000_000)
    fed = {epoch: work.inputs(epoch, 1_000_000 + epoch * workloads.STRIDE) for epoch in range(6)}
    ids = [i["id"] for inputs in fed.values() for i in inputs]
    assert len(set(ids)) == len(ids)
    rows = [row for found in work.expected(fed).values() for row in found]
    assert min(row.key for row in rows) >= 1_000_000
    assert {row.epoch for row in rows} <= set(fed)


def test_inputs_that_could_be_mistaken_for_others_are_refused() -> None:
    class Repeats(workloads.Counting):
        def inputs(self, epoch: int, first: int) -> list[Input]:
            return [{"id": first, "epoch": epoch}, {"id": first, "epoch": epoch}]

    with pytest.raises(RoleError, match="need unique ids"):
        CheckedWorkload(Repeats()).inputs(0, 5)


def test_expectations_about_other_epochs_are_refused() -> None:
    class Wrong(workloads.Counting):
        def expected(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, Any]:  # noqa: ARG002
            return {7: ()}

    with pytest.raises(RoleError, match=r"expects epochs \[7\] of \[0\]"):
        CheckedWorkload(Wrong()).expected({0: ()})


def table(work: CheckedWorkload, epochs: int) -> list[dict[int, int]]:
    """What is there after each epoch: key less the first, value."""
    fed = {epoch: work.inputs(epoch, 1_000_000 + epoch * workloads.STRIDE) for epoch in range(epochs)}
    return [{row.key - 1_000_000: row.value for row in rows} for rows in work.after(fed).values()]


def test_changes_insert_update_delete_and_bring_back() -> None:
    found = table(workloads.make_workload("upsert", 1_000_000), 5)
    for key, seen in {0: "iuu..", 4: "idid.", 6: "id...", 2: "iu..."}.items():
        values = [after.get(key) for after in found]
        told = "".join(_what(before, now) for before, now in zip([None, *values], values, strict=False))
        assert told == seen, key
    assert len({value for after in found for value in after.values()}) > max(map(len, found))


def _what(before: int | None, now: int | None) -> str:
    if before == now:
        return "."
    return "d" if now is None else "i" if before is None else "u"


def test_totals_are_replaced_by_every_epoch() -> None:
    found = table(workloads.make_workload("complete", 1_000_000), 3)
    assert found == [dict.fromkeys(range(workloads.GROUPS), n * 5) for n in (1, 2, 3)]


def test_a_workload_that_only_adds_tells_of_no_content() -> None:
    assert [n for n in workloads.NAMES if workloads.make_workload(n, 0).after({0: ()})] == ["upsert", "complete"]


A, B = Row(0, 1, 0, 1), Row(1, 1, 0, 2)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ({0: (A,)}, r"returns epochs \[0\] for \[0, 1, 2\]"),
        ({0: (A,), 1: (A, B), 2: ()}, "has a key twice after one epoch"),
        ({0: (A,), 1: (B,), 2: (A,)}, "repeats a content"),
        ({0: (A,), 1: (), 2: (B,)}, "repeats a content"),
    ],
)
def test_contents_that_could_be_taken_for_others_are_refused(after: Mapping[int, Any], why: str) -> None:
    class Wrong(workloads.Changes):
        def after(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, Any]:  # noqa: ARG002
            return after

    with pytest.raises(RoleError, match=why):
        CheckedWorkload(Wrong()).after({0: (), 1: (), 2: ()})


def test_a_row_that_is_written_twice_alike_is_refused() -> None:
    class Wrong(workloads.Changes):
        def expected(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, Any]:  # noqa: ARG002
            return {0: (A,), 1: (A._replace(epoch=1),)}

    with pytest.raises(RoleError, match="or a key twice"):
        CheckedWorkload(Wrong()).expected({0: (), 1: ()})


# reader


def test_readers_are_read_one_after_the_other() -> None:
    assert NoReader().read() == {}
    assert Readers([Says({"a": []}), NoReader(), Says({"b": [{"id": 1}]})]).read() == {"a": [], "b": [{"id": 1}]}


@pytest.mark.parametrize(
    ("output", "why"),
    [
        pytest.param({"b": []}, r"returned outputs \['b'\]", id="another sink"),
        pytest.param({}, r"returned outputs \[\]", id="no sink"),
        pytest.param({"a": [{"key": 1}]}, "an integer as id", id="no id"),
        pytest.param({"a": [{"id": "1"}]}, "an integer as id", id="a text as id"),
        pytest.param({"a": [{"id": True}]}, "an integer as id", id="a truth as id"),
    ],
)
def test_an_answer_that_cannot_be_judged_is_refused(output: Any, why: str) -> None:
    with pytest.raises(RoleError, match=why):
        CheckedReader(Says(output), frozenset({"a"})).read()
    assert CheckedReader(Says({"a": [{"id": 1}]}), frozenset({"a"})).read() == {"a": [{"id": 1}]}


# nemesis


def plan(nemesis: Nemesis, epochs: range = range(3, 9), seed: int = 1) -> Sequence[Strike]:
    return nemesis.plan(epochs, random.Random(seed))


def test_a_menu_draws_each_strike_once_before_any_comes_again() -> None:
    drawn = plan(Menu([KILL, RAISE]), range(3, 9))
    assert [strike.epoch for strike in drawn] == [3, 4, 5, 6, 7, 8]
    assert [{s.action for s in drawn[i : i + 2]} for i in (0, 2, 4)] == [{"kill", "raise"}] * 3
    assert not [*plan(Nobody()), *plan(Menu([]))]


def test_the_seed_decides_alone() -> None:
    menu = Menu(our_menu(Moments(["a", "b"])))
    assert plan(menu, seed=4) == plan(menu, seed=4) != plan(menu, seed=5)


def test_several_nemeses_share_the_epochs() -> None:
    drawn = plan(InTurn([Menu([KILL]), Menu([RAISE])]), range(3, 8))
    assert [(s.action, s.epoch) for s in drawn] == [("kill", 3), ("kill", 4), ("kill", 5), ("raise", 6), ("raise", 7)]


@dataclass(frozen=True)
class Planned:
    strikes: Sequence[Strike]

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]:  # noqa: ARG002
        return self.strikes


@pytest.mark.parametrize(
    "strikes",
    [
        pytest.param([Strike("tickle", "driver", Point.AFTER_DECIDE, 3)], id="action"),
        pytest.param([Strike("kill", "moon", Point.AFTER_DECIDE, 3)], id="victim"),
        pytest.param([Strike("crash", "driver", Point.AFTER_DECIDE, 3)], id="a victim of another action"),
        pytest.param([Strike("kill", "driver", Point.AFTER_DECIDE, 2)], id="an epoch before"),
        pytest.param([Strike("kill", "driver", Point.AFTER_DECIDE, e) for e in (4, 3)], id="order"),
        pytest.param([Strike("kill", "driver", Point.AFTER_DECIDE, e) for e in (4, 4)], id="two in one epoch"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(strikes: Sequence[Strike]) -> None:
    with pytest.raises(RoleError):
        plan(CheckedNemesis(Planned(strikes)))


@pytest.mark.parametrize(
    "menu",
    [
        pytest.param(FOREIGN_MENU, id="foreign"),
        pytest.param(FOREIGN_ERRORS, id="foreign errors"),
        *(pytest.param(our_menu(one.moments), id=f"{name}") for name, one in OWN.items()),
        *(pytest.param(our_errors(one.moments), id=f"{name}, errors") for name, one in OWN.items()),
        pytest.param(SERVER_MENU, id="servers"),
        pytest.param(EXECUTOR_MENU, id="executors"),
        pytest.param(checkpoint_menu(["delta", "postgres"]), id="around the driver"),
    ],
)
def test_every_menu_is_carried_out_by_rules_that_exist(menu: Sequence[Strike]) -> None:
    planned = plan(CheckedNemesis(Menu(menu)), range(len(menu)))
    assert len(failpoints.parse("; ".join(strike.rule for strike in planned))) == len(menu)
    assert len({(s.action, s.victim, s.point, s.sink, s.nth) for s in planned}) == len(menu)


def test_a_point_of_a_start_is_armed_for_whichever_start_comes() -> None:
    assert Strike("raise", "driver", Point.AFTER_FENCE, 4).rule == "after-fence=raise"
    assert Strike("kill", "driver", Point.AFTER_JOB, 4, nth=2).rule == "after-job:4#2=stop"
    assert Strike("pause", "driver", Point.BEFORE_PUBLISH, 4, "kafka").rule == "before-publish@kafka:4=barrier"


# history


def test_listeners_are_told_in_turn() -> None:
    first, second = History(), History()
    Listeners([first, Deaf(), second]).add(Started("d1"))
    assert first.events == second.events == [Started("d1")]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([Ended("d1", "finished")], id="never started"),
        pytest.param([Started("d1"), Ended("d1", "killed"), Ended("d1", "finished")], id="ended twice"),
        pytest.param([Started("d1"), Ended("d2", "killed")], id="another"),
    ],
)
def test_what_cannot_have_happened_is_refused(events: Sequence[Event]) -> None:
    listener = CheckedListener.of(Deaf())
    for event in events[:-1]:
        listener.add(event)
    with pytest.raises(RoleError, match="had not started"):
        listener.add(events[-1])


# report


def test_reports_are_told_in_turn_and_one_that_fails_keeps_nobody_from_telling() -> None:
    failing, after = Told(ValueError("no disk")), Told()
    findings = {"I1": Finding(Verdict.TRUE)}
    with pytest.raises(ValueError, match="no disk"):
        Reports([Silent(), failing, after]).tell(EMPTY, findings, {})
    assert after.verdicts == [findings]


def test_a_report_without_verdicts_is_refused() -> None:
    told = Told()
    with pytest.raises(RoleError, match="no verdicts"):
        CheckedReport(told).tell(EMPTY, {}, {})
    CheckedReport(told).tell(EMPTY, {"I1": Finding(Verdict.TRUE)}, {})
    assert len(told.verdicts) == 1
