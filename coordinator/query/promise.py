"""What ``Pipeline.guarantee`` says of a pipeline as a whole, in words."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.coordinator.model.epoch import IDEMPOTENT
from epochal.coordinator.protocol.coordinator import wants_copy
from epochal.coordinator.protocol.frames import frame_of, frames_of, in_frame
from epochal.coordinator.query.asking import OfQuery
from epochal.coordinator.query.plan import PlanFacts
from epochal.sinks.protocol import ApplySink, RedoSink, Sink, VotingSink


def notes(sinks: Sequence[Sink], mode: str, deterministic: Sequence[str], asked: OfQuery) -> list[str]:
    """Return what holds for all sinks together.  ``asked``: what is known of the query."""
    told = []
    if mode == IDEMPOTENT:
        told += _given_again(sinks, deterministic)
    elif wants_copy(sinks):
        told.append("every micro-batch is evaluated once, into a durable copy that all sinks read")
        told += _of_frames(sinks)
    else:
        told.append("one sink that votes: its own prepared rows are the durable copy")
    if len(sinks) > 1:
        told.append("no isolation across sinks: during a commit they differ by at most one epoch")
    told += _conditions(asked.plan) if asked.plan is not None else []
    told += [f"condition: {caution}" for caution in asked.cautions]
    return told


def in_mode(sink: Sink, mode: str) -> str:
    """Return what the pipeline's mode adds to a sink's promise."""
    if mode == IDEMPOTENT:
        return (
            "In idempotent mode it gets each epoch independently of the other sinks, without a common decision:"
            " exactly once if the query gives the same rows whenever the epoch is run."
        )
    written = ""
    if isinstance(sink, RedoSink) and not isinstance(sink, VotingSink):  # one that votes says itself when it writes
        written = " Its rows are written after the decision, from the durable copy."
    shown = f"All sinks of frame {frame_of(sink)!r}" if frame_of(sink) else "All sinks"
    return (
        f"In two-phase mode it shows an epoch only after the epoch is decided for all sinks. {shown} show the rows of"
        f" one evaluation, whatever the query is.{written}"
    )


def _of_frames(sinks: Sequence[Sink]) -> list[str]:
    """Return what is promised of frames, if a sink gets one."""
    read = {frame: [sink.name for sink in in_frame(sinks, frame)] for frame in frames_of(sinks)}
    if not read:
        return []
    told = "; ".join(f"{frame}: {', '.join(names)}" for frame, names in read.items())
    return [
        f"each frame is computed from that copy, once and on its own, and copied ({told}); one decision covers all of"
        " them, and a redo does not call frames= again"
    ]


def _given_again(sinks: Sequence[Sink], deterministic: Sequence[str]) -> list[str]:
    """Return what idempotent mode promises instead of a decision."""
    notes = [
        "every sink shows each epoch exactly once, whole and in order, provided that the query gives the same rows"
        " whenever an epoch is run; the micro-batch is evaluated once per sink, and again on replay",
    ]
    if len(sinks) > 1:
        notes.append(
            "the rows of all evaluations are compared by a digest before a sink shows any: other rows end the query"
            " with NonDeterministicReplay"
        )
        notes += [
            f"{sink.name} cannot hold rows back: its rows are compared only with those of sinks that get the epoch"
            " before it, so it may show rows that a sink after it refuses"
            for sink in sorted(sinks, key=lambda sink: sink.name)
            if isinstance(sink, ApplySink)
        ]
    else:
        notes.append("with one sink there is nothing to compare its rows with")
    if deterministic:
        notes.append(f"condition: these functions depend on their arguments alone: {', '.join(deterministic)}")
    return notes


def _conditions(plan: PlanFacts) -> list[str]:
    """Return the conditions under which operator state is the same when Spark replays an epoch."""
    notes = []
    if plan.python_functions:
        names = ", ".join(plan.python_functions)
        notes.append(f"condition: these Python functions feed operator state and must be deterministic: {names}")
    if plan.order_dependent:
        names = ", ".join(plan.order_dependent)
        notes.append(f"condition: operator state holds values that depend on the order of rows: {names}")
    if plan.static_sides:
        notes.append(
            "condition: operator state is fed from tables that do not stream; they must not change between an"
            " epoch and its replay"
        )
    return notes
