"""``epochal status``: the state of each sink, compared with the log and Spark's own files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType

from epochal.coordinator.console import audit, render
from epochal.coordinator.console.load import find
from epochal.coordinator.console.options import CheckpointArgument, JsonOption, PipelineOption
from epochal.coordinator.console.render import FINE, UNKNOWN, WRONG, Answer, answering, line, shown, table, told
from epochal.coordinator.console.standing import Standing, doubt, lacks_metadata, log_of, resolve, spark_progress, take
from epochal.coordinator.model.epoch import Json
from epochal.coordinator.protocol.history import History
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.inspection import newest
from epochal.sinks.protocol import Sink

NOT_ASKED = "the sinks were not asked: give --pipeline, or set EPOCHAL_PIPELINE"


@answering
def status(
    checkpoint: CheckpointArgument,
    pipeline: PipelineOption = "",
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks of --watch.")] = 2.0,
    as_json: JsonOption = False,
) -> Answer:
    """Show for each sink: position, epoch, lag, what is in doubt, its owner, and the error that a start would raise.

    An epoch in doubt alone is not an error (exit code 0), because an epoch that is being committed looks the same. If
    no query runs, the next start finishes it.

    Example: epochal status /data/checkpoint --pipeline job.py:pipeline --watch
    """
    where, sinks = resolve(checkpoint), find(pipeline)
    if not watch:
        return look(sinks, where)
    for answer in _again_and_again(sinks, where, every):
        if as_json:
            answer.print(as_json=True)
        else:
            screen = render.screen()
            screen.clear()
            answer.print(as_json=False)
    raise typer.Exit(FINE)


def _again_and_again(pipeline: Pipeline | None, where: str, every: float) -> Iterator[Answer]:
    """Yield one answer for each look.  A look that fails gives an answer, too, because a server may come back."""
    try:
        while True:
            try:
                yield look(pipeline, where)
            except Exception as error:
                failure = render.failed("status", error)
                yield Answer("status", failure.data, failure.exit, [line(f"cannot tell now: {error}", "yellow")])
            time.sleep(every)
    except KeyboardInterrupt:
        return


def look(pipeline: Pipeline | None, where: str) -> Answer:
    """Look once and return the answer; without a pipeline it comes from the log alone."""
    if pipeline is None:
        return _of_log(where)
    standing = take(pipeline, where)
    rows = [_row(standing, sink) for sink in pipeline.sinks]
    error = told(standing.refusal) if standing.refusal is not None else None
    data = {
        "checkpoint": where,
        "app": pipeline.app,
        "log": _log(standing.log, standing.history),
        "spark": {"planned": standing.planned, "committed": standing.committed},
        "asked": True,
        "sinks": rows,
        "error": error,
        "notes": _notes(standing),
    }
    code = WRONG if error is not None else UNKNOWN if standing.unanswered else FINE
    return Answer("status", data, code, _shown(data))


def _of_log(where: str) -> Answer:
    log = log_of(None, where)
    history = History.of(log.read())
    last = history.last
    names = sorted({*history.done_through, *(last.current.participants if last is not None else ())})
    data = {
        "checkpoint": where,
        "app": history.fences[-1].query.app if history.fences else None,
        "log": _log(log.describe(), history),
        "spark": _spark_files(where),
        "asked": False,
        "sinks": [_of_the_log(history, name) for name in names],
        "error": None,
        "notes": [NOT_ASKED, *_of_metadata(where, history)],
    }
    return Answer("status", data, FINE, _shown(data))


def _of_metadata(where: str, history: History) -> list[str]:
    """Return the note on Spark's file ``metadata``, if it is missing although a query has run."""
    if history.empty or not lacks_metadata(where):
        return []
    return ["Spark's file metadata is missing, so a start would refuse this checkpoint: --pipeline says what to do"]


def _spark_files(where: str) -> Json:
    planned, committed = spark_progress(where)
    return {"planned": planned, "committed": committed}


def _log(where: str, history: History) -> Json:
    last, fence = history.last, history.fences[-1] if history.fences else None
    return {
        "where": where,
        "records": len(history.entries),
        "starts": len(history.fences),
        "last_epoch": last.number if last is not None else None,
        "last_is": doubt(last) if last is not None else None,
        "owner": render.actor(fence.actor) if fence is not None else None,
        "mode": fence.mode if fence is not None else None,
    }


