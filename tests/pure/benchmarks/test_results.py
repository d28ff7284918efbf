"""The command of the benchmarks, and what it keeps: nothing is overwritten, no part stands for the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

import benchmarks.__main__ as command
from benchmarks import figures
from benchmarks.goals import GOALS
from benchmarks.measuring import Ratio
from benchmarks.page import __main__ as page
from benchmarks.results import Result, environment, runs, save
from benchmarks.tables import LONG, TABLES, Options
from epochal.coordinator.environment.versions import KAFKA_BROKER, POSTGRES


def found(**told: str | bool) -> Result:
    return Result("small", 5, environment={}, **told)  # type: ignore[arg-type]


# --- what is kept ---------------------------------------------------------------------------------------


def test_a_result_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.results._now", lambda: "20261123T101500Z")
    kept = save(found(), tmp_path).read_bytes()
    with pytest.raises(FileExistsError):
        save(found(partial="other"), tmp_path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [kept]


def test_neither_a_part_nor_a_quick_run_stands_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for second, made in enumerate([found(), found(partial="1 runs left out"), found(quick=True)]):
        monkeypatch.setattr("benchmarks.results._now", lambda second=second: f"2026112{second}T101500Z")
        save(made, tmp_path)
    assert [run["file"] for run in runs("small", folder=tmp_path)] == ["small-20261120T101500Z.json"]
    assert [run["file"] for run in runs("small", quick=True, folder=tmp_path)] == ["small-quick-20261122T101500Z.json"]


@pytest.mark.parametrize("quick", [True, False])
def test_a_quick_run_answers_no_goal(quick: bool) -> None:
    made = found(quick=quick)
    made.add([], Ratio("a", "b", {}, "s more", [0.1], "small-one"))
    assert [ratio.goal in GOALS for ratio in made.ratios] == [not quick]


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("EPOCHAL_POSTGRES_VERSION", "16", {"postgres": "16", "kafka broker": KAFKA_BROKER}),
        ("EPOCHAL_KAFKA_VERSION", "3.9.2", {"postgres": POSTGRES[-1], "kafka broker": "3.9.2"}),
        ("EPOCHAL_POSTGRES_DSN", "host=h", {"postgres": "not embedded", "kafka broker": KAFKA_BROKER}),
        ("EPOCHAL_SERVERS", "containers", {"postgres": "not embedded", "kafka broker": "not embedded"}),
    ],
)
def test_a_server_that_somebody_chose_is_told(
    variable: str, value: str, told: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POSTGRES_VERSION", "KAFKA_VERSION", "POSTGRES_DSN", "KAFKA_BOOTSTRAP", "SERVERS"):
        monkeypatch.delenv(f"EPOCHAL_{name}", raising=False)
    monkeypatch.setenv(variable, value)
    versions = environment()["versions"]
    assert isinstance(versions, dict)
    assert {name: versions[name] for name in told} == told


# --- the command ----------------------------------------------------------------------------------------


def ran(monkeypatch: pytest.MonkeyPatch, run: Callable[[str, Options], Result]) -> list[tuple[str, Options]]:
    """The tables that the command measures, by ``run`` in the place of each."""
    asked: list[tuple[str, Options]] = []

    def table(name: str) -> SimpleNamespace:
        def measured(options: Options) -> Result:
            asked.append((name, options))
            return run(name, options)

        return SimpleNamespace(run=measured)

    monkeypatch.setattr(command, "table", table)
    return asked


def test_a_table_that_fails_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, options: Options) -> Result:
        if name == "modes":
            raise RuntimeError("no server here")
        return Result(name, options.rounds, environment={})

    asked = ran(monkeypatch, run)
    assert command.main(["modes", "small", "--rounds", "2", "--into", str(tmp_path)]) == 1
    assert asked == [("modes", Options(2, quick=False)), ("small", Options(2, quick=False))]
    assert [file.name.partition("-2")[0] for file in tmp_path.iterdir()] == ["small"]
    said = capsys.readouterr().err
    assert "no server here" in said
    assert "without a result, as said above: modes" in said


def test_most_tables_are_all_but_the_long_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ran(monkeypatch, lambda name, options: Result(name, options.rounds, options.quick, environment={}))
    assert command.main(["most", "--quick", "--into", str(tmp_path)]) == 0
    assert [name for name, _ in asked] == [name for name in TABLES if name not in LONG]
    assert all(options.quick for _, options in asked)


@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        (command.main, ["smal"], "invalid choice: 'smal' (choose from"),
        (command.main, [], "the following arguments are required: TABLE"),
        (command.main, ["small", "--rounds", "0"], "--rounds 0: at least 1"),
        (page.main, ["--from", "nowhere"], "nowhere is no folder"),
        (figures.main, ["--from", "nowhere"], "nowhere is no folder"),
    ],
)
def test_wrong_usage_ends_before_anything_is_done(
    main: Callable[[list[str]], object],
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
