"""What a query costs as it gets older, from epoch 10 to 100,000: an epoch, a start, the bytes kept, and the view.

There is one table per sink.  A sink has one query for each age, which is a number of epochs.  The younger queries have
real epochs; the oldest gets a history that the same functions wrote (``history.py``).  Then all queries take turns,
with a stream of some real epochs each.  The values of a turn are the median of its last epochs, and the first call,
which includes the start.  The query at epoch 10 is new in every round.

The peer of the Delta sink is Spark's own append to a table with the same number of files and versions.  What grows
there grows with the table, whoever writes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from benchmarks import history, names
from benchmarks.grown import Grown, Stream, folder_bytes
from benchmarks.history import Rows
from benchmarks.measuring import Measure, Ratio, say
from benchmarks.peers import delta
from benchmarks.results import Result
from benchmarks.world import World
from epochal.chaos.servers.kafka import KafkaServer
from epochal.sinks import KafkaSink
from epochal.sinks.kafka import marker

if TYPE_CHECKING:
    from benchmarks.tables import Options

FIRST = 10
LOOKS = 9
"""How often the view and the table are read, in turn."""
SUMS = "SELECT count(*), sum(x), max(id) FROM {}"
PEER = names.DELTA_APPEND
ROWS = Rows(50)
SPARK = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""With this setting Spark starts fewer processes to write its own files, and an epoch takes a sixth less time.  These
files are written before and after the call of the pipeline, and only the call is timed."""
WRITTEN = 100_000


@dataclass(frozen=True)
class Sizes:
    """The ages of the queries in epochs.  ``real``: with real epochs; ``written``: with a history made without Spark.

    A turn has ``warm + counted`` epochs, and there are at most ``most_rounds`` rounds.
    """

    real: Sequence[int]
    written: int = WRITTEN
    warm: int = 5
    counted: int = 20
    rows: Rows = ROWS
    peers: tuple[str, ...] = ()
    most_rounds: int = 1_000


FULL: Mapping[str, Sizes] = {
    "postgres": Sizes((1_000, 10_000)),
    "kafka": Sizes((1_000, 3_000)),  # a real epoch takes half a second
    "delta": Sizes((1_000, 2_000), peers=(PEER,)),
}


def _quick(*real: int) -> Sizes:
    return Sizes(real, 300, warm=1, counted=4, most_rounds=1)


QUICK: Mapping[str, Sizes] = {"postgres": _quick(30), "kafka": _quick(), "delta": _quick()}


def run(kind: str, options: Options, sizes: Sizes | None = None) -> Result:
    """Measure the table of one kind of sink."""
    sizes = sizes or (QUICK if options.quick else FULL)[kind]
    result = Result(f"growth-{kind}", min(options.rounds, sizes.most_rounds), options.quick)
    with World(SPARK) as world, ExitStack() as stack:
        world.spark.sparkContext.setLogLevel("OFF")  # every stream ends with our own error
        old = _prepared(world, kind, sizes, stack)
        turns = _turns(world, sizes, old, result.rounds)
        for (job, epochs), streams in turns.items():
            result.add(_measures(job, epochs, streams, sizes))
        result.add([], *_ratios(turns, sizes))
        for (job, epochs), grown in old.items():
            if job in names.KINDS:
                grown.check(linked=epochs if job == "delta" and epochs == sizes.written else 0)
                result.add(_bytes(world, grown, epochs))
            if job == "postgres":
                measures, ratio = _view(grown, epochs)
                result.add(measures, ratio)
        result.facts["parts of an epoch and of a start, s"] = {
            f"{job} at {epochs}": streams[-1].medians(sizes.counted) for (job, epochs), streams in turns.items()
        }
    return result


Key = tuple[str, int]
"""(kind of sink or the peer, number of epochs)."""


# --- queries of that age ----------------------------------------------------------------------------


def _prepared(world: World, kind: str, sizes: Sizes, stack: ExitStack) -> dict[Key, Grown]:
    """Make all queries but those at epoch 10.  Real ones run in parallel, because nothing is timed yet."""
    jobs = (kind, *sizes.peers)
    real = {(job, epochs): _new(world, sizes, job, stack) for job in jobs for epochs in sizes.real}
    written = {(job, sizes.written): _new(world, sizes, job, stack) for job in jobs}
    for (_, epochs), grown in {**real, **written}.items():
        grown.begin(epochs if grown in real.values() else FIRST)
    for grown in written.values():
        grown.end()
    for (job, upto), grown in written.items():
        began = time.monotonic()
        if job == PEER:
            history.write_peer(world.spark, grown.folder, upto)
        else:
            history.write(grown.checkpoint, grown.name, grown.pipeline.sinks[0], grown.schema, sizes.rows, upto)
        say(f"  {job}: a history of {upto:,} epochs, {time.monotonic() - began:.0f} s")
    for (job, epochs), grown in real.items():
        grown.end()
        say(f"  {job}: {epochs:,} real epochs")
    return real | written


def _new(world: World, sizes: Sizes, kind: str, stack: ExitStack) -> Grown:
    grown = Grown(world, kind, sizes.rows, delta.spark if kind == PEER else None)
    stack.callback(grown.close)
    return grown


@contextmanager
def _young(world: World, sizes: Sizes, kind: str) -> Iterator[Grown]:
    """Make a query at epoch 10 for one turn."""
    with ExitStack() as stack:
        grown = _new(world, sizes, kind, stack)
        grown.run(FIRST)
        yield grown


# --- turns ------------------------------------------------------------------------------------------


