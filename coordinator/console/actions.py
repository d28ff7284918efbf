"""``epochal adopt``, ``retire``, ``rename`` and ``resolve``: show what an operator decides, or with --yes record it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType

from epochal.checkpoints.log import Operator, SinkStanding
from epochal.coordinator.console import render
from epochal.coordinator.console.load import load
from epochal.coordinator.console.options import CheckpointArgument, JsonOption, PipelineOption, YesOption
from epochal.coordinator.console.render import Answer, Usage, answering, line, table
from epochal.coordinator.console.standing import resolve as resolved
from epochal.coordinator.model.epoch import EpochNumber, Json, Marker
from epochal.coordinator.protocol.actions import (
    Accept,
    Adopt,
    Evaluate,
    OperatorAction,
    Rename,
    Retire,
    RewriteMarker,
    Skip,
)
from epochal.coordinator.query import operate
from epochal.coordinator.query.checkpoint import located
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.epochs import ShownEpoch
from epochal.sinks.inspection import newest

WhyOption = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason. The log keeps it.")]
_SPAN = re.compile(r"(\d+)(?:\.\.(\d+))?")


@answering
def adopt(
    checkpoint: CheckpointArgument,
    pipeline: PipelineOption = "",
    new: Annotated[bool, typer.Option("--new", help="The checkpoint does not exist yet: create it.")] = False,
    uneven: Annotated[
        bool, typer.Option("--uneven", help="Go on although the sinks do not all show the same epoch.")
    ] = False,
    why: WhyOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Let a checkpoint go on where it lies now: one that was moved or restored, or a new one for an old app.

    A checkpoint that was moved or restored keeps its log. Unknown fences of its sinks are accepted, but a marker that
    its log does not know is refused. A checkpoint without a log, or with --new, begins where the sinks end: their
    offsets are listed, because the query has to start from there. Stop the query first.

    Example: epochal adopt /data/checkpoint --pipeline job.py:pipeline --why 'moved to the new volume' --yes
    """
    act = Adopt(why=_said(why, yes), at=operate.now())
    return _answer("adopt", checkpoint, pipeline, act, yes, new=new, uneven=uneven)


