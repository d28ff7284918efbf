"""A driver in its own process, which can be killed, or whose memory can be measured.  It runs one stream.

    python -m benchmarks.driver settings.json

With sinks it writes into them with Epochal.  Without sinks it is the peer: in a plain ``foreachBatch``, Spark's
``noop`` writer reads the same stream to its end, or Delta's writer appends it to the table that ``append`` names.  The
driver writes what it did, as lines of JSON, to the file that its settings name.  Times are those of the wall clock, so
the process that started it can compare them.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers import delta
from benchmarks.peers.bare import evaluated
from benchmarks.rows import SCHEMA
from benchmarks.world import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import epochal

BATCHES = "rate-micro-batch"
"""A source for which Spark makes batches of ``rows`` rows itself, one batch per start."""


@dataclass(frozen=True)
class Settings:
    """The settings of a driver.

    ``sinks``: kind -> address.  ``source``: a folder whose files are one epoch each, or :data:`BATCHES`.
    """

    app: str
    source: str
    checkpoint: str
    notes: str
    sinks: Mapping[str, str] = field(default_factory=dict)
    append: str = ""
    create: bool = False
    waits: bool = False  # wait for more input at its end
    attempts: int = 9  # how often a request to a server is tried
    rows: int = 0
    columns: list[str] = field(default_factory=list)  # SQL over ``id``, if Spark makes the rows
    parts: int = 2
    memory: str = "2g"
    java: str = ""  # more options of the JVM

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        return path


@dataclass(frozen=True)
class Note:
    """One line of the driver's notes.

    ``what``: session, epoch, or ended.  ``seconds``: of the epoch, by phase.  ``error``: the name of the error.
    """

    what: str
    at: float
    epoch: int = -1
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


def read_notes(path: Path) -> list[Note]:
    """Return all notes so far, without a last line that a kill cut off."""
    if not path.exists():
        return []
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [Note(**json.loads(line)) for line in whole.splitlines()]


# --- in the process ---------------------------------------------------------------------------------


def main() -> None:
    from epochal.chaos.strike.nemesis import end_with_parent

    end_with_parent()
    settings = Settings(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    note = functools.partial(_note, Path(settings.notes))
    spark = session(settings.memory, **_java(settings))
    note("session")
    rows = _rows(spark, settings)
    pipeline = _pipeline(settings) if settings.sinks else None
    if pipeline is not None and settings.create:
        pipeline.create(rows.schema)
    try:
        _start(rows, settings, _function(settings, pipeline, note)).awaitTermination()
    except Exception as error:
        own = pipeline.last_error if pipeline is not None else None
        note("ended", error=type(own or error).__name__)
        print(error, flush=True)
        sys.exit(1)
    note("ended")
    spark.stop()


def _note(path: Path, what: str, **more: Any) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(Note(what, time.time(), **more))) + "\n")


def _java(settings: Settings) -> Mapping[str, str]:
    from epochal.chaos.servers.spark import CONF

    own = "spark.driver.extraJavaOptions"
    return {own: f"{CONF[own]} {settings.java}"} if settings.java else {}


def _rows(spark: SparkSession, settings: Settings) -> DataFrame:
    if settings.source == BATCHES:
        made = spark.readStream.format(BATCHES).option("rowsPerBatch", settings.rows)
        rows = made.option("numPartitions", settings.parts).option("startTimestamp", 0).load()
        return rows.withColumnRenamed("value", "id").selectExpr(*settings.columns)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(settings.source)


def _pipeline(settings: Settings) -> epochal.Pipeline:
    import epochal
    from benchmarks import ours

    sinks = [ours.sink_at(kind, settings.app, address, name=kind) for kind, address in settings.sinks.items()]
    return epochal.Pipeline(app=settings.app, sinks=sinks, retry=epochal.Retry(attempts=settings.attempts))


def _function(
    settings: Settings, pipeline: epochal.Pipeline | None, note: Callable[..., None]
) -> Callable[[DataFrame, int], None]:
    """The batch function, which writes a note after each epoch."""
    if pipeline is None:
        return functools.partial(_bare, delta.spark(settings.append) if settings.append else evaluated, note)

    def ours(df: DataFrame, epoch: int) -> None:
        pipeline(df, epoch)
        note("epoch", epoch=epoch, seconds=dict(pipeline.status().seconds))

    return ours


def _bare(write: Callable[[DataFrame, int], None], note: Callable[..., None], df: DataFrame, epoch: int) -> None:
    from epochal.coordinator.model.failpoints import Point, hit

    hit(Point.BEFORE_CALL, epoch=epoch)
    write(df, epoch)
    note("epoch", epoch=epoch)


def _start(rows: DataFrame, settings: Settings, function: Callable[[DataFrame, int], None]) -> Any:
    writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", settings.checkpoint)
    return (writer if settings.waits else writer.trigger(availableNow=True)).start()


if __name__ == "__main__":
    main()
