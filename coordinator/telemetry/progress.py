"""Shows a line on the terminal while a long step runs that people wait for: settling, redoing, compacting.

The line appears only if standard error is a terminal, and only after the step has taken one second.  ``rich`` draws it
if it is installed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from epochal.coordinator.model.epoch import EpochNumber, Phase
from epochal.coordinator.model.events import (
    OF_A_SINK,
    Consumer,
    EpochCommitted,
    Event,
    Failed,
    PhaseBegan,
    PhaseEnded,
    Step,
    StepBegan,
    StepEnded,
)

PATIENCE = 1.0
"""Seconds that a step may take before the line appears."""
EVERY = 0.5
"""Seconds between two updates of the line."""

_WIDTH = 80
"""Width, in characters, of a terminal that does not tell its own."""

_WORKS: Mapping[Phase | Step, str] = {
    Phase.SETTLE: "settling",
    Step.REDO: "redoing",
    Step.COMPACT: "compacting the log after",
}
_DONE: Mapping[Step, str] = {Step.PREPARE: "prepared", Step.COMMIT: "committed", Step.APPLY: "applied"}


def progress() -> Consumer | None:
    """Return the consumer for one start, or None if standard error is not a terminal."""
    return Progress(sys.stderr) if sys.stderr is not None and sys.stderr.isatty() else None


class Line(Protocol):
    """A line on the terminal that changes in place."""

    def show(self, text: str) -> None: ...

    def clear(self) -> None: ...


class PlainLine:
    """A line that is drawn with a carriage return and cut to the terminal's width."""

    def __init__(self, out: TextIO, width: int) -> None:
        self._out, self._width = out, width

    def show(self, text: str) -> None:
        self._out.write(f"\r{text[: self._width - 1]}\x1b[K")
        self._out.flush()

    def clear(self) -> None:
        self._out.write("\r\x1b[K")
        self._out.flush()


class RichLine:
    """A line with rich's spinner."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console

        self._status = Console(file=out).status("")

    def show(self, text: str) -> None:
        from rich.text import Text

        self._status.update(Text(text))
        self._status.start()

    def clear(self) -> None:
        self._status.stop()


def line_on(out: TextIO) -> Line:
    try:
        return RichLine(out)
    except ImportError:
        return PlainLine(out, os.get_terminal_size(out.fileno()).columns or _WIDTH)


@dataclass
class _Work:
    """One long step, and how far its sinks are.  ``epoch``: None while a start has not found an epoch to settle."""

    kind: Phase | Step
    app: str
    epoch: EpochNumber | None
    began: float = field(default_factory=time.monotonic)
    done: dict[Step, list[str]] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)

    def add(self, event: StepBegan | StepEnded) -> None:
        assert event.sink is not None, "only a sink's steps are counted"
        self.epoch = event.epoch
        if isinstance(event, StepBegan):
            self.waiting.append(event.sink)
            return
        self.waiting.remove(event.sink)
        if event.error is None:
            self.done.setdefault(event.step, []).append(event.sink)

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def text(self) -> str:
        """Return the text, such as ``app flights: settling epoch 7: committed postgres, waiting for kafka, 12 s``."""
        done = [f"{_DONE[step]} {', '.join(sinks)}" for step, sinks in self.done.items()]
        waiting = [f"waiting for {', '.join(self.waiting)}"] if self.waiting else []
        stands = ", ".join([*done, *waiting, f"{self.seconds():.0f} s"])
        epoch = f" epoch {self.epoch}" if self.epoch is not None else ""
        return f"app {self.app}: {_WORKS[self.kind]}{epoch}: {stands}"


class Progress:
    """A consumer of events that keeps which long steps run.  Its own thread draws the line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._works: list[_Work] = []  # the innermost last
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._painter: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        with self._lock:
            match event:
                case PhaseBegan(phase=kind) | StepBegan(step=kind) if kind in _WORKS:
                    self._works.append(_Work(kind, event.app, None if kind is Phase.SETTLE else event.epoch))
                case PhaseEnded(phase=kind) | StepEnded(step=kind) if kind in _WORKS:
                    self._works = [work for work in self._works if work.kind is not kind]
                case StepBegan() | StepEnded() if self._works and event.step in OF_A_SINK:
                    self._works[-1].add(event)
                case Failed() | EpochCommitted():
                    self._works = []
                case _:
                    return
            busy = bool(self._works)
        self._paint() if busy else self._rest()

    def _paint(self) -> None:
        if self._painter is None:
            self._idle.clear()
            self._painter = threading.Thread(target=self._draw, name="epochal-progress", daemon=True)
            self._painter.start()

    def _rest(self) -> None:
        """Stop drawing and remove the line.  Nothing of the line is left when this returns."""
        if self._painter is not None:
            self._idle.set()
            self._painter.join()
            self._painter = None

    def _draw(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or closed
            self._draw_until_idle()

    def _draw_until_idle(self) -> None:
        line: Line | None = None
        if self._idle.wait(PATIENCE):
            return
        while True:
            with self._lock:
                text = self._works[-1].text() if self._works else None
            if text is not None:
                line = line or line_on(self._out)
                line.show(text)
            if self._idle.wait(EVERY):
                break
        if line is not None:
            line.clear()
