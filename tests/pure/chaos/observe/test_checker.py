"""Each invariant, over a history that keeps it and histories that break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from epochal.chaos.observe import checker
from epochal.chaos.observe.checker import Finding, Verdict
from epochal.chaos.observe.history import (
    Accepted,
    AtRest,
    Changed,
    Decided,
    Ended,
    Evaluated,
    Event,
    Fault,
    Fed,
    History,
    Placed,
    Prepared,
    Read,
    Row,
    Started,
    State,
    TookOver,
)
from epochal.chaos.observe.invariants import CHECKS, NotEnough
from epochal.chaos.observe.run import Run
from epochal.chaos.simulate.pipelines import Checkpoint, Pipeline
from epochal.chaos.simulate.schedule import Action
from epochal.chaos.simulate.simulation import Simulation
from epochal.coordinator.model import failpoints

ZERO = (Row(0, 1, 10, 1), Row(0, 2, 10, 2))
ONE = (Row(1, 3, 11, 3), Row(1, 4, 11, 4))
TWO = (Row(2, 5, 12, 5),)
OLD, NEW = "g1/7", "g2/8"


def read(a: Sequence[Row], b: Sequence[Row] = ()) -> Read:
    """What a reader sees in the two sinks."""
    return Read({"a": tuple(a), "b": tuple(b)})


def epoch(number: int, rows: tuple[Row, ...], before: tuple[Row, ...]) -> list[Event]:
    """One epoch as it should be: read while prepared, decided, shown by one sink and then by the other."""
    both = (*before, *rows)
    return [
        Prepared(number),
        read(before, before),
        Decided(number, 100 + number, OLD),
        Changed("a", OLD, shown=1),
        read(both, before),
        Changed("b", OLD, shown=1),
        read(both, both),
    ]


def good() -> list[Event]:
    """A run of two epochs in which nothing goes wrong."""
    return [
        Fed((1, 2)),
        Started("d1"),
        TookOver("log", OLD),
        TookOver("a", OLD),
        TookOver("b", OLD),
        Accepted(OLD),
        *epoch(0, ZERO, ()),
        Fault("kill", "worker", epoch=0),
        Fed((3, 4)),
        *epoch(1, ONE, ZERO),
        *placed(0),
        *placed(1),
        State(1, ("count 4", "count 4", "watermark 1")),
        State(1, ("count 4", "count 4", "watermark 1"), reference=True),
        AtRest("a"),
        AtRest("b"),
        AtRest("stage"),
        Ended("d1", "finished"),
    ]


def placed(number: int) -> list[Event]:
    """Where the input of an epoch ends, as everybody says who holds it."""
    return [
        Placed(number, "offsets", f"hash {number}"),
        Placed(number, "log", f"hash {number}", 100 + number),
        *(Placed(number, sink, decision=100 + number) for sink in ("a", "b")),
    ]


def run(events: Sequence[Event]) -> Run:
    return Run(History(list(events)), ("a", "b"), {0: ZERO, 1: ONE})


def judge(name: str, events: Sequence[Event]) -> Verdict:
    return checker.judge(CHECKS[name], run(events)).verdict


def with_a_refused(*events: Event, outcome: str = "CheckpointMismatch") -> list[Event]:
    """The good run, and before its second epoch a start that is refused while these events happen."""
    at = good().index(Prepared(1))
    return [*good()[:at], Started("d2"), *events, Ended("d2", outcome), *good()[at:]]


def ending_with(*events: Event) -> list[Event]:
    """The good run, with these events just before its end."""
    return [*good()[:-1], *events, good()[-1]]


@pytest.mark.parametrize("name", list(CHECKS))
def test_a_good_run_is_true(name: str) -> None:
    assert judge(name, good()) is Verdict.TRUE


ALL = (*ZERO, *ONE)

BAD: list[tuple[str, str, list[Event]]] = [
    ("I1", "a row is missing in one sink", ending_with(read(ALL, ALL[:-1]))),
    ("I1", "a sink is empty", ending_with(read(ALL, ()))),
    ("I1", "of two equal rows one is missing", ending_with(read(ALL, (*ZERO, ONE[0], ONE[0])))),
    ("I2", "one row twice", ending_with(read((*ALL, ALL[0]), ALL))),
    ("I2", "one row twice, of another attempt", ending_with(read((*ALL, Row(0, 1, 99, 1)), ALL))),
    ("I2", "an epoch twice in both sinks", ending_with(read((*ALL, *ONE), (*ALL, *ONE)))),
    ("I2", "a row of no expected epoch", ending_with(read((*ALL, *TWO), ALL))),
    ("I3", "half an epoch, for one read", ending_with(read(ALL[:3], ALL), read(ALL, ALL))),
    ("I3", "half an epoch in the second sink", ending_with(read(ALL, ALL[:1]), read(ALL, ALL))),
    ("I4", "an epoch of two attempts", ending_with(read((*ZERO, ONE[0], Row(1, 4, 13, 4)), ALL))),
    ("I4", "two sinks of different attempts", ending_with(read(ALL, (*ZERO, *(r._replace(attempt=13) for r in ONE))))),
    (
        "I4",
        "a losing attempt, seen once",
        ending_with(read(tuple(r._replace(attempt=9) for r in ALL), ALL), read(ALL, ALL)),
    ),
    ("I5", "epoch 1 without epoch 0", ending_with(read(ONE, ALL))),
    ("I5", "a later read shows less", ending_with(read(ZERO, ALL), read(ALL, ALL))),
    ("I5", "one of two equal rows goes away", ending_with(read((*ALL, ALL[0]), ALL), read(ALL, ALL))),
    ("I6", "two epochs apart", ending_with(read(ALL, ()), read(ALL, ALL))),
    ("I6", "different at rest", ending_with(read(ALL, ZERO))),
    ("I6", "a different value at rest", ending_with(read(ALL, (*ALL[:-1], ALL[-1]._replace(value=0))))),
    ("I7", "decided twice", ending_with(Decided(1, 999, NEW))),
    ("I7", "supersedes what is not the newest", ending_with(Decided(1, 999, NEW, supersedes=100))),
    ("I7", "visible before it is decided", [Started("d1"), read(ZERO, ()), *good()[1:]]),
    ("I7", "visible and never decided", ending_with(read((*ALL, *TWO), ALL))),
    ("I8", "decided and never visible", ending_with(read(ALL, ZERO))),
    ("I8", "visible and never decided", ending_with(read((*ALL, *TWO), ALL))),
    ("I9", "an entry is missing", ending_with(State(1, ("count 4", "watermark 1")))),
    ("I9", "an entry is another", ending_with(State(1, ("count 4", "count 5", "watermark 1")))),
    ("I10", "the log decided about other offsets", ending_with(Placed(1, "log", "hash 0", 101))),
    ("I10", "Spark planned the epoch anew", ending_with(Placed(0, "offsets", "hash 9"))),
    ("I10", "a marker of another decision", ending_with(Placed(1, "b", decision=100))),
    ("I13", "a transaction is open", ending_with(AtRest("b", ("transaction x is Ongoing",)))),
    ("I13", "a copy lies there", ending_with(AtRest("stage", ("copy of epoch 0",)))),
    ("I15", "an input never came to the sinks", ending_with(Fed((5,)))),
    ("I15", "an input was fed twice", ending_with(Fed((4,)))),
    ("I11", "a wrong value of the operator's state", ending_with(read((*ALL[:-1], ALL[-1]._replace(value=9)), ALL))),
    ("I11", "one row too many", ending_with(read((*ALL, ALL[0]), ALL))),
    ("I12", "an older actor publishes", ending_with(TookOver("a", NEW), Changed("a", OLD, shown=1))),
    ("I12", "an older actor drops", ending_with(TookOver("a", NEW), Changed("a", OLD, dropped=(OLD,)))),
    ("I12", "an older actor decides", ending_with(TookOver("log", NEW), Decided(2, 102, OLD))),
    ("I12", "an equal generation publishes", ending_with(TookOver("a", "g1/9"), Changed("a", OLD, shown=1))),
    ("I12", "a newer actor's copy is removed", ending_with(Changed("stage", OLD, dropped=(NEW,)))),
    ("I14", "an error that nobody names", ending_with(Ended("d2", "KeyError", named=False))),
    ("I14", "finished and not converged", ending_with(read(ALL, ZERO))),
    (
        "I14",
        "a definite error after the output had changed",
        [Started("d1"), read(()), Started("d2"), read(ZERO), Ended("d2", "Fenced")],
    ),
    ("I14", "a refused start shows rows", with_a_refused(Changed("a", NEW, shown=1), read(ALL, ZERO))),
    ("I14", "a refused start drops rows", with_a_refused(Changed("a", NEW, dropped=(OLD,)), read(ZERO, ZERO))),
    ("I14", "the output changes in a refused start", with_a_refused(read(ALL, ZERO))),
    (
        "I14",
        "the output changes in a refused start, and another one drops",
        with_a_refused(Changed("b", OLD, dropped=(OLD,)), read(ALL, ZERO)),
    ),
    (
        "I14",
        "the output changes in a refused start, and another one had shown rows",
        with_a_refused(Changed("a", OLD, shown=1), read(ALL, ZERO), read(ALL, ALL)),
    ),
    ("I14", "a lost marker, and rows", with_a_refused(Changed("a", NEW, shown=1), outcome="MarkerLost")),
    ("I14", "a wrong setting, and rows", with_a_refused(Changed("a", NEW, shown=1), outcome="Misconfigured")),
    (
        "I14",
        "a start shows rows before it is accepted, and is refused",
        with_a_refused(Changed("a", NEW, shown=1), Accepted(NEW)),
    ),
    (
        "I14",
        "a refused start shows rows, and its name starts again",
        with_a_refused(Changed("a", NEW, shown=1), Ended("d2", "MarkerLost"), Started("d2")),
    ),
]


@pytest.mark.parametrize(("name", "events"), [pytest.param(n, e, id=f"{n}: {why}") for n, why, e in BAD])
def test_a_bad_run_is_false(name: str, events: list[Event]) -> None:
    assert judge(name, events) is Verdict.FALSE


def test_every_invariant_has_a_bad_run() -> None:
    assert {name for name, _, _ in BAD} == set(CHECKS)


def test_a_superseding_decision_is_one_decision() -> None:
    assert judge("I7", ending_with(Decided(1, 999, NEW, supersedes=101))) is Verdict.TRUE


def test_a_newer_actor_may_drop_what_an_older_one_left() -> None:
    assert judge("I12", ending_with(TookOver("a", NEW), Changed("a", NEW, dropped=(OLD,)))) is Verdict.TRUE


def test_a_definite_error_with_unchanged_output_is_loud() -> None:
    events: list[Event] = [Started("d1"), read(()), Started("d2"), read(()), Ended("d2", "Fenced")]
    assert judge("I14", events) is Verdict.TRUE


def test_an_error_in_doubt_may_come_after_a_change() -> None:
    events: list[Event] = [
        Started("d1"),
        read(()),
        Started("d2"),
        read(ZERO),
        Ended("d2", "CommitInDoubt", definite=False),
    ]
    assert judge("I14", events) is Verdict.UNKNOWN  # it was not shown that another start converges


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([read(ZERO, ZERO)], id="nothing"),
        pytest.param([Changed("a", OLD, shown=1), read(ALL, ZERO), read(ALL, ZERO)], id="what another start has shown"),
        pytest.param([Changed("stage", OLD, dropped=(OLD,))], id="what another start has dropped"),
        pytest.param([Changed("a", NEW, shown=1), Ended("d2", "killed"), Started("d2")], id="its name's former start"),
        pytest.param([Accepted(NEW), Changed("a", NEW, shown=1), read(ALL, ZERO)], id="what it was entitled to"),
    ],
)
def test_what_a_start_may_see_change_before_it_ends_with_a_refusal(events: list[Event]) -> None:
    assert judge("I14", with_a_refused(*events)) is Verdict.TRUE


@pytest.mark.parametrize("outcome", ["killed", "Fenced", "PrepareRefused"])
def test_a_driver_that_ends_otherwise_may_have_changed_the_output_before(outcome: str) -> None:
    assert judge("I14", with_a_refused(Changed("a", NEW, shown=1), read(ALL, ZERO), outcome=outcome)) is Verdict.TRUE


def test_a_simulation_tells_who_was_accepted() -> None:
    world = Simulation(Pipeline(("pg",)), zombies=True)
    world.order("d3", "after-fence", Action.PAUSE)
    with failpoints.handler(world.hit):
        assert world.driver("d1", until=0).go().finished
        assert world.driver("d2", 0, Checkpoint("/another")).go().outcome == "CheckpointMismatch"
        refused_after_its_own_fence = world.driver("d3", until=1).go()
        world.server.recreate("flights", "pg")
        assert refused_after_its_own_fence.go().outcome == "Fenced"
    fenced = [event.by for _, event in world.history.of(TookOver) if event.where == "log"]
    assert [event.by for _, event in world.history.of(Accepted)] == fenced[:1]
    assert len(fenced) == 2


@pytest.mark.parametrize("name", ["I1", "I2", "I6", "I8", "I11"])
def test_without_a_read_the_verdict_is_unknown(name: str) -> None:
    assert judge(name, [e for e in good() if not isinstance(e, Read)]) is Verdict.UNKNOWN


def test_all_or_nothing_is_unknown_if_nobody_read_while_the_epoch_was_undecided() -> None:
    events = good()
    at = next(i for i, e in enumerate(events) if isinstance(e, Prepared) and e.epoch == 1)
    del events[at + 1]
    assert judge("I3", events) is Verdict.UNKNOWN


def test_the_fence_is_unknown_if_nobody_fenced() -> None:
    assert judge("I12", [e for e in good() if not isinstance(e, TookOver)]) is Verdict.UNKNOWN


def test_loudness_is_unknown_if_nobody_ended() -> None:
    assert judge("I14", good()[:-1]) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("name", "without"),
    [
        pytest.param("I9", lambda e: isinstance(e, State) and e.reference, id="state of a run without failure"),
        pytest.param("I9", lambda e: isinstance(e, State), id="state"),
        pytest.param("I10", lambda e: isinstance(e, Placed) and e.where == "offsets", id="offsets"),
        pytest.param("I10", lambda e: isinstance(e, Placed) and e.where == "log", id="log"),
        pytest.param("I10", lambda e: isinstance(e, Placed) and e.where in ("a", "b"), id="markers"),
        pytest.param("I13", lambda e: isinstance(e, AtRest) and e.where == "b", id="leftovers of a sink"),
        pytest.param("I15", lambda e: isinstance(e, Fed), id="inputs"),
        pytest.param("I11", lambda e: isinstance(e, Fed) and e.keys == (3, 4), id="inputs after the last fault"),
        pytest.param("I3", lambda e: isinstance(e, Prepared), id="prepared"),
        pytest.param("I7", lambda e: isinstance(e, (Decided, Read)), id="decisions"),
    ],
)
def test_what_was_not_seen_is_unknown(name: str, without: Callable[[Event], bool]) -> None:
    assert judge(name, [e for e in good() if not without(e)]) is Verdict.UNKNOWN


def test_rows_that_stand_for_inputs_are_counted_by_their_value() -> None:
    counts = Read({"a": (Row(0, 7, 10, 3),), "b": (Row(0, 7, 10, 3),)})
    told = run([Fed((1, 2, 3)), counts])
    assert checker.judge(CHECKS["I15"], replace(told, counted=True)).verdict is Verdict.TRUE
    for values in ((1, 2), (1, 2, 3, 4)):
        told = run([Fed(values), counts])
        assert checker.judge(CHECKS["I15"], replace(told, counted=True)).verdict is Verdict.FALSE


def test_an_output_that_may_rewrite_is_of_one_evaluation_whenever_it_is_read() -> None:
    first, again = (Row(0, 1, 10), Row(0, 2, 10)), (Row(0, 1, 20), Row(0, 2, 20))
    rewritten = run([read(first, first), read(again, again)])
    torn = run([read(first, first), read(first, again)])
    for told, verdict in ((rewritten, Verdict.TRUE), (torn, Verdict.FALSE)):
        assert checker.judge(CHECKS["I4"], replace(told, rewrites=True)).verdict is verdict
        assert checker.judge(CHECKS["I4"], told).verdict is Verdict.FALSE
    assert checker.judge(CHECKS["I5"], replace(rewritten, rewrites=True)).verdict is Verdict.TRUE
    assert checker.judge(CHECKS["I5"], rewritten).verdict is Verdict.FALSE


def test_a_whole_epoch_is_of_one_evaluation_where_evaluations_are_told() -> None:
    by_task = (Row(0, 1, 10), Row(0, 2, 11))
    assert judge("I4", [read(by_task, by_task)]) is Verdict.TRUE
    assert judge("I4", [Evaluated(0, 10), read(by_task, by_task)]) is Verdict.FALSE


def test_the_skew_is_judged_where_all_sinks_were_read_at_once() -> None:
    one_by_one = [Read({"a": ALL}), Read({"b": ()}), Read({"b": ALL})]
    assert judge("I6", one_by_one) is Verdict.UNKNOWN
    assert judge("I6", [*one_by_one, read(ALL, ALL)]) is Verdict.TRUE
    assert judge("I1", one_by_one) is Verdict.TRUE


def test_a_verdict_says_on_how_many_observations_it_stands() -> None:
    found = checker.judge_all(run(good()))
    assert {name: finding.observations for name, finding in found.items()} == {
        "I1": 8,
        "I2": 8,
        "I3": 14,
        "I4": 24,
        "I5": 12,
        "I6": 6,
        "I7": 2,
        "I8": 4,
        "I9": 3,
        "I10": 6,
        "I11": 8,
        "I12": 3,
        "I13": 3,
        "I14": 1,
        "I15": 4,
    }


def test_the_worst_verdict_is_that_of_all() -> None:
    true, false, unknown = (checker.Finding(verdict) for verdict in Verdict)
    assert checker.overall({"I1": true, "I2": unknown, "I3": false}) is Verdict.FALSE
    assert checker.overall({"I1": true, "I2": unknown}) is Verdict.UNKNOWN
    assert checker.overall({"I1": true}) is Verdict.TRUE
    assert checker.overall({}) is Verdict.UNKNOWN


@pytest.mark.parametrize("error", [KeyError("x"), ZeroDivisionError(), NotEnough("no"), RecursionError()])
def test_a_checker_that_crashes_is_unknown(error: Exception) -> None:
    def crashing(run: Run) -> Iterator[str]:  # noqa: ARG001
        yield "before the crash it found something"
        raise error

    finding = checker.judge(crashing, run(good()))
    assert finding.verdict is Verdict.UNKNOWN
    assert type(error).__name__ in finding.why


def test_only_true_passes() -> None:
    found = {verdict: bool(checker.Finding(verdict)) for verdict in Verdict}
    assert found == {Verdict.TRUE: True, Verdict.FALSE: False, Verdict.UNKNOWN: False}


def test_a_false_verdict_says_what_is_wrong_and_where() -> None:
    finding = checker.judge(CHECKS["I1"], run(ending_with(read(ALL, ALL[:-1]))))
    assert finding.why == "b lacks (1, 4) x 1"


def test_an_epoch_without_rows_is_neither_lost_nor_out_of_order() -> None:
    judged = run(good())
    judged = replace(judged, expected={**judged.expected, 2: ()})
    assert all(checker.judge_all(judged).values())


# where nobody tells who was accepted, as in a run against real servers


def untold(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, (Accepted, Changed))]


def test_a_change_beside_a_refused_start_may_be_anothers() -> None:
    """The driver of the good run lives at the same time; alone, the refused one must have made it."""
    beside = untold(with_a_refused(read(ALL, ZERO)))
    assert judge("I14", beside) is Verdict.TRUE
    alone: list[Event] = [Started("d2"), read(()), read(ZERO), Ended("d2", "CheckpointMismatch")]
    assert judge("I14", [*alone, *untold(good())]) is Verdict.FALSE


def test_a_sink_that_is_read_alone_has_not_changed_the_others() -> None:
    """Where an output changes, each sink is told by itself; the next read tells of all again."""
    one_by_one: list[Event] = [Read({"a": ZERO}), Read({"b": ZERO}), Started("d2"), read(ZERO, ZERO)]
    assert judge("I14", [*one_by_one, Ended("d2", "CheckpointMismatch"), *untold(good())]) is Verdict.TRUE
    changed: list[Event] = [*one_by_one, Read({"b": ALL}), Ended("d2", "CheckpointMismatch"), *untold(good())]
    assert judge("I14", changed) is Verdict.FALSE


def test_a_driver_that_decided_was_not_refused() -> None:
    later: list[Event] = [Started("d2"), read(()), Decided(0, 1, NEW), read(ZERO), Ended("d2", "MarkerLost")]
    assert judge("I14", [*later, *untold(good())]) is Verdict.TRUE


def test_an_epoch_that_nobody_tells_the_decision_of_has_to_be_read_while_it_is_held() -> None:
    held: list[Event] = [Started("d1"), Prepared(0), read(()), Fault("kill", "driver", epoch=0), read(ZERO)]
    assert judge("I3", held) is Verdict.TRUE
    unread = [event for event in held if event != read(())]
    assert judge("I3", unread) is Verdict.UNKNOWN


def test_leftovers_that_nobody_asked_for_are_no_observation() -> None:
    asked = [AtRest("a"), AtRest("b", asked=False)]
    assert checker.judge(CHECKS["I13"], run(asked)) == Finding(Verdict.TRUE, "", 1)
    assert judge("I13", [AtRest("a", asked=False), AtRest("b", asked=False)]) is Verdict.UNKNOWN


def test_a_run_that_proves_nothing_is_at_best_unknown() -> None:
    torn = replace(run(good()), proves_nothing="it broke off")
    fine, wrong = {"I1": Finding(Verdict.TRUE)}, {"I1": Finding(Verdict.FALSE)}
    assert checker.verdict(run(good()), fine) is Verdict.TRUE
    assert checker.verdict(torn, fine) is Verdict.UNKNOWN
    assert checker.verdict(torn, wrong) is Verdict.FALSE