def _turns(world: World, sizes: Sizes, old: Mapping[Key, Grown], rounds: int) -> dict[Key, list[Stream]]:
    """Run the rounds; return the streams of each query.  One more round before is a warm-up and is not kept."""
    kinds = dict.fromkeys(kind for kind, _ in old)
    taken: dict[Key, list[Stream]] = {}
    for turn in range(-1, rounds):
        for kind in kinds:
            with _young(world, sizes, kind) as young:
                ages = {FIRST: young, **{epochs: grown for (of, epochs), grown in old.items() if of == kind}}
                for epochs, grown in ages.items():
                    stream = grown.run(sizes.warm + sizes.counted)
                    which = f"round {turn + 1}/{rounds}" if turn >= 0 else "warm-up"
                    said = f"epoch {stream.epoch(sizes.counted):.4f} s, first call {stream.calls[0]:.3f} s"
                    say(f"  {which}  {kind:14} at {epochs:>7,}  {said}")
                    if turn >= 0:
                        taken.setdefault((kind, epochs), []).append(stream)
    return taken


def _told(kind: str) -> Mapping[str, Callable[[Stream, int], float]]:
    """Name of a figure -> the function that takes it from a stream."""
    epochs = {kind: Stream.epoch, f"{kind}: mean": Stream.mean, f"{kind}: first call": Stream.first}
    return {**epochs, f"{kind}: look to settle": Stream.start} if kind in names.KINDS else epochs


def _measures(kind: str, epochs: int, streams: Sequence[Stream], sizes: Sizes) -> list[Measure]:
    case = {"epochs before": epochs}
    return [
        Measure(name, case, "s", [of(stream, sizes.counted) for stream in streams]) for name, of in _told(kind).items()
    ]


def _ratios(turns: Mapping[Key, Sequence[Stream]], sizes: Sizes) -> list[Ratio]:
    """The ratio of each age to epoch 10, round by round.  Only the oldest query has a goal."""
    found: list[Ratio] = []
    for (kind, epochs), streams in turns.items():
        if epochs == FIRST:
            continue
        case = {"epochs before": epochs}
        for name, of in _told(kind).items():
            pairs = zip(streams, turns[kind, FIRST], strict=True)
            values = [of(old, sizes.counted) / of(young, sizes.counted) for old, young in pairs]
            goal = "growth" if name in names.KINDS and epochs == WRITTEN else None
            found.append(Ratio(name, f"the same at {FIRST}", case, "s", values, goal))
    return found


# --- what is kept -----------------------------------------------------------------------------------


def _bytes(world: World, grown: Grown, epochs: int) -> list[Measure]:
    kept: dict[str, float] = {"log": grown.log_bytes()}
    if grown.kind == "postgres":
        kept["markers"] = _sizes(grown.dsn)
    elif grown.kind == "kafka":
        kept |= _marker_topic(world, grown)
    else:
        kept["_delta_log, which is Delta's own"] = folder_bytes(grown.folder / "_delta_log")
    case = {"epochs before": epochs}
    return [Measure(f"{grown.kind}: {what}", case, "bytes", [value]) for what, value in kept.items()]


def _sizes(dsn: str) -> int:
    """Bytes of everything in the schema ``epochal``, with its indexes."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            b"SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class"
            b" WHERE relnamespace = 'epochal'::regnamespace AND relkind IN ('r', 'S')"
        ).fetchone()
    assert found is not None, "an aggregate has one row"
    return int(found[0])


def _marker_topic(world: World, grown: Grown) -> dict[str, float]:
    sink = grown.pipeline.sinks[0]
    assert isinstance(sink, KafkaSink), "asked of a Kafka sink"
    place = marker.MarkerTopic(grown.name, sink.name)
    server = world.kafka
    if not isinstance(server, KafkaServer):  # the files of other servers cannot be read
        return {}
    segments = server.directory / "data" / f"{place.topic}-0"
    return {"marker topic": folder_bytes(segments, "*.log")}  # without index files, nearly empty files of 20 MB


# --- the view ---------------------------------------------------------------------------------------


def _view(grown: Grown, epochs: int) -> tuple[list[Measure], Ratio]:
    """Measure count, sum and maximum through the reader view and over the rows table, in turn, after a vacuum."""
    taken: dict[str, list[float]] = {grown.name: [], f"{grown.name}__rows": []}
    with psycopg.connect(grown.dsn, autocommit=True) as connection:
        connection.execute(f"VACUUM ANALYZE {grown.name}__rows".encode())
        for turn in range(-1, LOOKS):
            for name, seconds in taken.items():
                began = time.perf_counter()
                connection.execute(SUMS.format(name).encode()).fetchone()
                if turn >= 0:
                    seconds.append(time.perf_counter() - began)
        _check_rows(connection, grown)
    case = {"epochs before": epochs}
    view, rows = taken.values()
    measures = [Measure("postgres: view", case, "s", view), Measure("postgres: rows table", case, "s", rows)]
    values = [mine / theirs for mine, theirs in zip(view, rows, strict=True)]
    return measures, Ratio("postgres: view", "rows table", case, "s", values)


def _check_rows(connection: psycopg.Connection[tuple[object, ...]], grown: Grown) -> None:
    """Check that the table has every id of the source exactly once."""
    counted = connection.execute(f"SELECT count(*), count(DISTINCT id), max(id) FROM {grown.name}".encode()).fetchone()
    shown = connection.execute(b"SELECT published FROM epochal.sinks").fetchone()
    assert shown is not None, "create made the row"
    expected = int(str(shown[0])) * grown.rows.count
    assert counted == (expected, expected, expected - 1), f"{grown.name}: {counted}, and {expected} rows were written"
