"""The line on a terminal, on a real pseudo terminal; and silence where there is none."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import pytest

from epochal.coordinator.model.epoch import Phase
from epochal.coordinator.model.errors import CommitInDoubt, Misconfigured, SinkUnavailable
from epochal.coordinator.model.events import EventPublisher, Step
from epochal.coordinator.telemetry import progress
from epochal.coordinator.telemetry.progress import PlainLine, Progress, RichLine
from epochal.sinks.memory import MemorySink
from tests.pure.coordinator.model.test_events import failing
from tests.pure.coordinator.protocol.test_coordinator import QUERY, Batch, World

LIMIT = 20.0


class Terminal:
    """What a person sees: everything that was written to a pseudo terminal, as it comes."""

    def __init__(self, ours: int, theirs: int) -> None:
        self.file: TextIO = os.fdopen(theirs, "w")
        self._ours, self._seen = ours, b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while more := os.read(self._ours, 4096):
                self._seen += more

    def text(self) -> str:
        return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", self._seen.decode(errors="replace"))

    def until(self, words: str) -> None:
        limit = time.monotonic() + LIMIT
        while words not in self.text():
            assert time.monotonic() < limit, f"{words!r} is not in {self.text()!r}"
            time.sleep(0.01)

    def close(self) -> None:
        self.file.close()
        self._reader.join(LIMIT)
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal(*pty.openpty())
    yield made
    made.close()


@pytest.fixture(params=["plain", "rich"])
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Impatient, with and without rich."""
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    monkeypatch.setattr(progress, "EVERY", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    return str(request.param)


class Slow(MemorySink):
    """Commits when it is told to."""

    go: threading.Event

    def commit(self, committable: Any, by: Any) -> Any:
        assert self.go.wait(LIMIT)
        return super().commit(committable, by)


def in_background(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_start_that_settles_shows_whom_it_waits_for(quick: str, terminal: Terminal) -> None:
    world = World()
    down = SinkUnavailable("no answer", sink="b", help="start it")
    for name in "ac":
        world.sink(name)
    first = failing(world, down)
    other = type(first)("a", world.server)
    other.error = down
    with pytest.raises(CommitInDoubt):
        world.start(other, first).run(Batch(0))
    slow = Slow("b", world.server)
    slow.go = threading.Event()
    told = EventPublisher(QUERY, [Progress(terminal.file)])
    start = world.start(MemorySink("a", world.server), slow, telling=told)
    going = in_background(lambda: start.run(Batch(0)))
    terminal.until("app app: settling epoch 0: committed a, waiting for b, ")
    slow.go.set()
    going.join(LIMIT)
    assert not going.is_alive()
    assert threads() == []
    assert world.server.visible("app", "b") == [{"id": "row-0"}]
    assert isinstance(progress.line_on(terminal.file), RichLine if quick == "rich" else PlainLine)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "epochal-progress"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Step.REDO, "redoing epoch 7: prepared a, waiting for b, "),
        (Step.COMPACT, "compacting the log after epoch 7"),
    ],
)
def test_redo_and_compaction(step: Step, words: str, quick: str, terminal: Terminal) -> None:  # noqa: ARG001
    telling = EventPublisher(QUERY, [Progress(terminal.file)])
    telling.epoch_began(7)
    with telling.step(step):
        if step is Step.REDO:
            with telling.step(Step.PREPARE, "a"):
                pass
            with telling.step(Step.PREPARE, "b"):
                terminal.until(words)
        terminal.until(words)
    assert threads() == []


def test_a_redo_within_settling_is_on_top_and_settling_comes_back(quick: str, terminal: Terminal) -> None:  # noqa: ARG001
    telling = EventPublisher(QUERY, [Progress(terminal.file)])
    telling.epoch_began(8)
    telling.phase_began(Phase.SETTLE)
    terminal.until("app app: settling: ")
    with telling.step(Step.COMMIT, "[a]", 7):
        terminal.until("settling epoch 7: waiting for [a], ")
    with telling.step(Step.REDO, epoch=7):
        terminal.until("redoing epoch 7: ")
    terminal.until("settling epoch 7: committed [a], ")
    telling.failed(Misconfigured("no", help="none"))
    assert threads() == []


def test_a_step_that_is_over_soon_shows_nothing(terminal: Terminal) -> None:
    world = World()
    start = world.start(world.sink("a"), world.sink("b"), telling=EventPublisher(QUERY, [Progress(terminal.file)]))
    for epoch in range(4):
        start.run(Batch(epoch))
    assert terminal.text() == ""


def test_the_line_is_cleared(quick: str, terminal: Terminal) -> None:
    """What stands there last is nothing: ``ESC[K`` or rich's ``ESC[2K``."""
    telling = EventPublisher(QUERY, [Progress(terminal.file)])
    telling.epoch_began(7)
    with telling.step(Step.COMPACT):
        terminal.until("compacting")
    terminal.file.write("done")
    terminal.file.flush()
    terminal.until("done")
    raw = terminal._seen.decode()
    assert re.search(r"\x1b\[2?K(\x1b\[[?0-9;]*[a-zA-Z]|\s)*done$", raw), raw
    assert quick


def test_a_long_line_is_cut_to_the_width() -> None:
    out = io.StringIO()
    PlainLine(out, 10).show("x" * 30)
    assert out.getvalue() == f"\r{'x' * 9}\x1b[K"


def test_a_terminal_that_is_gone_ends_the_line_alone(quick: str) -> None:  # noqa: ARG001
    ours, theirs = pty.openpty()
    file = os.fdopen(theirs, "w")
    telling = EventPublisher(QUERY, [Progress(file)])
    telling.epoch_began(7)
    with telling.step(Step.COMPACT):
        file.close()
        time.sleep(0.1)
    os.close(ours)
    assert threads() == []


def test_without_a_terminal_there_is_no_progress(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress.progress() is None
    monkeypatch.setattr(sys, "stderr", None)
    assert progress.progress() is None
    monkeypatch.setattr(sys, "stderr", terminal.file)
    assert isinstance(progress.progress(), Progress)
