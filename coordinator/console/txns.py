"""``epochal txns``: the Kafka transactions of our transactional ids: whose they are, and how they can be ended.

The coordinator of a transactional id describes its transaction, and the epoch log says whether its epoch is decided.
A decided epoch is never aborted.  An epoch that is not decided is never committed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.console import RenderableType

from epochal.coordinator.console import render
from epochal.coordinator.console.load import load
from epochal.coordinator.console.options import JsonOption, PipelineOption
from epochal.coordinator.console.render import FINE, WRONG, Answer, Usage, answering, line, table
from epochal.coordinator.console.standing import Standing, doubt, resolve, take
from epochal.coordinator.model.epoch import Committable, EpochNumber, Json, Query
from epochal.coordinator.model.errors import CommitInDoubt, Fenced
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.inspection import Described, Transactional, transactional_of
from epochal.sinks.protocol import Sink, VotingSink

UNSEEN = (
    "the sink has options that only librdkafka has, so the coordinators of its transactions are not asked: only the"
    " partitions in which some transaction is open are seen"
)
FINISH = (
    "a decided epoch is finished by starting the query, or by --finish SINK --yes if its prepared transaction is still"
    " open"
)


@answering
def txns(
    checkpoint: Annotated[
        str, typer.Argument(metavar="[CHECKPOINT]", help="The query's checkpointLocation.", show_default=False)
    ] = "",
    pipeline: PipelineOption = "",
    abort: Annotated[
        str, typer.Option(metavar="SINK", help="Abort what is open under this sink's ids, if no epoch is in doubt.")
    ] = "",
    finish: Annotated[
        str, typer.Option(metavar="SINK", help="Commit this sink's prepared transaction, if its epoch is decided.")
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Do --finish or --abort. Without --yes, only show what it would do.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            min=0.0, help="With --yes: for how many seconds log and transactions must not change: no query runs then."
        ),
    ] = 5.0,
    bootstrap: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Instead of CHECKPOINT: list the transactions at these brokers.")
    ] = "",
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="With --bootstrap: only transactional ids that begin with this.")
    ] = "epochal-",
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Show the Kafka transactions of the sinks: state, epoch, since when, where, what the log says, and what to do.

    Stop the query before --finish and --abort. --finish SINK commits the prepared transaction of a decided epoch, as a
    start of the query does, and reads the marker to prove it. --abort SINK begins a new producer epoch, which aborts
    what is open; it is refused while an epoch is in doubt in that sink.

    Example: epochal txns /data/checkpoint --pipeline job.py:pipeline --finish kafka-flights --yes
    """
    if bool(checkpoint) == bool(bootstrap):
        raise Usage("give either CHECKPOINT or --bootstrap")
    if finish and abort:
        raise Usage("give one of --finish and --abort")
    if bootstrap:
        if finish or abort:
            raise Usage("--finish and --abort need CHECKPOINT: only its log knows what is decided")
        return _at_brokers(bootstrap, prefix)
    return _of_checkpoint(resolve(checkpoint), load(pipeline), finish, abort, wait if yes else None)


def _at_brokers(bootstrap: str, prefix: str) -> Answer:
    from epochal.sinks.kafka import described

    found = [_told(each) for each in described.at(bootstrap, prefix, timeout=30.0)]
    notes = ["no log was read: give CHECKPOINT to see what is decided"]
    data = {"bootstrap": bootstrap, "prefix": prefix, "transactions": found, "notes": notes}
    is_open = any(each["is_open"] for each in found)
    shown = [_table([("-", each) for each in found]), *(line(note, "yellow") for note in notes)]
    return Answer("txns", data, WRONG if is_open else FINE, shown)


def _of_checkpoint(where: str, found: Pipeline, finish: str, abort: str, wait: float | None) -> Answer:
    """``wait``: do what is asked for, once nothing has changed for so many seconds.  None: only show it."""
    asked = _kafka_sinks(found)
    for option, name in (("--finish", finish), ("--abort", abort)):
        if name and name not in asked:
            known = ", ".join(map(repr, asked)) or "none"
            raise Usage(f"{option} {name!r} is no Kafka sink of the pipeline; it has {known}")
    standing = take(found, where)
    done: list[str] = []
    if (name := finish or abort) and wait is not None:
        standing = _quiet(found, standing, name, asked[name], wait)
    if finish:
        sink = next(sink for sink in found.sinks if sink.name == finish)
        done = _finished(sink, asked[finish], standing, wait is not None)
    if abort:
        done = _aborted(abort, asked[abort], standing, wait is not None)
    if done and wait is not None:
        standing = take(found, where)
    sinks = [_sink(name, its, standing) for name, its in asked.items()]
    notes = [] if sinks else ["the pipeline has no Kafka sink"]
    notes += [UNSEEN] if any(sink["transactions"] is None for sink in sinks) else []
    notes += [FINISH] if any(sink["in_doubt"] for sink in sinks) else []
    data = {"checkpoint": where, "app": found.app, "sinks": sinks, "done": done, "notes": notes}
    return Answer("txns", data, WRONG if any(map(_is_open, sinks)) else FINE, _shown(data))


