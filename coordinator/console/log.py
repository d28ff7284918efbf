"""``epochal log``: the records of the epoch log."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from epochal.checkpoints.log import Apply, Commit, Entry, EpochLog, Fence, Operator
from epochal.checkpoints.objects import ObjectLog
from epochal.coordinator.console import render
from epochal.coordinator.console.load import find
from epochal.coordinator.console.options import CheckpointArgument, JsonOption, PipelineOption
from epochal.coordinator.console.render import Answer, Usage, answering, line, shown, table
from epochal.coordinator.console.standing import log_of, resolve
from epochal.coordinator.model.epoch import Json


@answering
def log(
    checkpoint: CheckpointArgument,
    pipeline: PipelineOption = "",
    offsets: Annotated[bool, typer.Option("--offsets", help="Show the source offsets of each epoch.")] = False,
    committables: Annotated[
        bool, typer.Option("--committables", help="Show the votes of the sinks, and in the JSON the whole records.")
    ] = False,
    policy: Annotated[
        bool,
        typer.Option(
            "--policy",
            help="Instead of the records, print the bucket policy that forbids everybody to overwrite them (S3).",
        ),
    ] = False,
    last: Annotated[int | None, typer.Option(min=1, help="Show only this many of the newest records.")] = None,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Show the records of the epoch log, oldest first: which start took over, what was decided or begun.

    --pipeline is needed only for a log that does not lie below the checkpoint.

    Example: epochal log /data/checkpoint --last 20 --offsets
    """
    kept = log_of(find(pipeline), resolve(checkpoint))
    if policy:
        return _policy(kept)
    entries = kept.read()
    told = [_told(entry, offsets, committables) for entry in entries[-(last or 0) :]]
    data = {"log": kept.describe(), "records_in_log": len(entries), "records": told}
    lines: list[RenderableType] = [
        line(f"{kept.describe()}: {len(entries)} records, {len(told)} shown"),
        _table(told),
        *(line(f"{record['position']}: {_sources(record['offsets'])}") for record in told if record.get("offsets")),
        *(line(f"{record['position']}: {vote}") for record in told for vote in record.get("votes", ())),
    ]
    return Answer("log", data, shown=lines)


def _policy(kept: EpochLog) -> Answer:
    if not isinstance(kept, ObjectLog):
        raise Usage(f"--policy is for a log on an object store, not for {kept.describe()}")
    text = kept.policy()
    return Answer("log", {"log": kept.describe(), "policy": json.loads(text)}, shown=[line(text)])


def _sources(offsets: str) -> str:
    """Return the lines of Spark's text that are about sources: all after the version and the line about the epoch."""
    return "; ".join(offsets.splitlines()[2:])


def _table(told: Sequence[Json]) -> RenderableType:
    made = table("position", "kind", "epoch", "by", "what")
    for record in told:
        made.add_row(*(shown(record[name]) for name in ("position", "kind", "epoch", "by", "summary")))
    return made


def _told(entry: Entry, offsets: bool, committables: bool) -> Json:
    record: Any = entry.record
    data: Json = {
        "position": entry.position,
        "kind": record.kind,
        "epoch": getattr(record, "epoch", None),
        "by": render.actor(getattr(record, "actor", None)),
        "summary": _SUMMARY[record.kind](record),
    }
    if offsets:
        data["offsets"] = getattr(record, "offsets", None)
    if committables:
        data |= {"record": record.to_json(), "votes": _votes(record)}
    return data


def _fence(record: Fence) -> str:
    q = record.query
    return (
        f"app {q.app}, query {q.query_id}, run {q.run_id}, first epoch {record.base}, {record.mode}, at {q.checkpoint}"
    )


def _commit(record: Commit) -> str:
    frames = {name: f" of frame {p.frame}" if p.frame else "" for name, p in record.participants.items()}
    sinks = ", ".join(
        f"{name} position {p.committable.position} ({p.committable.rows} rows{frames[name]})"
        for name, p in sorted(record.participants.items())
    )
    redo = f"redo {record.decision.redo}; " if record.decision.redo else ""
    return f"decided: {redo}{sinks}"


def _apply(record: Apply) -> str:
    return "begun: " + ", ".join(f"{name} position {p.position}" for name, p in sorted(record.participants.items()))


def _operator(record: Operator) -> str:
    given = " ".join(f"{name}={value}" for name, value in record.said.items() if name != "act")
    return f"{' '.join([str(record.said['act']), given]).strip()}, at {record.at}: {record.why}"


_SUMMARY: Mapping[str, Callable[[Any], str]] = {
    Fence.kind: _fence,
    Commit.kind: _commit,
    Apply.kind: _apply,
    Operator.kind: _operator,
}


def _votes(record: Any) -> list[str]:
    if not isinstance(record, Commit):
        return []
    return [f"{name}: {p.identity} {p.committable.to_json()}" for name, p in sorted(record.participants.items())]
