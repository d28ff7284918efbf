"""Records of the logger ``epochal``: which there are, at which level, and that each has all its keys."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from epochal.coordinator.environment import versions
from epochal.coordinator.model.errors import CommitInDoubt, SinkUnavailable
from epochal.coordinator.model.events import Step
from epochal.coordinator.model.log_keys import KEYS, PREFIX, extra
from epochal.coordinator.telemetry.records import LEVELS, record
from tests.pure.coordinator.model.test_events import every_event, failing
from tests.pure.coordinator.protocol.test_coordinator import Batch, World
from tests.pure.project.test_architecture import modules


def keys(one: logging.LogRecord, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(one, PREFIX + name) for name in names)


class Kept(logging.Handler):
    """Every record, as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    """The records of the logger, in order."""
    kept, logger = Kept(), logging.getLogger("epochal")
    logger.addHandler(kept)
    with caplog.at_level(logging.DEBUG, "epochal"):
        yield kept.records
    logger.removeHandler(kept)


def test_every_record_has_every_key_and_no_other_of_ours(told: list[logging.LogRecord]) -> None:
    every_event(World(), record)
    assert {one.__dict__["epochal_event"] for one in told} == {kind.__name__ for kind in LEVELS}
    for one in told:
        assert {name for name in vars(one) if name.startswith(PREFIX)} == KEYS.keys()
        assert keys(one, "app", "query_id", "run_id") == ("app", "query", "run")
        assert one.levelno == next(level for kind, level in LEVELS.items() if kind.__name__ == keys(one, "event")[0])


def test_an_epoch(told: list[logging.LogRecord]) -> None:
    world = World()
    world.start(world.sink("a")).run(Batch(0))
    [line] = [one for one in told if one.levelno == logging.INFO]
    assert line.getMessage().startswith("app app, epoch 0: 1 rows (look ")
    assert keys(line, "event", "epoch", "rows", "sink", "error") == ("EpochCommitted", 0, 1, None, None)
    [seconds] = keys(line, "seconds")
    phases = [one for one in told if keys(one, "event") == ("PhaseEnded",)]
    assert seconds == pytest.approx(sum(keys(one, "seconds")[0] for one in phases))
    assert [keys(one, "phase")[0] for one in phases][:2] == ["look", "fence"]
    [commit] = [one for one in told if keys(one, "step") == (Step.COMMIT.value,)]
    assert keys(commit, "sink", "rows", "epoch") == ("a", 1, 0)
    assert commit.getMessage().startswith("app app, epoch 0: commit of a took ")
    [started] = [one for one in told if keys(one, "generation") != (None,)]
    assert started.getMessage() == "app app, epoch 0: generation 1 has fenced a"


def test_a_replay(told: list[logging.LogRecord]) -> None:
    world = World()
    for _ in range(2):
        world.start(world.sink("a")).run(Batch(0))
    assert "already visible, replayed (" in [one for one in told if one.levelno == logging.INFO][-1].getMessage()


def test_an_epoch_in_doubt(told: list[logging.LogRecord]) -> None:
    world = World()
    down = SinkUnavailable("no answer", sink="b", epoch=0, help="start it")
    with pytest.raises(CommitInDoubt) as raised:
        world.start(world.sink("a"), failing(world, down)).run(Batch(0))
    again = [one for one in told if one.levelno == logging.WARNING]
    assert [keys(one, "event", "sink", "error") for one in again] == [("Retrying", "b", "SinkUnavailable")] * 2
    [end] = [one for one in told if one.levelno == logging.ERROR]
    assert keys(end, "event", "epoch", "phase", "error") == ("Failed", 0, "commit", "CommitInDoubt")
    assert str(raised.value) in end.getMessage()
    [failed] = [one for one in told if keys(one, "step", "error") == ("commit", "SinkUnavailable")]
    assert "commit of b failed with SinkUnavailable after" in failed.getMessage()


def test_nothing_is_said_that_nobody_listens_to(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "epochal")
    world = World()
    world.start(world.sink("a")).run(Batch(17))
    assert caplog.records == []


def test_a_key_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"\['epochal_table'\] are no keys of a record"):
        extra(table="flights")
    assert extra(app="a").keys() == KEYS.keys()


def test_a_record_from_outside_the_epochs_has_the_keys_too(
    monkeypatch: pytest.MonkeyPatch, told: list[logging.LogRecord]
) -> None:
    monkeypatch.setenv(versions.AT_OWN_RISK, "Spark 4.4")
    versions.check(versions.SPARK, "4.4.0")
    [one] = told
    assert keys(one, "app", "sink") == (None, None)


def logged(source: str) -> list[ast.Call]:
    """The calls that write a record."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [c for c in calls if isinstance(c.func, ast.Attribute) and ast.unparse(c.func.value) == "_log"]


def test_every_record_of_the_code_is_written_with_the_keys() -> None:
    """In production; the kit's servers and drivers have a reader of their own."""
    calls = [call for _, path in modules("coordinator", "checkpoints", "sinks") for call in logged(path.read_text())]
    calls = [call for call in calls if ast.unparse(call.func) != "_log.isEnabledFor"]
    assert len(calls) >= 4
    assert [ast.unparse(call) for call in calls if "extra" not in {word.arg for word in call.keywords}] == []


def test_a_record_without_keys_is_noticed() -> None:
    [call] = logged("_log.warning('no')")
    assert not call.keywords
