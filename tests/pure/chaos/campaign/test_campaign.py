"""The order of a run, and what is made of one that goes wrong, with drivers that only pretend.

What drivers, servers and readers really do is in tests/real/chaos; here every step can be made to fail.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from epochal.chaos import cli
from epochal.chaos.campaign.campaign import Campaign
from epochal.chaos.campaign.plan import Plan, Result
from epochal.chaos.campaign.starts import Starts
from epochal.chaos.job import program
from epochal.chaos.observe import recording, watch
from epochal.chaos.observe.checker import Verdict, judge_all
from epochal.chaos.observe.history import Changed, Ended, Fault, Prepared, Started, TookOver
from epochal.chaos.report import Round, html
from epochal.chaos.strike.nemesis import Death, NotCounted, Sighting
from epochal.chaos.strike.strikes import Menu
from epochal.coordinator.model.failpoints import Point

OUTPUT: list[dict[str, Any]] = []
FAILS: list[Exception] = []
"""What the reader raises next, and then again and again."""
KILL = "kill:driver:before-call"


def write(df: object, epoch: int) -> None:
    """The target; nobody calls it, as the drivers pretend."""


def read() -> list[dict[str, Any]]:
    """The reader."""
    if FAILS:
        raise FAILS[0]
    return list(OUTPUT)


class Pretender:
    """A driver that writes what it finds in the source when it is waited for."""

    def __init__(self, source: Path, folder: Path, does: Callable[[Pretender], program.End | None]) -> None:
        self.folder, self._source, self._does = folder, source, does
        self.pid = 1
        self.exit_status: int | None = None
        self.woken = False
        folder.mkdir(parents=True)

    def new_inputs(self) -> list[dict[str, Any]]:
        known = {row["id"] for row in OUTPUT}
        lines = [line for file in sorted(self._source.glob("[0-9]*.json")) for line in file.read_text().splitlines()]
        return [i for i in map(json.loads, lines) if i["id"] not in known]

    def write(self, *, twice: bool = False) -> None:
        rows = [{"id": i["id"], "attempt": "a", "n": 1} for i in self.new_inputs()]
        OUTPUT.extend(rows + rows if twice else rows)

    def wait(self, timeout: float) -> int:
        end = self._does(self)
        if end is None:
            raise NotCounted(f"did not end within {timeout} s")
        (self.folder / program.END).write_text(json.dumps(vars(end)))
        self.exit_status = 0
        return 0

    def see_blocked(self, rule: str, timeout: float) -> Sighting:  # noqa: ARG002
        return Sighting(self.pid, "point", "", 0)

    def see_hit(self, rule: str, timeout: float) -> Sighting:
        return self.see_blocked(rule, timeout)

    def kill(self) -> list[Death]:
        self.exit_status = -9
        return [Death(self.pid, 9)]

    def pause(self) -> None: ...

    def resume(self) -> None:
        self.woken = True

    def go(self, rule: str) -> None: ...

    def close(self) -> None: ...

    def tail(self, lines: int = 0) -> str:  # noqa: ARG002
        return ""


def right(driver: Pretender) -> program.End:
    driver.write()
    return program.End("finished")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(watch, "STALE_S", 1.0)
    OUTPUT.clear()
    FAILS.clear()
    yield
    OUTPUT.clear()
    FAILS.clear()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """A run of these strikes over drivers that behave as ``does`` says for start 1, 2, ..."""

    def play(*strikes: str, does: Callable[[int, Pretender], program.End | None], named: bool = True) -> Result:
        made: list[Pretender] = []

        def begin(starts: Starts, *_: Any, **__: Any) -> Any:
            number = len(made) + 1
            driver = Pretender(
                tmp_path / "run" / "source", tmp_path / f"start-{number}", lambda pretender: does(number, pretender)
            )
            made.append(driver)
            starts._live.append(driver)  # type: ignore[arg-type]
            starts._history.add(Started(driver.folder.name))
            return driver

        monkeypatch.setattr(Starts, "begin", begin)
        monkeypatch.setattr(Starts, "stand_by", lambda _: None)
        module = "tests.pure.chaos.campaign.test_campaign"
        plan = Plan(f"{module}:write", (f"{module}:read",), strikes=len(strikes), all_must_strike=named)
        menu = Menu([cli.parse_strike(text) for text in strikes])
        return Campaign(plan, tmp_path / "run", print, menu=menu).run()

    return play


def test_a_right_function_is_valid(run: Callable[..., Result]) -> None:
    result = run(KILL, does=lambda _, driver: right(driver))
    assert result.verdict is Verdict.TRUE, (result.run.proves_nothing, result.findings)
    assert [str(strike) for strike in result.struck] == ["kill driver at before-call, epoch 3"]
    assert [fault.kind for _, fault in result.run.history.of(Fault)] == ["kill", "kill"]


def test_what_is_written_twice_is_invalid(run: Callable[..., Result]) -> None:
    def twice_at_last(number: int, driver: Pretender) -> program.End:
        driver.write(twice=number > 2)
        return program.End("finished")

    assert run(KILL, does=twice_at_last).verdict is Verdict.FALSE


def test_a_run_that_breaks_off_is_unknown_and_convicts_nobody(run: Callable[..., Result]) -> None:
    result = run(KILL, does=lambda number, driver: right(driver) if number == 1 else None)
    assert result.verdict is Verdict.UNKNOWN, result.findings
    assert "did not end within" in result.run.proves_nothing


def test_a_run_that_breaks_off_after_a_violation_is_invalid(run: Callable[..., Result]) -> None:
    def twice_and_hang(number: int, driver: Pretender) -> program.End | None:
        if number == 1:
            return right(driver)
        driver.write(twice=True)
        time.sleep(0.5)  # readers look
        return program.End("broken", named=True, definite=False) if number < 4 else None

    result = run("raise:driver:before-call", KILL, does=twice_and_hang)
    assert result.verdict is Verdict.FALSE, (result.run.proves_nothing, result.findings)


@pytest.mark.parametrize("twice", [False, True], ids=["right", "wrong"])
def test_nobody_is_judged_by_what_a_reader_saw_before_it_failed(run: Callable[..., Result], twice: bool) -> None:
    def then_the_reader_fails(number: int, driver: Pretender) -> program.End:
        if number > 2:
            FAILS.append(TimeoutError("the database is slow"))
        driver.write(twice=twice and number > 2)
        return program.End("finished")

    result = run(KILL, does=then_the_reader_fails)
    assert result.verdict is Verdict.UNKNOWN, result.findings
    assert "the database is slow" in result.run.proves_nothing


def test_a_reader_that_ends_its_thread_is_noticed(run: Callable[..., Result]) -> None:
    def then_the_reader_exits(number: int, driver: Pretender) -> program.End:
        if number > 2:
            FAILS.append(SystemExit(0))  # type: ignore[arg-type]
        return right(driver)

    result = run(KILL, does=then_the_reader_exits)
    assert result.verdict is Verdict.UNKNOWN
    assert "SystemExit" in result.run.proves_nothing


def never(*_: Any) -> Any:
    raise NotCounted("nobody came")


@pytest.mark.parametrize(("named", "verdict"), [(True, Verdict.UNKNOWN), (False, Verdict.TRUE)])
def test_a_strike_that_was_asked_for_has_to_strike(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, named: bool, verdict: Verdict
) -> None:
    """Of strikes drawn from a menu half is enough; all that did not strike are told."""
    seen = Pretender.see_blocked

    def see(driver: Pretender, rule: str, timeout: float) -> Sighting:
        if rule.startswith("after-return"):
            driver.wait(timeout)
            never()
        return seen(driver, rule, timeout)

    monkeypatch.setattr(Pretender, "see_blocked", see)
    result = run(KILL, "kill:driver:after-return", does=lambda _, driver: right(driver), named=named)
    assert result.verdict is verdict, result.run.proves_nothing
    assert [strike.point.value for strike in result.unreached] == ["after-return"]


@pytest.mark.parametrize(
    ("point", "told"), [("after-apply", [0, 1, 1]), ("at-row", [0, 1, 1]), ("after-return", [0, 0])]
)
def test_a_record_is_looked_at_before_it_is_said_that_its_epoch_is_under_way(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, point: str, told: list[int]
) -> None:
    """What the log tells while the epoch is under way is taken for its end; how many were begun, at each look."""
    look, seen = Campaign._look, []

    def looked(campaign: Campaign) -> Any:
        seen.append(sum(1 for _ in campaign.history.of(Prepared)))
        return look(campaign)

    monkeypatch.setattr(Campaign, "_look", looked)
    monkeypatch.setattr("epochal.chaos.campaign.campaign.FOREIGN_POINTS", set(Point))
    run(f"kill:driver:{point}", does=lambda _, driver: right(driver))
    assert seen == told


# zombies


def zombie(writes: bool, newer_ends: str) -> Callable[[int, Pretender], program.End]:
    """Start 2 is halted, start 3 overtakes it; then 2 wakes up."""

    def does(number: int, driver: Pretender) -> program.End:
        if number == 3 and newer_ends != "finished":
            return program.End(newer_ends)
        driver.write()
        if driver.woken and writes:
            OUTPUT.append({**OUTPUT[-1]})
        return program.End("finished")

    return does


def test_a_zombie_counts_only_where_it_was_overtaken(run: Callable[..., Result]) -> None:
    result = run("pause:driver:before-call", does=zombie(writes=False, newer_ends="Unavailable"))
    assert list(result.struck) == []
    assert result.verdict is Verdict.UNKNOWN


def test_what_a_zombie_changes_is_told(run: Callable[..., Result]) -> None:
    good = run("pause:driver:before-call", does=zombie(writes=False, newer_ends="finished"))
    assert good.verdict is Verdict.TRUE, good.findings
    assert [event.where for _, event in good.run.history.of(TookOver)] == ["output"]
    assert judge_all(good.run, ["I12"])["I12"].verdict is Verdict.TRUE


def test_what_a_zombie_writes_is_a_violation(run: Callable[..., Result]) -> None:
    bad = run("pause:driver:before-call", does=zombie(writes=True, newer_ends="finished"))
    assert [event.where for _, event in bad.run.history.of(Changed)] == ["output"]
    assert judge_all(bad.run, ["I12"])["I12"].verdict is Verdict.FALSE


# files of the checkpoint


def checkpoint_of(driver: Pretender) -> Path:
    return driver.folder.parent / "run" / "checkpoint"


def made(driver: Pretender) -> Path:
    for name in ("offsets", "commits", "epochal/log"):
        (checkpoint_of(driver) / name).mkdir(parents=True, exist_ok=True)
    (checkpoint_of(driver) / "offsets" / "0").write_text("v1")
    return checkpoint_of(driver)


def test_a_checkpoint_that_is_refused_is_put_back_with_its_inputs(run: Callable[..., Result]) -> None:
    """Start 2 is killed; start 3 finds nothing and refuses; the last one finds all as it was."""
    found: list[tuple[int, bool, int]] = []

    def does(number: int, driver: Pretender) -> program.End:
        there = checkpoint_of(driver).exists()
        found.append((number, there, len(list((driver.folder.parent / "run" / "source").glob("[0-9]*.json")))))
        if number == 1:
            made(driver)
        if number == 3:
            return program.End("CheckpointMismatch")
        return right(driver)

    result = run("delete:checkpoint:before-call", does=does)
    assert result.verdict is Verdict.TRUE, (result.run.proves_nothing, result.findings)
    assert found == [(1, False, 3), (3, False, 1), (4, True, 5)]
    assert "CheckpointMismatch" in [end.outcome for _, end in result.run.history.of(Ended)]


def test_files_that_a_failed_start_has_gone_on_from_are_not_taken_back(run: Callable[..., Result]) -> None:
    def does(number: int, driver: Pretender) -> program.End:
        if number == 1:
            made(driver)
        if number == 3:
            (made(driver) / "epochal" / "log" / "0.json").write_text("a fence")
            return program.End("SinkUnavailable")
        return right(driver)

    result = run("forget-log:checkpoint:before-call", does=does)
    assert result.verdict is Verdict.UNKNOWN
    assert "wrote to the log, so the old files do not fit" in result.run.proves_nothing


# what is told of it


def test_what_is_unknown_is_unknown_everywhere(
    run: Callable[..., Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the terminal, on the page, and for whoever judges the file again."""
    result = run(KILL, does=lambda number, driver: right(driver) if number == 1 else None)
    findings = {name: found for name, found in result.findings.items() if found}
    valid_but_torn = Result(result.plan, result.run, findings, result.struck, result.unreached)
    assert findings
    history, page = tmp_path / "histories", tmp_path / "page.html"
    history.mkdir()
    assert cli.tell([valid_but_torn], {"seed": 0}, history, page) is Verdict.UNKNOWN
    assert "UNKNOWN" in capsys.readouterr().out
    told, about = recording.load(history / "round-1.jsonl")
    assert told.proves_nothing == result.run.proves_nothing
    assert about["invariants"] == list(findings)
    with pytest.raises(typer.Exit) as ended:
        cli.check([history / "round-1.jsonl"])
    assert ended.value.exit_code == cli.UNKNOWN
    for text in (page.read_text(), html([Round(told, findings)], {})):
        assert "Unknown" in text
        assert result.run.proves_nothing.splitlines()[0][:40] in text
