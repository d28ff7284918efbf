"""Frames: what each sink gets of an epoch, if that is not the micro-batch itself.

A frame is computed from the durable copy of the micro-batch, once, and is itself copied.  So all sinks, and every redo,
see the rows of one evaluation, and a redo never calls the user's function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from epochal.coordinator.model.epoch import Copy, Epoch
from epochal.sinks.protocol import FramedSink, Rows, Sink

Frames = Callable[[Rows], Mapping[str, Rows]]
"""Gives the frames of a micro-batch, by their names."""

BATCH = ""
"""Stands where a frame's name would stand, for the micro-batch itself."""


def frame_of(sink: Sink) -> str:
    """Return the name of the frame that the sink gets; ``BATCH`` for the micro-batch itself."""
    return (sink.frame if isinstance(sink, FramedSink) else None) or BATCH


def frames_of(sinks: Collection[Sink]) -> list[str]:
    """Return the names of the frames that these sinks get, without ``BATCH``."""
    return sorted({frame_of(sink) for sink in sinks} - {BATCH})


def in_frame(sinks: Collection[Sink], frame: str) -> list[Sink]:
    """Return the sinks that get this frame."""
    return [sink for sink in sinks if frame_of(sink) == frame]


@dataclass(frozen=True)
class Copies:
    """The durable copies of one epoch.  ``batch``: that of the micro-batch, if there is one."""

    batch: Copy | None = None
    frames: Mapping[str, Copy] = field(default_factory=dict)

    @property
    def all(self) -> list[Copy]:
        return [copy for copy in (self.batch, *self.frames.values()) if copy is not None]

    def of(self, frame: str) -> Copy | None:
        return self.batch if frame == BATCH else self.frames[frame]

    def needed(self, frame: str) -> Copy:
        """Return the copy of a frame of an epoch that has copies."""
        copy = self.of(frame)
        assert copy is not None, "an epoch with copies has that of the micro-batch"
        return copy


@dataclass(frozen=True)
class Given:
    """What each sink is given of one epoch.  ``reads``: by sink, its frame.  ``rows``: gives the rows of a frame."""

    asked: Epoch
    copies: Copies
    reads: Mapping[str, str]
    rows: Callable[[str], Rows]

    def epoch(self, sink: str) -> Epoch:
        """Return the epoch as the sink is asked for it: with the copy of the sink's frame."""
        return replace(self.asked, copy=self.copies.of(self.reads[sink]))

    def rows_of(self, sink: str) -> Rows:
        return self.rows(self.reads[sink])
