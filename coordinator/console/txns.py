"""``epochal txns``: the open Kafka transactions of our transactional ids, as far as a client can see them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType

from epochal.coordinator.console import render
from epochal.coordinator.console.load import load
from epochal.coordinator.console.options import CheckpointArgument, JsonOption, PipelineOption
from epochal.coordinator.console.render import FINE, WRONG, Answer, Usage, answering, line, table
from epochal.coordinator.console.standing import Standing, doubt, resolve, take
from epochal.coordinator.model.epoch import Json, Query
from epochal.coordinator.model.errors import CommitInDoubt
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.inspection import Transactional, transactional_of

UNSEEN = (
    "this client cannot list or describe transactions (confluent-kafka 2.16 has no such call): state, producer and the"
    " partitions of one transaction are not seen; a transaction that has not written a row yet is not seen either"
)
FINISH = (
    "a decided epoch is finished by starting the query: its rows are produced by Spark, from the durable copy; no"
    " command without Spark can do it"
)


@answering
def txns(
    checkpoint: CheckpointArgument,
    pipeline: PipelineOption = "",
    abort: Annotated[
        str, typer.Option(metavar="SINK", help="Abort what is open under this sink's ids, if the log allows it.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do --abort. Without --yes, only show what it would do.")] = False,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Show the partitions in which a Kafka transaction is open: whose it is, and since when.

    --abort SINK aborts it if no epoch is in doubt in that sink. There is no --finish: to finish a decided epoch, start
    the query.

    Example: epochal txns /data/checkpoint --pipeline job.py:pipeline --abort kafka-flights --yes
    """
    where, found = resolve(checkpoint), load(pipeline)
    asked = _kafka_sinks(found)
    if abort and abort not in asked:
        raise Usage(
            f"--abort {abort!r} is no Kafka sink of the pipeline; it has {', '.join(map(repr, asked)) or 'none'}"
        )
    standing = take(found, where)
    done = _aborted(abort, asked[abort], standing, yes) if abort else []
    sinks = [_sink(name, sink, standing) for name, sink in asked.items()]
    notes = [UNSEEN] if sinks else ["the pipeline has no Kafka sink"]
    if any(sink["in_doubt"] for sink in sinks):
        notes.append(FINISH)
    data = {"checkpoint": where, "app": found.app, "sinks": sinks, "done": done, "notes": notes}
    is_open = any(sink["open"] for sink in sinks)
    return Answer("txns", data, WRONG if is_open else FINE, _shown(data))


def _kafka_sinks(pipeline: Pipeline) -> dict[str, Transactional]:
    query = Query(pipeline.app, "", "", "")
    asked = {sink.name: transactional_of(sink, query) for sink in pipeline.sinks}
    return {name: found for name, found in asked.items() if found is not None}


def _sink(name: str, asked: Transactional, standing: Standing) -> Json:
    if name in standing.unanswered:
        raise standing.unanswered[name]
    epoch = standing.in_doubt.get(name)
    now = time.time()
    return {
        "name": name,
        "transactional_ids": list(asked.ids),
        "in_doubt": doubt(epoch) if epoch is not None else None,
        "open": [
            {
                "topic": found.topic,
                "partition": found.partition,
                "transactional_id": found.transactional_id or None,
                "last_stable_offset": found.stable,
                "high_watermark": found.high,
                "age_seconds": max(0.0, now - found.began) if found.began is not None else None,
            }
            for found in asked.transactions()
        ],
    }


def _aborted(name: str, asked: Transactional, standing: Standing, yes: bool) -> list[str]:
    """Abort what is open under the sink's ids; without ``yes``, only say what would be done.

    This is refused while an epoch is in doubt in this sink, or while a start would be refused.
    """
    if name in standing.unanswered:
        raise standing.unanswered[name]
    if standing.refusal is not None:
        raise standing.refusal
    epoch = standing.in_doubt.get(name)
    if epoch is not None:
        raise CommitInDoubt(
            f"{doubt(epoch)}, and not shown yet: nothing is aborted", sink=name, epoch=epoch.number, help=FINISH
        )
    if not yes:
        ids = ", ".join(asked.ids)
        return [f"--yes would init {ids}: this aborts open transactions, and a live producer has to start anew"]
    return [f"aborted what was open under {', '.join(asked.abort())}"]


def _shown(data: Json) -> Sequence[RenderableType]:
    made = table("sink", "topic", "partition", "transactional id", "age", "from offset", "up to")
    rows = [(sink["name"], found) for sink in data["sinks"] for found in sink["open"]]
    for name, found in rows:
        age = f"{found['age_seconds']:.0f} s" if found["age_seconds"] is not None else None
        cells = (found["topic"], found["partition"], found["transactional_id"] or "not seen", age)
        made.add_row(
            name, *map(render.shown, (*cells, found["last_stable_offset"], found["high_watermark"])), style="red"
        )
    head = [line(f"{s['name']}: {', '.join(s['transactional_ids'])}") for s in data["sinks"]]
    body: list[RenderableType] = [made] if rows else [line("no transaction is open", "bold")] if data["sinks"] else []
    return [*head, *(line(text) for text in data["done"]), *body, *(line(note, "yellow") for note in data["notes"])]
