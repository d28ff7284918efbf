"""The driver program of the storm: one query from files into a topic, by a Kafka sink that votes.

    python -m tests.storm.driver

It takes one start after another (``epochal.chaos.strike.standby``).  A start waits for more input until it is killed or
ends by an error.  What the pipeline tells goes, one JSON object a line, into the file ``settings["events"]``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import epochal
from epochal.chaos.job import jvm
from epochal.chaos.servers.spark import spark_session
from epochal.chaos.strike import standby
from epochal.chaos.strike.nemesis import end_with_parent
from epochal.coordinator.model import events
from epochal.coordinator.model.epoch import Committable
from epochal.sinks import KafkaSink

SCHEMA = "id string, pad string"
_log = logging.getLogger("epochal.sinks.kafka")
KEPT = {"spark.sql.streaming.minBatchesToRetain": "1000000"}
"""Spark's own record of every epoch's files is kept for the comparison at the end."""
Tell = Callable[..., None]


class TellingSink(KafkaSink):
    """Tells what it is asked for, and what came of it."""

    tell: Tell

    def finish(self, committable: Committable) -> None:
        super().finish(committable)
        self.tell("finished", epoch=committable.decision.epoch)


class Redos(logging.Handler):
    """Tells each epoch that the sink writes again after the decision."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        if "is written again from its durable copy" in record.msg:
            assert isinstance(record.args, tuple)
            self._tell("redo", epoch=record.args[1])


def sink(settings: dict[str, Any], tell: Tell) -> KafkaSink:
    made = TellingSink(
        settings["bootstrap"],
        topic=settings["topic"],
        key="id",
        value="pad",
        name="kafka",
        partitions=settings["partitions"],
        transaction_timeout=settings["transaction_timeout"],
        votes=True,
        options=settings["options"],
    )
    made.tell = tell
    return made


def telling(path: Path) -> Tell:
    """Return a function that appends a line; a process that dies loses no line that it wrote."""
    file = path.open("a", buffering=1)

    def tell(what: str, **more: object) -> None:
        file.write(json.dumps({"at": round(time.time(), 3), "what": what, **more}) + "\n")

    return tell


def told(tell: Tell) -> events.Consumer:
    """Return a consumer of the pipeline's events that tells those which the storm counts."""

    def consume(event: events.Event) -> None:
        name = type(event).__name__
        if isinstance(event, events.EpochCommitted):
            tell(name, epoch=event.epoch, rows=event.rows, replayed=event.replayed)
        elif isinstance(event, events.StepEnded) and event.step is events.Step.REDO:
            tell("Redone", epoch=event.epoch, error=_text(event.error))
        elif isinstance(event, (events.Retrying, events.Failed, events.InDoubt)):
            tell(name, epoch=event.epoch, error=_text(event.error))
        elif isinstance(event, events.Started):
            tell(name, generation=event.generation)

    return consume


def _text(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"[:400]


def run(spark: Any, settings: Any, _: Path) -> int:
    tell = telling(Path(settings["events"]))
    _log.handlers = [Redos(tell)]
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", settings["files"]).json(settings["source"])
    pipeline = epochal.Pipeline(app=settings["topic"], sinks=[sink(settings, tell)], on_event=told(tell))
    if settings["create"]:
        pipeline.create(stream.schema)
    query = stream.writeStream.foreachBatch(pipeline).option("checkpointLocation", settings["checkpoint"]).start()
    try:
        query.awaitTermination()
    except Exception as error:
        tell("Ended", error=_text(pipeline.last_error or error))
        raise
    return 0


if __name__ == "__main__":
    end_with_parent()
    session = spark_session("local[2,4]", app="storm", conf={**jvm.short_lived(), **KEPT})
    standby.serve(session, partial(run, session))