@answering
def retire(
    checkpoint: CheckpointArgument,
    sink: Annotated[str, typer.Argument(help="The name of the sink that leaves.")],
    pipeline: PipelineOption = "",
    unreachable: Annotated[
        bool,
        typer.Option("--unreachable", help="Do not ask the sink: it is down for good, or not in the pipeline."),
    ] = False,
    why: WhyOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Let a sink leave the pipeline. It may return later, just as it is now.

    Stop the query first. Keep the sink in the pipeline for this command, because the last epoch is committed in it
    first; then remove it from the query's code. With --unreachable the sink need not be in the pipeline; if the
    sink lacks the last epoch, it never gets that epoch.

    Example: epochal retire /data/checkpoint kafka-flights --pipeline job.py:pipeline --why 'nobody reads it' --yes
    """
    act = Retire(sink=sink, unreachable=unreachable, why=_said(why, yes), at=operate.now())
    return _answer("retire", checkpoint, pipeline, act, yes)


@answering
def rename(
    checkpoint: CheckpointArgument,
    old: Annotated[str, typer.Argument(help="The sink's name now.")],
    new: Annotated[str, typer.Argument(help="The sink's new name.")],
    pipeline: PipelineOption = "",
    why: WhyOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Let a sink go on under another name, from the marker that it has.

    Stop the query first. The pipeline may have the sink under either name. Afterwards give it the new name in the
    query's code.

    Example: epochal rename /data/checkpoint postgres-flights flights --pipeline job.py:pipeline --why 'shorter' --yes
    """
    act = Rename(old=old, new=new, why=_said(why, yes), at=operate.now())
    return _answer("rename", checkpoint, pipeline, act, yes)


@answering
def resolve(
    checkpoint: CheckpointArgument,
    pipeline: PipelineOption = "",
    accept: Annotated[
        str,
        typer.Option(
            "--accept",
            metavar="SINK",
            help="The sink goes on from its present state: it was restored from a backup, or created again, or it"
            " cannot take an epoch that was decided. It never gets the epochs that it lacks.",
        ),
    ] = "",
    marker: Annotated[
        str,
        typer.Option(
            "--marker",
            metavar="SINK",
            help="You have seen that the sink shows the log's last epoch, but its marker is gone or older: write the"
            " marker again.",
        ),
    ] = "",
    skipped: Annotated[
        str,
        typer.Option("--skipped", metavar="A..B", help="These epochs never reached the pipeline; nobody needs them."),
    ] = "",
    evaluation: Annotated[
        list[str] | None,
        typer.Option(
            "--evaluation",
            metavar="SINK",
            help="Idempotent mode: the sink keeps its rows of the last epoch, although the next run gives other rows."
            " Repeat it for each sink that shows the epoch.",
        ),
    ] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="With --accept: rows that the sink holds but does not show may be deleted.")
    ] = False,
    why: WhyOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Decide what the query cannot finish by itself: an epoch in doubt, a lost marker, skipped epochs, two evaluations.

    Stop the query first. Give one of the four options. Each is your own statement, which the program cannot check; the
    log keeps it with the reason.

    Example: epochal resolve /data/checkpoint --skipped 7..9 --pipeline job.py:pipeline --why 'empty batches' --yes
    """
    told = {"why": _said(why, yes), "at": operate.now()}
    acts: list[OperatorAction] = []
    acts += [Accept(sink=accept, **told)] if accept else []
    acts += [RewriteMarker(sink=marker, **told)] if marker else []
    acts += [Skip(first=_span(skipped)[0], last=_span(skipped)[1], **told)] if skipped else []
    acts += [Evaluate(sinks=tuple(evaluation), **told)] if evaluation else []
    if len(acts) != 1:
        raise Usage("give exactly one of --accept SINK, --marker SINK, --skipped A..B and --evaluation SINK")
    return _answer("resolve", checkpoint, pipeline, acts[0], yes, drop=drop)


def _said(why: str, yes: bool) -> str:
    if yes and not why.strip():
        raise Usage("--yes needs --why: the log keeps the reason")
    return why if why.strip() else "not said yet"


def _span(text: str) -> tuple[EpochNumber, EpochNumber]:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise Usage(f"--skipped {text!r}: it is written as 7 or 7..9")
    return int(found[1]), int(found[2] or found[1])


def _answer(
    command: str,
    checkpoint: str,
    named: str,
    act: OperatorAction,
    yes: bool,
    *,
    new: bool = False,
    uneven: bool = False,
    drop: bool = False,
) -> Answer:
    where, pipeline = located(checkpoint) if new else resolved(checkpoint), load(named)
    decide = operate.run if yes else operate.assume
    record = decide(pipeline, where, act, new=new, uneven=uneven, drop=drop or not yes)
    ends = _ends(pipeline) if isinstance(act, Adopt) else []
    hidden = operate.hidden(pipeline, where, act.sink) if isinstance(act, Accept) and not yes else []
    data = {"checkpoint": where, "app": pipeline.app, "recorded": yes, "record": record.to_json(), "ends": ends}
    notes = [f"the next start deletes this, so --yes also needs --drop: {what}" for what in hidden]
    return Answer(command, {**data, "notes": notes}, shown=[*_shown(record, ends, yes), *map(line, notes)])


def _ends(pipeline: Pipeline) -> list[Json]:
    """Return the newest epoch of each sink, from its audit: a new checkpoint has to begin there."""
    found = []
    for sink in pipeline.sinks:
        end = newest(sink, pipeline.app)
        found.append({"sink": sink.name, **(_end(end) if end is not None else {"epoch": None})})
    return found


def _end(end: ShownEpoch) -> Json:
    told = {"epoch": end.epoch, "incarnation": end.incarnation, "position": end.position}
    return {**told, "sources": list(end.sources), "watermark": end.watermark}


def _shown(record: Operator, ends: Sequence[Json], yes: bool) -> Sequence[RenderableType]:
    made = table("sink", "identity", "marker", "closed up to epoch", "leaves")
    for name, stand in sorted(record.stands.items()):
        markers = " or ".join(_marker(marker) for marker in stand.markers)
        made.add_row(name, stand.identity, markers, _through(stand), "yes" if stand.away else "no")
    lines = [f"the checkpoint lies at {record.place}"] if record.place is not None else []
    lines += [f"the fence {render.actor(fence)} is accepted" for fence in record.fences]
    lines += [f"the next epoch is {record.expected}"] if record.expected is not None else []
    if record.evaluations is not None:
        lines.append(f"{', '.join(record.evaluations.sinks)} keep their rows of epoch {record.evaluations.epoch}")
    for end in ends:
        sources = "; ".join(str(source) for source in end.get("sources", ()))
        lines.append(f"{end['sink']} ends with epoch {end['epoch']}" + (f", at {sources}" if sources else ""))
    head = "recorded" if yes else "this would be recorded, with --why TEXT --yes"
    body: list[RenderableType] = [line(f"{head}: {record.said['act']}", "bold")]
    return [*body, *([made] if made.row_count else []), *map(line, lines)]


def _through(stand: SinkStanding) -> str:
    return str(stand.through) if stand.through >= 0 else "-"


def _marker(marker: Marker | None) -> str:
    return "none" if marker is None else f"position {marker.position}"
