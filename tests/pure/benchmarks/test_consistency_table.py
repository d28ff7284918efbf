"""The consistency table: what a bad history shows ends up in its column, beside the fault that did it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from benchmarks import cells, faults, targets
from benchmarks.cells import COLUMNS, Cell, Contradiction, Judged
from benchmarks.results import Result
from benchmarks.tables import consistency, throughput
from epochal.chaos.campaign.campaign import CLEAN_EPOCHS
from epochal.chaos.campaign.plan import FOREIGN_POINTS, Plan
from epochal.chaos.campaign.plan import Result as Struck
from epochal.chaos.observe import checker
from epochal.chaos.observe.checker import Finding, Verdict
from epochal.chaos.observe.history import Event, Fault, Fed, History, Prepared, Read, Row
from epochal.chaos.observe.run import Run
from epochal.chaos.strike.strikes import CheckedNemesis, Strike
from epochal.coordinator.model.failpoints import Point

EPOCHS = [tuple(Row(epoch, 10 * epoch + n, 7 + epoch, 1) for n in range(2)) for epoch in range(4)]
PLANNED = {1: "killed writing", 2: "zombie"}
INVARIANTS = ("I1", "I2", "I3", "I5", "I6")
JOBS = {"a": "job a", "b": "job b"}


def upto(epoch: int) -> tuple[Row, ...]:
    """What is there after so many epochs."""
    return tuple(row for rows in EPOCHS[: epoch + 1] for row in rows)


def both(rows: Sequence[Row], other: Sequence[Row] | None = None) -> Read:
    return Read({"a": tuple(rows), "b": tuple(rows if other is None else other)})


def history(*changed: Event, end: Read | None = None, without: Sequence[Row] = ()) -> list[Event]:
    """Four epochs, struck in the second and the third; ``changed`` in the third, ``end`` as the last look.

    ``without``: rows that the second sink does not show before the last look.
    """

    def now(epoch: int) -> Read:
        return both(upto(epoch), [row for row in upto(epoch) if row not in without])

    events: list[Event] = []
    for epoch in range(4):
        events += [Fed(tuple(row.key for row in EPOCHS[epoch])), Prepared(epoch), now(epoch - 1)]
        if epoch in PLANNED:
            events.append(Fault("kill", "driver", epoch=epoch))
        events += [*(changed if epoch == 2 else ()), now(epoch)]
    return [*events, end or both(upto(3))]


def judged(events: Sequence[Event], *, struck: Sequence[int] = (1, 2), names: Sequence[str] = INVARIANTS) -> Judged:
    run = Run(History(list(events)), ("a", "b"), dict(enumerate(EPOCHS)))
    return Judged(run, checker.judge_all(run, names), PLANNED, struck)


def counted(found: Sequence[Cell]) -> dict[tuple[str, str], dict[str, int]]:
    """(job, fault) -> the columns that are not empty, of the cells that are wrong."""
    return {
        (cell.job, cell.fault): {name: getattr(cell, name) for name in COLUMNS if getattr(cell, name)}
        for cell in found
        if cell.wrong
    }


def test_a_good_run_is_clean() -> None:
    found = judged(history()).cells(JOBS)
    assert [(cell.job, cell.fault) for cell in found] == [
        (job, kind) for job in JOBS.values() for kind in PLANNED.values()
    ]
    assert {(cell.verdict, cell.asked, cell.struck) for cell in found} == {("clean", 1, 1)}


WITHOUT_LAST = tuple(row for row in upto(3) if row not in EPOCHS[2][1:])
BAD: Mapping[str, tuple[list[Event], Mapping[str, int]]] = {
    "a row is missing in the end": (
        history(without=EPOCHS[2][1:], end=both(upto(3), WITHOUT_LAST)),
        {"lost": 1, "torn": 1, "disagree": 1},
    ),
    "a whole epoch never comes": (
        history(without=EPOCHS[2], end=both(upto(3), (*upto(1), *EPOCHS[3]))),
        {"lost": 1, "disagree": 1},
    ),
    "rows are there twice": (history(end=both(upto(3), (*upto(3), *EPOCHS[2]))), {"duplicated": 1, "disagree": 1}),
    "a part is seen before the rest": (history(both(upto(1), (*upto(1), EPOCHS[2][0]))), {"torn": 1}),
    "seen after a later one": (history(without=EPOCHS[2]), {"out_of_order": 1}),
    "gone again": (history(both(upto(2), upto(2)), both(upto(2), upto(1))), {"out_of_order": 1}),
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_is_wrong_is_in_its_column_beside_the_fault_that_did_it(name: str) -> None:
    events, columns = BAD[name]
    found = counted(judged(events).cells(JOBS))
    wrong = found.pop(("job b", "zombie"))
    alone = {column: number for column, number in columns.items() if column != "disagree"}
    assert wrong == columns
    assert found == ({("job a", "zombie"): {"disagree": 1}} if alone != columns else {})


def test_rows_are_counted_beside_epochs() -> None:
    *_, lost = judged(history(end=both(upto(3), upto(1)))).cells(JOBS)
    assert (lost.lost, lost.rows_lost) == (2, 4), "the last epoch has no strike of its own: the newest is to blame"
    *_, twice = judged(history(end=both((*upto(3), *EPOCHS[2]), (*upto(3), *EPOCHS[2])))).cells(JOBS)
    assert (twice.duplicated, twice.rows_duplicated, twice.disagree) == (1, 2, 0)


def test_an_epoch_whose_strike_did_not_land_is_blamed_on_the_one_before() -> None:
    events = history(end=both(upto(3), (*upto(3), *EPOCHS[2])))
    found = {(cell.job, cell.fault): cell for cell in judged(events, struck=[1]).cells(JOBS)}
    assert found["job b", "killed writing"].duplicated == 1
    assert found["job b", "zombie"].verdict == "not struck"


def test_sinks_that_are_two_epochs_apart_disagree() -> None:
    found = counted(judged(history(both(upto(2), upto(0)), both(upto(2)))).cells(JOBS))
    assert found["job a", "killed writing"] == {"disagree": 1}
    assert found["job a", "zombie"] == {"disagree": 1}


def test_rows_that_replace_others_are_judged_by_what_is_there_after_an_epoch() -> None:
    """Each epoch replaces all; a reader sees half of the third, then the second again."""
    events: list[Event] = [Fed((0,))]
    for epoch in range(4):
        events += [Prepared(epoch), both(EPOCHS[epoch - 1] if epoch else ())]
        events += [Fault("kill", "driver", epoch=epoch)] if epoch in PLANNED else []
        events += [both(EPOCHS[2][:1]), both(EPOCHS[2]), both(EPOCHS[1])] if epoch == 2 else []
        events += [both(EPOCHS[epoch])]
    run = Run(History(events), ("a", "b"), dict(enumerate(EPOCHS)), after=dict(enumerate(EPOCHS)))
    found = Judged(run, checker.judge_all(run, INVARIANTS), PLANNED, [1, 2]).cells(JOBS)
    assert counted(found) == {(job, "zombie"): {"torn": 1, "out_of_order": 1} for job in JOBS.values()}


# --- what is not known ------------------------------------------------------------------------------


def test_a_strike_that_did_not_land_is_never_clean() -> None:
    assert {cell.verdict for cell in judged(history(), struck=()).cells(JOBS)} == {"not struck"}


def test_a_run_that_broke_off_is_unknown_and_tells_of_no_loss() -> None:
    broken = judged(history(end=both(upto(1))), names=["I2", "I3", "I5"])
    broken = replace(broken, run=replace(broken.run, proves_nothing="the query hangs"))
    found = broken.cells({"b": "job b"})
    assert [cell.lost for cell in found] == [0, 0]
    assert {cell.verdict for cell in found} == {"unknown", "wrong"}, "what went back is seen even so"
    assert all("the query hangs" in reason for cell in found for reason in cell.unknown)


def test_an_output_that_was_not_exact_without_a_fault_tells_nothing() -> None:
    events = history(end=both(upto(3), (*upto(3), *EPOCHS[2])))
    assert {cell.verdict for cell in replace(judged(events), findings={}).cells(JOBS)} == {"unknown"}


def test_what_nobody_looked_at_is_unknown() -> None:
    unseen = [event for event in history() if not isinstance(event, Prepared)]
    found = judged(unseen).cells(JOBS)
    assert {cell.verdict for cell in found} == {"unknown"}
    assert all(reason.startswith("torn: ") for cell in found for reason in cell.unknown)


@pytest.mark.parametrize("name", INVARIANTS)
@pytest.mark.parametrize("bad", [True, False])
def test_counts_that_contradict_the_verdicts_are_refused(name: str, bad: bool) -> None:
    """Whatever the kit calls violated has to be in its column, and the other way round."""
    wrong = {"I1": "never comes", "I2": "twice", "I3": "a part", "I5": "after a later", "I6": "never comes"}[name]
    events = next(events for what, (events, _) in BAD.items() if wrong in what) if bad else history()
    said = Finding(Verdict.TRUE if bad else Verdict.FALSE, "" if bad else "says the kit", 1)
    one = judged(events)
    with pytest.raises(Contradiction, match=name):
        replace(one, findings={**one.findings, name: said}).cells(JOBS)


def test_a_sink_that_promises_parts_alone_is_torn_in_the_table_and_no_contradiction() -> None:
    one = judged(BAD["a part is seen before the rest"][0])
    run = replace(one.run, in_parts=("b",))
    found = replace(one, run=run, findings=checker.judge_all(run, INVARIANTS)).cells(JOBS)
    assert counted(found) == {("job b", "zombie"): {"torn": 1}}


def test_the_fault_of_a_server_concerns_what_lies_there() -> None:
    strikes = [Strike("crash", "postgres", Point.AT_ROW, 1), Strike("kill", "driver", Point.AT_ROW, 2)]
    planned = [faults.Planned(PLANNED[strike.epoch], strike) for strike in strikes]
    run = Run(History(history()), ("a", "postgres"), dict(enumerate(EPOCHS)))
    of = consistency.judged_of(planned, Struck(Plan("t"), run, {}, strikes, []))
    found = of.cells({"a": "job a", "postgres": "job p"})
    assert [(cell.job, cell.fault) for cell in found] == [
        ("job a", "zombie"),
        ("job p", "killed writing"),
        ("job p", "zombie"),
    ]


# --- cells of several seeds, as data and for people -------------------------------------------------


def test_seeds_add_up() -> None:
    clean, wrong = Cell("j", "f", 1, 1), Cell("j", "f", 1, 1, duplicated=1, rows_duplicated=20)
    other = Cell("j", "g", 1, 0)
    assert cells.together([clean, other, wrong]) == [
        Cell("j", "f", 2, 2, duplicated=1, rows_duplicated=20, unknown=[]),
        other,
    ]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (None, "-"),
        (Cell("j", "f", 2, 2), "2 ok"),
        (Cell("j", "f", 2, 0), "not struck"),
        (Cell("j", "f", 2, 1, unknown=["why"]), "1 unknown"),
        (Cell("j", "f", 3, 2, duplicated=2, torn=1), "2: D2 T1"),
        (Cell("j", "f", 3, 2, lost=1, out_of_order=1, disagree=3, unknown=["why"]), "2: L1 O1 S3 ?"),
    ],
)
def test_a_cell_in_words(cell: Cell | None, shown: str) -> None:
    assert cells.word(cell) == shown


def test_the_table_as_text_and_as_data() -> None:
    found = [Cell("jdbc", "zombie", 2, 2, duplicated=2, rows_duplicated=40), Cell("ours", "killed", 2, 2)]
    header, jdbc, ours, legend = cells.lines(found, {"jdbc": "1.5 x"})
    assert header.split() == ["cost", "zombie", "killed"]
    assert jdbc.split() == ["jdbc", "1.5", "x", "2:", "D2", "-"]
    assert ours.split() == ["ours", "-", "-", "2", "ok"]
    assert "D duplicated" in legend
    told = Result("consistency", 1, cells=found).to_json()["cells"]
    assert isinstance(told, list)
    assert [one["verdict"] for one in told] == ["wrong", "clean"]
    assert told[0]["rows_duplicated"] == 40


def test_ours_that_is_anything_but_clean_is_told_loudly() -> None:
    alarms = consistency._alarms
    assert alarms(Cell("epochal kafka", "zombie", 1, 1, torn=1))
    assert alarms(Cell("epochal kafka", "zombie", 1, 0))
    assert not alarms(Cell("epochal kafka", "zombie", 1, 1))
    assert not alarms(Cell("spark kafka", "zombie", 1, 1, torn=1))
    assert not alarms(Cell("epochal kafka, two slots", "zombie", 1, 1, torn=1)), "that is not promised"
    assert alarms(Cell("epochal kafka, two slots", "zombie", 1, 1, torn=1, duplicated=1))


# --- what is planned --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(targets.TARGETS))
def test_plans_can_be_carried_out_and_a_seed_says_all_of_them(name: str) -> None:
    target, kinds = targets.TARGETS[name], list(faults.KINDS)
    for seed in consistency.SEEDS:
        runs = faults.plans(target, seed, kinds)
        assert runs == faults.plans(target, seed, kinds)
        for planned in runs:
            epochs = range(CLEAN_EPOCHS, CLEAN_EPOCHS + len(planned))
            checked = CheckedNemesis(faults.AsPlanned(planned)).plan(epochs, random.Random(seed))
            assert list(checked) == [one.strike for one in planned]
            if target.moments is None:
                assert {strike.point for strike in checked} <= FOREIGN_POINTS
        assert [len(run) for run in runs[1:]] == [1], "what does not heal has a run of its own"
        struck = {one.kind for run in runs for one in run}
        servers = {"server crashed", "connection cut", "answer lost"} if target.servers else set()
        of_ours = {"killed in protocol"} if target.moments is not None else set()
        everybody = set(kinds) - {"server crashed", "connection cut", "answer lost", "killed in protocol"}
        assert struck == everybody | servers | of_ours


def test_seeds_strike_at_different_moments() -> None:
    (one, _), (other, _) = (faults.plans(targets.TARGETS["pipeline"], s, list(faults.KINDS)) for s in (1, 2))

    def moments(run: Sequence[faults.Planned], kind: str) -> list[str]:
        return [str(replace(one.strike, epoch=one.strike.nth)) for one in run if one.kind == kind]

    for kind in ("killed writing", "killed in protocol", "worker killed", "zombie"):
        assert moments(one, kind) != moments(other, kind)


def test_what_needs_a_run_of_its_own_is_struck_with_the_first_seed_alone() -> None:
    runs = consistency._runs(["delta_rs", "pipeline"], list(faults.KINDS), (1, 2))
    own = [(name, seed) for name, seed, planned in runs if planned[0].kind == "checkpoint lost"]
    assert own == [("delta_rs", 1), ("pipeline", 1)]
    assert [seed for _, seed, _ in runs] == [1, 1, 1, 1, 2, 2], "one seed is done before the next begins"


def test_no_run_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consistency, "BUDGET_S", -1.0)
    monkeypatch.setattr("epochal.chaos.job.jvm.short_lived", dict)
    monkeypatch.setattr(consistency, "_campaign", lambda *_: pytest.fail("a run began"))
    told: list[dict[str, object]] = []
    assert consistency._strike(["delta_rs"], ["zombie"], (1, 2), told) == []
    assert told == [{"target": "delta_rs", "seed": seed, "left out": True} for seed in (1, 2)]


def test_a_table_is_partial_if_a_target_has_no_run() -> None:
    made, later = {"target": "delta_rs", "seed": 1}, {"target": "delta_rs", "seed": 2, "left out": True}
    assert consistency._never_run([made, later]) == []
    assert consistency._never_run([made, later, {"target": "confluent", "seed": 1, "left out": True}]) == [
        "no run of confluent"
    ]


def test_a_part_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(consistency.ONLY, "spark_jdbc, delta_rs")
    assert consistency._asked(consistency.ONLY, targets.TARGETS, ("pipeline",)) == ["spark_jdbc", "delta_rs"]
    monkeypatch.setenv(consistency.ONLY, "jdbc")
    with pytest.raises(SystemExit, match="'jdbc' is none of pipeline"):
        consistency._asked(consistency.ONLY, targets.TARGETS, ("pipeline",))
    monkeypatch.delenv(consistency.ONLY)
    assert consistency._asked(consistency.ONLY, targets.TARGETS, ("pipeline",)) == ("pipeline",)


def test_every_job_but_the_second_table_of_a_pipeline_has_its_cost() -> None:
    named = {job for target in targets.TARGETS.values() for job in target.outputs.values()}
    known = {job for pair in throughput.GOALS for job in pair} | {f"epochal {name}" for name in consistency.MODES}
    assert named - known == {"epochal delta, overwrite, the second"}
    assert {f"epochal {name}" for name in consistency.MODES} <= named
