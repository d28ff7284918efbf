"""``epochal clean``: removes what dead starts left in the sinks and among the durable copies.

Only work of generations strictly below the newest fence of the log is removed.  It cannot be decided any more, because
the log accepts a decision only directly after the records of its own start.  Nothing is removed from a sink in which an
epoch is in doubt, and nothing at all while a start would be refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from epochal.coordinator.console import render
from epochal.coordinator.console.load import load
from epochal.coordinator.console.options import CheckpointArgument, JsonOption, PipelineOption, YesOption
from epochal.coordinator.console.render import FINE, UNKNOWN, Answer, answering, line, table
from epochal.coordinator.console.standing import Standing, doubt, resolve, spark, take
from epochal.coordinator.model.epoch import Actor, Json, Query
from epochal.sinks.inspection import Inspection, Leftover, inspection_of, strictly_below
from epochal.sinks.protocol import Sink
from epochal.sinks.spark.stage import SparkStage


@answering
def clean(
    checkpoint: CheckpointArgument,
    pipeline: PipelineOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Show what dead starts left in the sinks and among the durable copies; --yes removes it.

    A start cleans by itself, so this command is only for looking, or for a query that will not start for a while. It
    never removes what the newest start made, nor anything from a sink in which an epoch is in doubt.

    Example: epochal clean /data/checkpoint --pipeline job.py:pipeline --yes
    """
    where, found = resolve(checkpoint), load(pipeline)
    standing = take(found, where)
    if yes and standing.refusal is not None:
        raise standing.refusal
    fences = standing.history.fences
    newest = fences[-1].actor if fences else None
    query = Query(found.app, "", "", "")
    rows = [_sink(sink, query, standing, newest, yes) for sink in found.sinks]
    copies = _copies(where, standing, newest, yes)
    data = {"checkpoint": where, "app": found.app, "newest": render.actor(newest), "sinks": rows, "copies": copies}
    unknown = standing.unanswered or copies["why"]
    return Answer("clean", data, UNKNOWN if unknown else FINE, _shown(data))


def _sink(sink: Sink, query: Query, standing: Standing, newest: Actor | None, yes: bool) -> Json:
    row: Json = {"name": sink.name, "leftovers": [], "done": [], "notes": []}
    if sink.name in standing.unanswered:
        return {**row, "notes": [f"did not answer: {standing.unanswered[sink.name]}"]}
    inspection = inspection_of(sink, query)
    if inspection is None:
        return {**row, "notes": ["the sink cannot be asked for leftovers"]}
    epoch = standing.in_doubt.get(sink.name)
    found = inspection.leftovers()
    row["leftovers"] = [_leftover(left, newest, epoch is not None) for left in found]
    row["notes"] = list(inspection.cautions)
    if epoch is not None:
        row["notes"].append(
            f"epoch {epoch.number} is {doubt(epoch)} and not shown: nothing is removed; start the query"
        )
    elif yes and newest is not None and any(left["removable"] for left in row["leftovers"]):
        row["done"] = _removed(inspection, newest)
    return row


def _removed(inspection: Inspection, newest: Actor) -> list[str]:
    try:
        return list(inspection.remove(newest))
    finally:
        inspection.close()


def _leftover(left: Leftover, newest: Actor | None, in_doubt: bool) -> Json:
    dead = left.owner is not None and newest is not None and left.owner.generation < newest.generation
    return {
        "what": left.what,
        "position": left.position,
        "owner": render.actor(left.owner),
        "rows": left.rows,
        "removable": dead and not in_doubt,
    }


def _copies(where: str, standing: Standing, newest: Actor | None, yes: bool) -> Json:
    """Return the durable copies below the checkpoint that no epoch needs; ``yes`` removes them."""
    if standing.unread is not None:
        return {"removable": [], "done": [], "why": f"the copies were not looked at: {standing.unread}"}
    if newest is None:
        return {"removable": [], "done": [], "why": None}
    stage, by = SparkStage(where, spark), strictly_below(newest)
    keep = standing.history.needed_copies()
    found = stage.removable(by, keep)
    if yes and found:
        stage.clean(by, keep)
    done = [f"removed {len(found)} copies"] if yes and found else []
    return {"removable": found, "done": done, "why": None}


def _shown(data: Json) -> Sequence[RenderableType]:
    made = table("where", "what", "position", "owner", "rows", "removable")
    for sink in data["sinks"]:
        for left in sink["leftovers"]:
            cells = (left["what"], left["position"], left["owner"], left["rows"], "yes" if left["removable"] else "no")
            made.add_row(sink["name"], *map(render.shown, cells))
    for copy in data["copies"]["removable"]:
        made.add_row("copies", copy, "-", "-", "-", "yes")
    lines = [(s["name"], text) for s in data["sinks"] for text in (*s["done"], *s["notes"])]
    lines += [("copies", text) for text in data["copies"]["done"]]
    lines += [("copies", data["copies"]["why"])] if data["copies"]["why"] else []
    body: list[RenderableType] = [made] if made.row_count else [line("nothing is left over", "bold")]
    return [*body, *(line(f"{name}: {text}") for name, text in lines)]