_NOTHING: Json = dict.fromkeys(
    (
        "identity",
        "position",
        "epoch",
        "committed_at",
        "lag_epochs",
        "lag_seconds",
        "in_doubt",
        "owner",
        "owner_is_newest",
    )
)


def _of_the_log(history: History, name: str) -> Json:
    """Return what the log alone knows of a sink: the newest epoch that a record calls visible."""
    return {"name": name, **_NOTHING, "visible_by_log": history.done_through.get(name), "error": None}


def _row(standing: Standing, sink: Sink) -> Json:
    name, history = sink.name, standing.history
    row = _of_the_log(history, name)
    if name in standing.unanswered:
        return {**row, "error": told(standing.unanswered[name])}
    state = standing.states[name]
    end = newest(sink, standing.ask.query.app)
    epoch = standing.epoch_of(name)
    if epoch is None and end is not None and state.marker is not None and end.position == state.marker.position:
        epoch = end.epoch
    refusal = standing.refusal
    last = history.last
    in_doubt = standing.in_doubt.get(name)
    return {
        **row,
        "identity": state.identity,
        "position": state.marker.position if state.marker is not None else 0,
        "epoch": epoch,
        "committed_at": render.moment(end.committed_at) if end is not None else None,
        "lag_epochs": last.number - epoch if last is not None and epoch is not None else None,
        "lag_seconds": audit.age(end) if end is not None else None,
        "in_doubt": doubt(in_doubt) if in_doubt is not None else None,
        "owner": render.actor(state.fence),
        "owner_is_newest": bool(history.fences) and state.fence == history.fences[-1].actor,
        "error": told(refusal) if refusal is not None and refusal.sink == name else None,
    }


def _notes(standing: Standing) -> list[str]:
    notes = []
    if standing.unanswered:
        notes.append(f"{', '.join(standing.unanswered)} did not answer: only some of a start's rules were applied")
    if standing.unread is not None:
        notes.append(f"Spark's own files were not read: {standing.unread}")
    for name, epoch in standing.in_doubt.items():
        notes.append(f"{name}: epoch {epoch.number} is {doubt(epoch)} and not shown; a start finishes it first")
    return notes


def _shown(data: Json) -> list[RenderableType]:
    log, spark = data["log"], data["spark"]
    head = [
        f"app {shown(data['app'])}, checkpoint {data['checkpoint']}",
        f"log {log['where']}: {_last(log)}, {log['records']} records, {log['starts']} starts,"
        f" owner {shown(log['owner'])}",
        f"Spark: planned epoch {shown(spark['planned'])}, committed epoch {shown(spark['committed'])}",
    ]
    made = table("sink", "position", "epoch", "behind", "last commit", "in doubt", "owner", "error")
    for row in data["sinks"]:
        made.add_row(*_cells(row), style=_style(row))
    found: list[RenderableType] = [*map(line, head), made]
    if data["error"] is not None:
        found.append(line(f"a start would refuse: {_sentence(data['error'])}", "bold red"))
    return [*found, *(line(note, "yellow") for note in data["notes"])]


def _last(log: Json) -> str:
    return f"last epoch {log['last_epoch']} {log['last_is']}" if log["last_epoch"] is not None else "no epoch yet"


def _cells(row: Json) -> list[str]:
    by_log = row["visible_by_log"]
    epoch = row["epoch"] if row["epoch"] is not None or by_log is None else f"at least {by_log}"
    lag = f"{row['lag_epochs']} epochs" if row["lag_epochs"] is not None else None
    ago = f"{row['lag_seconds']:.0f} s ago" if row["lag_seconds"] is not None else None
    is_old = row["owner"] is not None and row["owner_is_newest"] is False
    owner = f"{row['owner']} (not the newest)" if is_old else row["owner"]
    error = row["error"]["kind"] if row["error"] is not None else None
    return [row["name"], *map(shown, (row["position"], epoch, lag, ago, row["in_doubt"], owner, error))]


def _style(row: Json) -> str:
    return "red" if row["error"] is not None else "yellow" if row["in_doubt"] is not None else ""


def _sentence(error: Json) -> str:
    where = f"sink {error['sink']}: " if error["sink"] else ""
    return f"{error['kind']}: {where}{error['what']}\n  State: {shown(error['state'])}\n  Help: {error['help']}"
