"""The console command: what it refuses, what it says, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epochal.chaos.campaign import rounds
from epochal.chaos.campaign.plan import Plan, Result
from epochal.chaos.cli import INVALID, UNKNOWN, USAGE, VALID, again, chaos, command, format_strike, parse_strike
from epochal.chaos.job.targets import Usage
from epochal.chaos.observe import recording
from epochal.chaos.observe.checker import Finding, Verdict, judge_all
from epochal.chaos.observe.history import Fault, History, Row
from epochal.chaos.observe.invariants import CHECKS
from epochal.chaos.observe.run import Run
from epochal.chaos.strike.strikes import Menu, Strike
from epochal.coordinator.model.failpoints import Point
from tests.pure.chaos.observe.test_checker import ALL, ONE, ZERO, ending_with, good, read, run

RUNNER = CliRunner()


def saved(tmp_path: Path, told: Run, name: str = "h.jsonl") -> str:
    recording.save(told, tmp_path / name, {"seed": 1})
    return str(tmp_path / name)


@pytest.mark.parametrize(
    ("told", "code", "word"),
    [
        pytest.param(run(good()), VALID, "VALID", id="good"),
        pytest.param(run(ending_with(read(ALL, ALL[:-1]))), INVALID, "INVALID", id="loss"),
        pytest.param(run(good()[:-1]), UNKNOWN, "UNKNOWN", id="nobody ended"),
    ],
)
def test_a_history_is_judged_again(told: Run, code: int, word: str, tmp_path: Path) -> None:
    done = RUNNER.invoke(chaos, ["check", saved(tmp_path, told)])
    assert done.exit_code == code, done.output
    assert done.output.splitlines()[-1] == word
    assert all(name in done.output for name in CHECKS)


def test_the_worst_of_several_histories_counts(tmp_path: Path) -> None:
    fine = saved(tmp_path, run(good()))
    bad = saved(tmp_path, run(ending_with(read(ALL, ()))), "bad.jsonl")
    assert RUNNER.invoke(chaos, ["check", bad, fine]).exit_code == INVALID


def test_verdicts_as_json(tmp_path: Path) -> None:
    done = RUNNER.invoke(chaos, ["check", "--json", saved(tmp_path, run(good()))])
    told = json.loads(done.output)
    assert told["verdict"] == told["histories"][0]["verdict"] == "valid"
    findings = told["histories"][0]["findings"]
    assert [finding["invariant"] for finding in findings] == list(CHECKS)
    assert {finding["verdict"] for finding in findings} == {"true"}
    assert all(finding["observations"] > 0 for finding in findings)


WRITE = "tests.pure.chaos.test_cli:write"
A_FUNCTION = ["run", "--target", WRITE, "--reader", "tests.pure.chaos.test_cli:nothing"]


def write(df: object, epoch: int) -> None:
    """A batch function that writes nothing."""


def nothing() -> list[dict[str, int]]:
    """A reader of an output that is empty."""
    return []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["check", "nowhere.jsonl"], "nowhere.jsonl"),
        (["run", "--target", "nothing"], "not of the form package.module:thing"),
        (["run", "--target", "no_such_module:x"], "cannot be imported"),
        (["run", "--tier", "9"], "--tier 9"),
        (["run", "--strike", "kill:driver"], "is not action:victim:point"),
        (["run", "--target", WRITE, "--conf", "x"], "is not key=value"),
        (["run", "--target", WRITE], "say with --reader"),
        (["run", "--target", WRITE, "--reader", "os:getcwd", "--workload", "rowz"], "is none of rows, map"),
        (["run", "--target", WRITE, "--reader", "os:getcwd", "--server", "oracle"], "no server 'oracle'"),
        (["run", "--reader", "os:getcwd"], "are only for your own --target"),
        (["run", "--server", "kafka"], "is only for your own --target"),
        (["run", "--strikes", "3"], "change from round to round"),
        (["run", "--workload", "map"], "change from round to round"),
        (
            ["run", "--target", "epochal.chaos.campaign.own:upsert", "--server", "kafka"],
            "is only for your own --target",
        ),
        (
            ["run", "--target", "epochal.chaos.campaign.own:upsert", "--reader", "os:getcwd"],
            "are only for your own --target",
        ),
        (
            ["run", "--target", "os:getpid", "--reader", "os:getcwd", "--tier", "3", "--minutes", "1"],
            "is only for tier 4",
        ),
        (["run", "--target", "tests.pure.project.wrong_modules.needs_more:x"], "KeyError: 'NOT_THERE'"),
        (["run", "--target", WRITE, "--reader", "os:stat"], "cannot be called with ()"),
        ([*A_FUNCTION, "--strike", "kill:driver:before-publish"], "a batch function has no such point, only"),
        ([*A_FUNCTION, "--strike", "kill:driver:at-row@nosuch"], "the target has the sinks output"),
        ([*A_FUNCTION, "--strike", "crash:kafka:before-call"], "no server 'kafka' of the kit's runs"),
        ([*A_FUNCTION, "--strike", "cut:postgres:before-call"], "nothing stands between the driver and 'postgres'"),
        ([*A_FUNCTION, "--strike", "kill:driver:at-row", "--tier", "3"], "tier 3 is one process"),
        ([*A_FUNCTION, "--source", "os:getpid"], "cannot be called with (spark, rows)"),
        (["check", "pyproject.toml"], "pyproject.toml, line 1"),
    ],
)
def test_wrong_usage_is_told_in_a_line(arguments: list[str], why: str) -> None:
    done = RUNNER.invoke(chaos, arguments)
    assert done.exit_code == USAGE, done.output
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "text", ["kill:driver:after-return", "crash:kafka:before-publish@kafka", "kill:worker:at-row#7"]
)
def test_a_strike_is_written_as_it_is_read(text: str) -> None:
    assert format_strike(parse_strike(text)) == text


@pytest.mark.parametrize(
    "text", ["", "kill:driver:nowhere", "eat:driver:at-row", "kill:moon:at-row", "kill:driver:at-row#x"]
)
def test_a_strike_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="is not action:victim:point"):
        parse_strike(text)


def test_the_command_that_is_printed_is_the_one_that_was_run() -> None:
    plan = Plan("a.b:c", readers=["x=a.b:d"], source="a.b:e", workload="map", seed=3, strikes=1)
    strikes = [Strike("kill", "worker", Point.AT_ROW, 4, nth=7)]
    assert command(plan, strikes, ["kafka"]) == (
        "epochal chaos run --target a.b:c --reader x=a.b:d --source a.b:e --server kafka --workload map --seed 3"
        " --strike 'kill:worker:at-row#7'"
    )
    assert command(Plan("", seconds=90)).endswith("--minutes 1.5")
    assert command(Plan("a.b:c", tier=3, strikes=4)).endswith("--tier 3 --strikes 4")
    hidden = Plan("a.b:c", conf={"spark.x": "1", "my.password": "s3cret"}, master="local[1]")
    assert command(hidden).endswith("--master 'local[1]' --conf spark.x=1 --conf my.password=...")


KILLS = [Strike("kill", "driver", Point.AFTER_RETURN, 0), Strike("kill", "worker", Point.AT_ROW, 1)]


def struck(*events: object) -> Result:
    history = History(list(events))  # type: ignore[arg-type]
    told = Run(history, ("a", "b"), {0: ZERO, 1: ONE}, rewrites=True)
    return Result(Plan(""), told, judge_all(told, ("I1", "I2")), KILLS, ())


def test_the_strike_is_blamed_after_which_something_was_first_wrong() -> None:
    first, second = (Fault(s.action, s.victim, s.point.value, epoch=s.epoch) for s in KILLS)
    twice: tuple[Row, ...] = (*ZERO, ZERO[0])
    assert struck(first, read(ZERO, ZERO), second, read(twice, ZERO)).blamed() == (KILLS[1],)
    assert struck(first, read(twice, ZERO), second, read(twice, ZERO)).blamed() == (KILLS[0],)
    assert struck(first, read(ZERO, ZERO), second, read(ZERO, ZERO)).blamed() == tuple(KILLS)


@pytest.mark.parametrize(("alone", "needed"), [(Verdict.FALSE, KILLS[1:]), (Verdict.TRUE, KILLS)])
def test_what_is_to_blame_is_struck_alone_before_anybody_says_so(
    alone: Verdict, needed: list[Strike], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (Fault(s.action, s.victim, s.point.value, epoch=s.epoch) for s in KILLS)
    result = struck(first, read(ZERO, ZERO), second, read((*ZERO, ZERO[0]), ZERO))
    played: list[Plan] = []

    def play(plan: Plan, *_: object, menu: Menu, servers: object) -> list[Result]:  # noqa: ARG001
        played.append(plan)
        assert list(menu.strikes) == KILLS[1:]
        return [replace(result, findings={"I2": Finding(alone)})]

    monkeypatch.setattr(rounds, "play", play)
    again(replace(result, plan=Plan("a.b:c", seconds=60)), ())
    assert [(plan.strikes, plan.seconds, plan.all_must_strike) for plan in played] == [(1, 0.0, True)]
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == command(Plan("a.b:c", strikes=len(needed)), needed)
    assert ("that alone does not show the violation" in said) == (alone is Verdict.TRUE)


def test_unknown_is_never_a_pass_and_false_stays_false() -> None:
    empty = Run(History(), ("a",), {})
    hung = replace(empty, proves_nothing="and then it hung")
    fine, wrong = {"I1": Finding(Verdict.TRUE)}, {"I1": Finding(Verdict.FALSE)}
    assert Result(Plan(""), empty, fine, (), ()).verdict is Verdict.TRUE
    assert Result(Plan(""), hung, fine, (), ()).verdict is Verdict.UNKNOWN
    assert Result(Plan(""), hung, wrong, (), ()).verdict is Verdict.FALSE
    assert Result(Plan(""), empty, {}, (), ()).verdict is Verdict.UNKNOWN


def test_the_command_helps_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "epochal.coordinator.console.cli", "chaos", "run", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(
        option in done.stdout for option in ("--target", "--reader", "--seed", "--report", "--minutes", "--tier")
    )


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [("typer", [], "console"), ("rich", [], "console"), ("epochal.chaos.cli", ["chaos"], "chaos")],
)
def test_without_the_extra_packages_it_says_what_to_install(missing: str, words: list[str], extra: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; "
        "from epochal.coordinator.console.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"pip install 'epochal[{extra}]'" in done.stderr
