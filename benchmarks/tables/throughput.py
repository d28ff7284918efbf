"""Rows per second of one large epoch: each sink, all three together, and each peer.

The value is Spark's ``addBatch`` of the epoch, so for all jobs it includes reading the source.  A small epoch comes
before it in the same stream.  For our jobs, the time of each phase is also measured.  The server's own COPY is one
back-end that reads a prepared file, timed by the clock.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import names, ours
from benchmarks.measuring import Measure, Ratio, ratio, speeds, turns
from benchmarks.natives import native
from benchmarks.peers import delta, kafka, postgres
from benchmarks.results import Result
from benchmarks.rows import SMALL, source
from benchmarks.tables.small import Phases, of_phases
from benchmarks.world import World, new_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.tables import Options
    from benchmarks.world import Write

WARM_UP = 3
"""Rounds of warm-up.  After only one, later rounds still got faster, ours more than peers that share code."""
NARROW, WIDE = 100, 1_000  # bytes of a value
WIDE_KAFKA = f"{names.OURS} kafka, of wide rows"
"""A job only for the sum of three single sinks.  In comparisons with peers, Kafka gets rows of key and value."""

GOALS = {  # (job, peer): the goal for rows with NARROW values
    (names.of("postgres"), names.JDBC_REWRITTEN): "postgres-jdbc-rewritten",
    (names.of("postgres"), names.JDBC): "postgres-jdbc",
    (names.of("postgres"), names.PSYCOPG): None,
    (names.of("postgres"), names.SERVER_BINARY): "postgres-server-copy",
    (names.of("postgres"), names.SERVER_TEXT): None,
    (names.of("kafka"), names.CONFLUENT): "kafka-plain",
    (names.of("kafka"), names.SPARK_KAFKA): "kafka-spark",
    (names.of("kafka"), names.SPARK_KAFKA_TUNED): "kafka-spark-tuned",
    (names.of("delta"), names.DELTA_APPEND): "delta-plain",
    (names.of("delta"), names.DELTA_TXN): None,
    (names.of("delta"), names.DELTA_RS): None,
    (names.THREE, names.SPARK_THREE): None,
}


class Throughput:
    """The jobs over one source.  A job returns seconds."""

    def __init__(self, world: World, rows: int, value: int) -> None:
        self._world, self._rows, self._value = world, rows, value
        self._source = source(world.spark, world.folder, [SMALL, rows], value=value)
        self._records = source(world.spark, world.folder, [SMALL, rows], value=value, wide=False)
        self.phases: dict[str, list[Mapping[str, float]]] = defaultdict(list)

    def jobs(self) -> Mapping[str, Callable[[], float]]:
        world = self._world
        return {
            names.of("postgres"): lambda: self._ours(names.of("postgres"), "postgres"),
            names.JDBC_REWRITTEN: lambda: self._into_table(
                lambda table: postgres.jdbc(world.jdbc(reWriteBatchedInserts="true"), table)
            ),
            names.JDBC: lambda: self._into_table(lambda table: postgres.jdbc(world.jdbc(), table)),
            names.PSYCOPG: lambda: self._into_table(lambda table: postgres.copy(world.dsn, table)),
            names.SERVER_BINARY: lambda: self._server_copy("binary"),
            names.SERVER_TEXT: lambda: self._server_copy("text"),
            names.of("kafka"): lambda: self._ours(names.of("kafka"), "kafka", of=self._records),
            names.CONFLUENT: lambda: self._records_into(kafka.confluent),
            names.SPARK_KAFKA: lambda: self._records_into(kafka.spark),
            names.SPARK_KAFKA_TUNED: lambda: self._records_into(partial(kafka.spark, tuned=True)),
            WIDE_KAFKA: lambda: self._ours(WIDE_KAFKA, "kafka"),
            names.of("delta"): lambda: self._ours(names.of("delta"), "delta"),
            names.DELTA_APPEND: lambda: self._epoch(delta.spark(self._folder())),
            names.DELTA_TXN: lambda: self._epoch(delta.spark(self._folder(), app="bench")),
            names.DELTA_RS: lambda: self._epoch(delta.delta_rs(self._folder())),
            names.THREE: lambda: self._ours(names.THREE, *names.KINDS),
            names.SPARK_THREE: self._spark_three,
        }

    def _epoch(self, write: Write, of: Path | None = None) -> float:
        return self._world.epochs(of or self._source, write)[-1]

    def _ours(self, job: str, *kinds: str, of: Path | None = None) -> float:
        schema, phases = self._world.spark.read.parquet(str(of or self._source)).schema, Phases(1, of=2)
        taken = self._epoch(ours.pipeline(self._world, schema, *kinds, on_event=phases), of)
        self.phases[job].append(phases.medians())
        return taken

    def _records_into(self, peer: Callable[[str, str], Write]) -> float:
        return self._epoch(peer(self._world.kafka.bootstrap, self._world.topic()), self._records)

    def _into_table(self, peer: Callable[[str], Write]) -> float:
        return self._epoch(peer(self._world.table()))

    def _spark_three(self) -> float:
        """Each system's usual writer in one foreachBatch, over persisted rows."""
        writes = [native(self._world, kind) for kind in names.KINDS]

        def write(df: DataFrame, epoch: int) -> None:
            kept = df.persist()
            for one in writes:
                one(kept, epoch)
            kept.unpersist()

        return self._epoch(write)

    def _server_copy(self, form: str) -> float:
        file, table = self._prepared(form), self._world.table()
        began = time.perf_counter()
        postgres.copy_file(self._world.dsn, table, file, form)
        return time.perf_counter() - began

    def _prepared(self, form: str) -> Path:
        file = self._world.folder / f"prepared-{self._value}-{self._rows}-{form}"
        if not file.exists():
            postgres.prepare_file(self._world.dsn, self._source, file, form)
        return file

    def _folder(self) -> str:
        return str(self._world.new_folder(new_name("delta")))


def run(options: Options) -> Result:
    result = Result("throughput", options.rounds, options.quick)
    sizes = {NARROW: 250_000 if options.quick else 2_000_000}
    if not options.quick:
        sizes[WIDE] = 300_000
    with World() as world:
        for value, rows in sizes.items():
            throughput = Throughput(world, rows, value)
            case, end = {"rows": rows, "value bytes": value}, partial(_end, world, rows)
            warm_up = options.warm_up * WARM_UP
            taken = turns(throughput.jobs(), options.rounds, case, "s", warm_up=warm_up, after=end)
            phases = of_phases(throughput.phases, case, options.rounds)
            result.add([*taken, *speeds(taken, rows), *phases], *_ratios(taken, goals=value == NARROW))
    return result


def _end(world: World, rows: int) -> None:
    """End a turn: check that all rows are there, and remove the targets."""
    world.check(SMALL + rows)
    world.clear()


def _ratios(taken: list[Measure], *, goals: bool) -> list[Ratio]:
    found = [
        ratio(taken, job, peer, "rows/s", goal if goals else None, inverse=True) for (job, peer), goal in GOALS.items()
    ]
    alone = [names.of("postgres"), WIDE_KAFKA, names.of("delta")]
    by_name = {measure.job: measure for measure in taken}
    sums = [sum(each) for each in zip(*(by_name[name].values for name in alone), strict=True)]
    three = by_name[names.THREE]
    values = [mine / alone for mine, alone in zip(three.values, sums, strict=True)]
    told = Ratio(three.job, "the sum of the three alone", three.case, "s", values, "three-sum" if goals else None)
    return [*found, told]