def _is_open(sink: Json) -> bool:
    return bool(sink["open"]) or any(each["is_open"] for each in sink["transactions"] or ())


def _kafka_sinks(pipeline: Pipeline) -> dict[str, Transactional]:
    query = Query(pipeline.app, "", "", "")
    asked = {sink.name: transactional_of(sink, query) for sink in pipeline.sinks}
    return {name: found for name, found in asked.items() if found is not None}


# --- what is there ---------------------------------------------------------------------------------------


def _sink(name: str, asked: Transactional, standing: Standing) -> Json:
    if name in standing.unanswered:
        raise standing.unanswered[name]
    epoch = standing.in_doubt.get(name)
    now = time.time()
    described = asked.described()
    inside = functools.cache(asked.epoch_inside)  # all ids write into one marker topic
    judged = [_judged(name, each, asked, standing, inside) for each in described] if described is not None else None
    return {
        "name": name,
        "transactional_ids": list(asked.ids),
        "in_doubt": doubt(epoch) if epoch is not None else None,
        "transactions": judged,
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


def _told(found: Described) -> Json:
    began = found.began
    return {
        "transactional_id": found.transactional_id,
        "state": found.state or None,
        "is_open": found.is_open,
        "producer_id": found.producer[0],
        "producer_epoch": found.producer[1],
        "open_since": render.moment(datetime.fromtimestamp(began, timezone.utc)) if began is not None else None,
        "age_seconds": max(0.0, time.time() - began) if began is not None else None,
        "timeout_seconds": found.timeout,
        "partitions": list(found.partitions),
        "epoch": None,
        "by_log": None,
        "to_do": None,
    }


def _judged(
    name: str, found: Described, asked: Transactional, standing: Standing, inside: Callable[[], EpochNumber | None]
) -> Json:
    """Return the transaction with its epoch, what the log says of it, and what to do.

    ``inside``: returns the epoch whose marker lies in an open transaction.
    """
    told = _told(found)
    if not found.is_open:
        return told
    epoch = standing.in_doubt.get(name)
    if epoch is None:
        to_do = (
            "if the query runs, leave it alone: an epoch is being prepared; if it does not run, start it, or"
            f" --abort {name} --yes; the broker aborts it after {found.timeout:g} s"
        )
        return {**told, "epoch": inside(), "by_log": "not decided", "to_do": to_do}
    if _holds_decided(name, found, asked, standing):
        to_do = f"start the query, which commits it; or --finish {name} --yes"
        to_do = to_do if found.can_commit else "the broker aborts it: start the query, which writes the epoch again"
        return {**told, "epoch": epoch.number, "by_log": "decided", "to_do": to_do}
    to_do = f"start the query: it ends this transaction, and writes epoch {epoch.number} again"
    return {**told, "epoch": inside(), "by_log": "not this one", "to_do": to_do}


def _holds_decided(name: str, found: Described, asked: Transactional, standing: Standing) -> bool:
    """Whether this is the transaction that holds the epoch which is decided and not shown."""
    committable = _vote(name, standing)
    return committable is not None and asked.is_prepared(found, committable)


def _vote(name: str, standing: Standing) -> Committable | None:
    """Return the vote of this sink for the epoch that is decided and not shown; None if no such epoch is."""
    epoch = standing.in_doubt.get(name)
    if epoch is None or doubt(epoch) != "decided":
        return None
    committable: Committable = epoch.current.participants[name].committable  # type: ignore[union-attr]
    return committable


# --- what is done ----------------------------------------------------------------------------------------


def _check(name: str, standing: Standing) -> None:
    """Raise the error of a sink that did not answer, or that a start would end with."""
    if name in standing.unanswered:
        raise standing.unanswered[name]
    if standing.refusal is not None:
        raise standing.refusal


def _quiet(pipeline: Pipeline, before: Standing, name: str, asked: Transactional, wait: float) -> Standing:
    """Look again after ``wait`` seconds and return what was seen; ``Fenced`` if a query has done something meanwhile.

    Nothing depends on this but the convenience of whoever forgot to stop the query: the broker ends only the
    transaction of the producer epoch that it is told.
    """
    _check(name, before)
    was = asked.described()
    time.sleep(wait)
    now = take(pipeline, before.where)
    _check(name, now)
    changes = {
        "the epoch log has grown": now.history.entries[-1:] != before.history.entries[-1:],
        "a transaction has begun or ended": asked.described() != was,
        "the sink shows another epoch": now.states.get(name) != before.states.get(name),
    }
    if any(changes.values()):
        raise Fenced(
            "a query runs on this checkpoint: nothing is finished or aborted",
            sink=name,
            state=f"within {wait:g} s: {', '.join(what for what, is_so in changes.items() if is_so)}",
            help="stop the query, then repeat the command; a query that runs ends its transactions itself",
        )
    return now


def _finished(sink: Sink, asked: Transactional, standing: Standing, yes: bool) -> list[str]:
    """Commit the prepared transaction of the decided epoch; without ``yes``, only say so.

    This is what a start does before it fences the sink.
    """
    name = sink.name
    _check(name, standing)
    epoch = standing.in_doubt.get(name)
    if epoch is None:
        return ["no epoch is decided and not shown: nothing is finished"]
    committable = _vote(name, standing)
    described = asked.described()
    found = [each for each in described or () if each.can_commit and _holds_decided(name, each, asked, standing)]
    if committable is None or not found or not isinstance(sink, VotingSink):
        raise CommitInDoubt(
            f"{doubt(epoch)}, and no open transaction holds it: nothing is finished",
            sink=name,
            epoch=epoch.number,
            state="; ".join(map(str, described)) if described is not None else UNSEEN,
            help="start the query, which finishes the epoch: it has the rows in the durable copy, or evaluates them",
        )
    if not yes:
        return [f"--yes would commit epoch {epoch.number}, which is in {found[0]}"]
    sink.finish(committable)
    marker = sink.look(Query(standing.ask.query.app, "", "", standing.where)).marker
    if marker is None or not epoch.is_shown_by(name, marker):
        raise CommitInDoubt(
            "decided, and the marker does not show it although the commit was asked for",
            sink=name,
            epoch=epoch.number,
            state=f"marker {marker}",
            help="start the query: it writes the epoch again from the durable copy if it is not visible",
        )
    return [f"committed epoch {epoch.number}: the marker shows position {marker.position}"]


def _aborted(name: str, asked: Transactional, standing: Standing, yes: bool) -> list[str]:
    """Abort what is open under the sink's ids, by a new producer epoch; without ``yes``, only say so.

    This is refused while an epoch is in doubt in this sink, or while a start would be refused.
    """
    _check(name, standing)
    epoch = standing.in_doubt.get(name)
    if epoch is not None:
        raise CommitInDoubt(
            f"{doubt(epoch)}, and not shown yet: nothing is aborted", sink=name, epoch=epoch.number, help=FINISH
        )
    if not yes:
        ids = ", ".join(asked.ids)
        return [f"--yes would init {ids}: this aborts open transactions, and a live producer has to start anew"]
    return [f"aborted what was open under {', '.join(asked.abort())}"]


# --- for people ------------------------------------------------------------------------------------------


def _table(rows: Sequence[tuple[str, Mapping[str, object]]]) -> RenderableType:
    made = table("sink", "transactional id", "state", "producer", "epoch", "by the log", "open since", "partitions")
    for name, each in rows:
        producer = f"{each['producer_id']}, epoch {each['producer_epoch']}"
        cells = (each["transactional_id"], each["state"], producer, each["epoch"], each["by_log"], each["open_since"])
        partitions = each["partitions"]
        where = " ".join(map(str, partitions)) if isinstance(partitions, list) and partitions else None
        made.add_row(name, *map(render.shown, (*cells, where)), style="red" if each["is_open"] else None)
    return made


def _shown(data: Json) -> Sequence[RenderableType]:
    body: list[RenderableType] = []
    if rows := [(sink["name"], each) for sink in data["sinks"] for each in sink["transactions"] or ()]:
        body += [_table(rows), *(line(f"{name}: {each['to_do']}") for name, each in rows if each["to_do"])]
    if where := [(sink["name"], found) for sink in data["sinks"] for found in sink["open"]]:
        body.append(_partitions(where))
    if data["sinks"] and not any(map(_is_open, data["sinks"])):
        body.append(line("no transaction is open", "bold"))
    head = [line(f"{s['name']}: {', '.join(s['transactional_ids'])}") for s in data["sinks"]]
    return [*head, *(line(text) for text in data["done"]), *body, *(line(note, "yellow") for note in data["notes"])]


def _partitions(rows: Sequence[tuple[str, Json]]) -> RenderableType:
    """Return the partitions whose readers wait, also where a transaction of somebody else is open."""
    made = table("sink", "topic", "partition", "transactional id", "age", "from offset", "up to")
    for name, found in rows:
        age = f"{found['age_seconds']:.0f} s" if found["age_seconds"] is not None else None
        cells = (found["topic"], found["partition"], found["transactional_id"] or "not seen", age)
        made.add_row(
            name, *map(render.shown, (*cells, found["last_stable_offset"], found["high_watermark"])), style="red"
        )
    return made
