"""What a long life costs: an epoch, a start, the bytes kept and the view, from epoch 10 to 100,000; a table per sink.

A sink has a query for each number of epochs that it has come to.  The first ones by real epochs, the last with the
history before written by the same functions (``history.py``).  Then all take turns, a stream of some real epochs each;
what is told of a turn is the median of its last epochs, and the first call, which has the start in it.  The query at
epoch 10 is a new one in every round.

Beside the Delta sink stands Spark's own append to a table with as many files in as many versions: what grows there
grows with the table, whoever writes it.
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
"""How often view and table are read, in turn."""
SUMS = "SELECT count(*), sum(x), max(id) FROM {}"
PEER = names.DELTA_APPEND
ROWS = Rows(50)
SPARK = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""How Spark writes its own files: this way it starts fewer processes for it, and an epoch takes a sixth less.  They are
written before and after the call of the pipeline, which is what is timed."""
WRITTEN = 100_000


@dataclass(frozen=True)
class Sizes:
    """Numbers of epochs.  ``real``: by real ones; ``written``: with a history that no Spark has run.

    A turn is ``warm + counted`` epochs, and there are no more rounds than ``most_rounds``.
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
    "kafka": Sizes((1_000, 10_000)),
    "delta": Sizes((1_000, 2_000), peers=(PEER,)),
}


def _quick(*real: int) -> Sizes:
    return Sizes(real, 300, warm=1, counted=4, most_rounds=1)


QUICK: Mapping[str, Sizes] = {"postgres": _quick(30), "kafka": _quick(), "delta": _quick()}


def run(kind: str, options: Options, sizes: Sizes | None = None) -> Result:
    """The table of one kind of sink."""
    sizes = sizes or (QUICK if options.quick else FULL)[kind]
    result = Result(f"growth-{kind}", min(options.rounds, sizes.most_rounds), options.quick)
    with World(SPARK) as world, ExitStack() as stack:
        world.spark.sparkContext.setLogLevel("OFF")  # every stream ends by an error of ours
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
"""Kind of sink, or the peer, and the number of epochs."""


# --- queries of that age ----------------------------------------------------------------------------


def _prepared(world: World, kind: str, sizes: Sizes, stack: ExitStack) -> dict[Key, Grown]:
    """All but those at epoch 10; the real ones grow side by side, as nothing is timed yet."""
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
    """At epoch 10, for one turn."""
    with ExitStack() as stack:
        grown = _new(world, sizes, kind, stack)
        grown.run(FIRST)
        yield grown


# --- turns ------------------------------------------------------------------------------------------


def _turns(world: World, sizes: Sizes, old: Mapping[Key, Grown], rounds: int) -> dict[Key, list[Stream]]:
    """One round more before them warms up, and is not kept."""
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
    """What is told of a stream, by the name that it has."""
    epochs = {kind: Stream.epoch, f"{kind}: mean": Stream.mean, f"{kind}: first call": Stream.first}
    return {**epochs, f"{kind}: look to settle": Stream.start} if kind in names.KINDS else epochs


def _measures(kind: str, epochs: int, streams: Sequence[Stream], sizes: Sizes) -> list[Measure]:
    case = {"epochs before": epochs}
    return [
        Measure(name, case, "s", [of(stream, sizes.counted) for stream in streams]) for name, of in _told(kind).items()
    ]


def _ratios(turns: Mapping[Key, Sequence[Stream]], sizes: Sizes) -> list[Ratio]:
    """Each age over epoch 10, round by round; the goal is asked of the largest alone."""
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
    """Of all that is in the schema ``epochal``, with its indexes."""
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
    if not isinstance(server, KafkaServer):  # its files are not at hand
        return {}
    segments = server.directory / "data" / f"{place.topic}-0"
    return {"marker topic": folder_bytes(segments, "*.log")}  # its indexes are files of 20 MB with little in them


# --- the view ---------------------------------------------------------------------------------------


def _view(grown: Grown, epochs: int) -> tuple[list[Measure], Ratio]:
    """Count, sum and maximum through the reader view and over the rows table itself, in turn, after its vacuum."""
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
    """Every id of the source once, from the first to the last."""
    counted = connection.execute(f"SELECT count(*), count(DISTINCT id), max(id) FROM {grown.name}".encode()).fetchone()
    shown = connection.execute(b"SELECT published FROM epochal.sinks").fetchone()
    assert shown is not None, "create made the row"
    expected = int(str(shown[0])) * grown.rows.count
    assert counted == (expected, expected, expected - 1), f"{grown.name}: {counted}, and {expected} rows were written"
