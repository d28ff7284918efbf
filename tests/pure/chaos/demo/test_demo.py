"""The demo's expected rows and its way of counting."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import deltalake
import pyarrow as pa
import pytest

from epochal.chaos.demo import __main__ as program
from epochal.chaos.demo import data, kept, readers, run, strikes
from epochal.chaos.demo.failure import Failed, report
from epochal.chaos.demo.jobs import Settings
from epochal.chaos.demo.plan import FULL, SHORT, Plan
from epochal.chaos.demo.readers import SCHEMA, Count, compare
from epochal.chaos.demo.show import Screen
from epochal.chaos.demo.strikes import Campaign, Checkpoint, Job
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.process import free_port
from epochal.chaos.strike.nemesis import NotCounted


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return data.flights()


@pytest.fixture(scope="module")
def expected(flights: pa.Table) -> pa.Table:
    return data.expected(flights)


def changed(table: pa.Table, row: int, column: str, value: object) -> pa.Table:
    """The same rows but for one value."""
    values = table[column].to_pylist()
    values[row] = value
    index = table.schema.get_field_index(column)
    return table.set_column(index, SCHEMA.field(column), pa.array(values, SCHEMA.field(column).type))


def test_every_flight_is_expected_once(flights: pa.Table, expected: pa.Table) -> None:
    data.check(flights)
    assert len(expected) == data.TOTAL
    assert expected.schema == SCHEMA
    assert expected["tailnum"].null_count == data.WITHOUT_TAILNUM
    assert expected["name"].null_count == 0
    # Most tail numbers are known; a null one is no plane's.
    known = pa.compute.is_in(flights["tailnum"], data.planes()["tailnum"])
    assert pa.compute.sum(known).as_py() == len(expected) - expected["manufacturer"].null_count


def test_the_two_years_are_kept_apart(expected: pa.Table) -> None:
    assert set(expected["year"].to_pylist()) == {2013}
    assert min(year for year in expected["plane_year"].to_pylist() if year is not None) < 2000


def test_empty_is_null_and_never_nan(expected: pa.Table) -> None:
    for name in ("dep_delay", "arr_delay", "air_time", "speed"):
        assert expected[name].null_count > 0
        assert pa.compute.sum(pa.compute.is_nan(expected[name])).as_py() == 0


def test_another_version_of_the_package_is_refused(flights: pa.Table) -> None:
    with pytest.raises(ValueError, match="336775 flights"):
        data.check(flights.slice(1))


def test_json_lines_hold_every_value(flights: pa.Table) -> None:
    first = flights.slice(0, 1000)
    for line, row in zip(data.json_lines(first), first.to_pylist(), strict=True):
        row["time_hour"] = row["time_hour"].strftime("%Y-%m-%dT%H:%M:%SZ")
        assert json.loads(line) == row


def test_the_same_rows_in_another_order_are_exact(expected: pa.Table) -> None:
    some = expected.slice(0, 1000)
    found = pa.concat_tables([some.slice(500), some.slice(0, 500)])
    assert compare(some, found) == Count(1000, 1000, lost=0, duplicated=0, wrong=0)
    assert compare(some, found).exact


@pytest.mark.parametrize(
    ("column", "value"), [("plane_year", 1900), ("speed", float("nan")), ("tailnum", ""), ("dep_delay", None)]
)
def test_one_other_value_is_wrong_and_not_lost(expected: pa.Table, column: str, value: object) -> None:
    some = expected.slice(0, 100)
    count = compare(some, changed(some, 7, column, value))
    assert count == Count(100, 100, lost=0, duplicated=0, wrong=1)
    assert not count.exact


def test_lost_duplicated_and_foreign_rows_are_told_apart(expected: pa.Table) -> None:
    some, foreign = expected.slice(0, 100), expected.slice(100, 2)
    found = pa.concat_tables([some.slice(3), some.slice(10, 1), some.slice(10, 1), some.slice(11, 1), foreign])
    assert compare(some, found) == Count(100, 102, lost=3, duplicated=3, wrong=2)


def test_lost_and_doubled_do_not_cancel_out(expected: pa.Table) -> None:
    some = expected.slice(0, 100)
    found = pa.concat_tables([some.slice(1), some.slice(50, 1)])
    assert compare(some, found) == Count(100, 100, lost=1, duplicated=1, wrong=0)


@pytest.mark.wide
@pytest.mark.slow
def test_nothing_found_is_all_lost(expected: pa.Table) -> None:
    assert compare(expected, SCHEMA.empty_table()) == Count(data.TOTAL, 0, lost=data.TOTAL, duplicated=0, wrong=0)


@pytest.mark.parametrize("plan", [SHORT, FULL], ids=["short", "full"])
def test_the_plain_job_is_struck_no_more_often_than_ours(plan: Plan) -> None:
    for victim in ("driver", "worker"):
        assert sum(s.victim == victim for s in plan.naive) <= sum(s.victim == victim for s in plan.ours)
    assert len(plan.naive) <= len(plan.ours)


@pytest.mark.parametrize("plan", [SHORT, FULL], ids=["short", "full"])
def test_a_plan_has_every_kind_of_strike_once_in_order_and_within_its_epochs(plan: Plan) -> None:
    kinds = {(s.victim, s.point.partition("@")[0]) for s in plan.ours}
    assert kinds >= {
        ("driver", "after-prepare"),
        ("driver", "after-decide"),
        ("driver", "after-sink-commit"),
        ("worker", "in-write"),
        ("kafka", "before-publish"),
        ("postgres", "before-publish"),
    }
    for strikes_ in (plan.ours, plan.naive):
        epochs = [s.epoch for s in strikes_]
        assert epochs == sorted(set(epochs))
        assert 0 < epochs[0] < epochs[-1] < plan.epochs - 1
    assert (plan.epochs - 1) * plan.rows_per_epoch < data.TOTAL <= plan.epochs * plan.rows_per_epoch


def test_the_rows_of_an_epoch_are_read_from_sparks_offsets(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").touch()
    for epoch, end in enumerate((10, 10, 35)):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"topic":{{"0":{end},"1":{end}}}}}'
        (tmp_path / "offsets" / str(epoch)).write_text(text)
    checkpoint = Checkpoint(tmp_path)
    assert [checkpoint.rows_through(epoch) for epoch in (-1, 0, 1, 2)] == [0, 20, 20, 70]
    assert checkpoint.epochs() == 1
    assert (checkpoint.is_done(0), checkpoint.is_done(1)) == (True, False)


# --- the program ----------------------------------------------------------------------------------------


def raised(error: BaseException) -> NoReturn:
    raise error


class FakeServers:
    """Takes the place of the real ones; `ends` lists what became of them."""

    ends: list[str]

    def __init__(self, work: Path) -> None:
        self.work = work
        (work / "server.log").write_text("ready\n")
        FakeServers.ends = []

    def settings(self, job: str) -> Settings:
        return settings(self.work, job)

    def detach(self) -> list[int]:
        self.ends.append("detached")
        return [4711, 4712]

    def close(self) -> None:
        self.ends.append("closed")

    def __str__(self) -> str:
        return "kafka does not run"


def settings(work: Path, job: str = "ours") -> Settings:
    return Settings(
        bootstrap=f"127.0.0.1:{free_port()}",
        source_topic="t",
        dimensions="d",
        checkpoint=str(work / f"{job}-checkpoint"),
        rows_per_epoch=1,
        dsn="postgresql://postgres@127.0.0.1:1/flights",
        table=f"flights_{job}",
        topic=f"flights-{job}",
        lake=str(work / f"{job}-lake"),
    )


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its folder; its servers are fakes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run, "Servers", FakeServers)
    monkeypatch.setattr(run, "exit_on_sigterm", Mock())
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "environment", "keep"),
    [([], None, False), ([], "", False), ([], "0", False), ([], "1", True), (["--keep"], None, True)],
)
def test_servers_are_kept_where_that_is_asked_for(
    arguments: list[str], environment: str | None, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEEP", raising=False)
    if environment is not None:
        monkeypatch.setenv("KEEP", environment)
    assert program.parse(arguments).keep is keep


def test_help_needs_none_of_what_the_demo_needs() -> None:
    code = "import sys; sys.modules.update(rich=None, pyarrow=None); from epochal.chaos.demo.__main__ import main; "
    told = subprocess.run(
        [sys.executable, "-c", code + "main(['--help'])"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "--keep" in told
    assert "exit codes:\n  0 " in told
    without = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(main([]))"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (without.returncode, without.stdout) == (2, "")
    assert without.stderr.endswith("\nHelp: pip install 'epochal[chaos]'\n")
    assert "Traceback" not in without.stderr


@pytest.mark.parametrize("shown", [True, False])
def test_at_its_end_all_is_removed(
    shown: bool, folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "demo", lambda *_: shown)
    assert run.run(keep=False) == (0 if shown else 1)
    assert FakeServers.ends == ["closed"]
    assert list(folders.iterdir()) == []
    assert "Everything is removed now" in capsys.readouterr().out


def test_what_is_kept_is_told_how_to_be_looked_at_and_stopped(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "demo", lambda *_: True)
    assert run.run(keep=True) == 0
    assert FakeServers.ends[0] == "detached"
    (folder,) = folders.iterdir()
    told = capsys.readouterr().out
    assert f"  kill 4711 4712; sleep 10; rm -r {folder}\n" in told
    assert all(f"  {command}\n" in told for command in kept.look(settings(folder))[2:3])


def test_who_interrupts_the_demo_ends_its_servers(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "demo", lambda *_: raised(KeyboardInterrupt()))
    assert run.run(keep=True) == 130
    assert FakeServers.ends == ["closed"]
    assert list(folders.iterdir()) == []


def test_who_terminates_the_demo_ends_its_servers(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listens = Mock()
    monkeypatch.setattr(run, "exit_on_sigterm", listens)

    def terminated(*_: object) -> NoReturn:
        listens.assert_called_once_with()
        raise SystemExit(143)

    monkeypatch.setattr(run, "demo", terminated)
    with pytest.raises(SystemExit, match="143"):
        run.run(keep=True)
    assert FakeServers.ends == ["closed"]
    assert list(folders.iterdir()) == []


@pytest.mark.parametrize("keep", [True, False])
def test_a_failure_is_one_paragraph_and_its_traceback_a_file(
    keep: bool, folders: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def demo(servers: object, screen: Screen, *_: object) -> NoReturn:  # noqa: ARG001
        screen.step("counting")
        raise ValueError("tail numbers differ\nmany lines")

    monkeypatch.setattr(run, "demo", demo)
    assert run.run(keep=keep) == 2
    assert FakeServers.ends == ["closed"]
    (folder,) = folders.iterdir()
    told, errors = capfd.readouterr()
    paragraph = told.splitlines()[-1]
    assert errors == ""
    assert "Traceback (most" not in told
    assert "failed at 'counting': ValueError: tail numbers differ. Processes then: kafka does not run." in paragraph
    assert f"Logs: the traceback in {folder / 'demo.log'}; " in paragraph
    assert paragraph.endswith(f"rm -r {folder}")
    assert (folder / "server.log").exists()
    log = (folder / "demo.log").read_text()
    assert log.startswith("Traceback (most")
    assert "ValueError: tail numbers differ\nmany lines" in log


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NotCounted("not seen within 9 s: x\n    | log"), "not seen within 9 s: x."),
        (ServerUnavailable("no Java", "install one"), "no Java (Help: install one)."),
        (ServerUnavailable("kafka did not come up", "the log above says why", "the log"), "kafka did not come up."),
        (KeyError("k"), "KeyError: 'k'."),
        (TimeoutError(), "TimeoutError: ."),
    ],
)
def test_every_error_has_one_line(error: Exception, line: str, tmp_path: Path) -> None:
    assert f"failed at 'x': {line} Logs: the traceback in" in report(error, "x", tmp_path)
    (tmp_path / "demo.log").unlink()
    unwritten = report(error, "x", tmp_path / "none")
    assert "Logs: no traceback ([Errno 2]" in unwritten


class FakeDriver:
    """A start of a job that ends by itself before it can be struck."""

    pid = 4711
    exit_status = 1
    output_file = Path("output.log")

    def __init__(self, argv: object, folder: Path, failpoints_armed: object) -> None:  # noqa: ARG002
        folder.mkdir()
        self.folder = folder

    def see_blocked(self, rule: str, timeout: float) -> NoReturn:  # noqa: ARG002
        raise NotCounted(f"ended before {rule}")

    def close(self) -> None:
        pass


def test_a_job_that_fails_names_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strikes, "Driver", FakeDriver)
    job = Job("naive", settings(tmp_path, "naive"), never_judged, {}, {})
    with pytest.raises(
        Failed, match=r"driver 4711 of job 'naive' ended with status 1, it printed output\.log"
    ) as failed:
        Campaign("naive", SHORT.naive, tmp_path, lambda _: None).run(job)
    assert isinstance(failed.value.__cause__, NotCounted)


def never_judged(epoch: int) -> NoReturn:
    raise AssertionError(f"epoch {epoch} was not struck")


def test_the_commands_that_show_the_results_can_be_copied(tmp_path: Path) -> None:
    where = settings(tmp_path)
    for command in kept.look(where):
        assert "\n" not in command
        first, *rest = shlex.split(command)
        if rest[0] == "-c":
            assert first == sys.executable
            compile(rest[1], "command", "exec")
    deltalake.write_deltalake(where.lake, data.flights().slice(0, 10))
    deltalake.write_deltalake(where.lake, data.flights().slice(9, 1), mode="append")
    (delta,) = (command for command in kept.look(where) if "deltalake" in command)
    done = subprocess.run(delta, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "11 10\n"


def test_a_reader_says_nothing_of_a_broker_that_is_away(capfd: pytest.CaptureFixture[str]) -> None:
    consumer = readers._consumer(f"127.0.0.1:{free_port()}", "read_committed")
    consumer.poll(0.5)
    consumer.close()
    assert capfd.readouterr() == ("", "")
