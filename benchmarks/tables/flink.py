"""Rows per second into Kafka compared with Flink's KafkaSink: the same Parquet files, the same broker, two tasks each.

The values are a Spark job's ``addBatch`` of its epoch, and a Flink job's time from RUNNING to FINISHED.  Both include
reading the source and the last commit, and none includes the start of a JVM.  The time of reading alone is also
measured.  With fewer rows than here, most of Flink's time would be the start of its job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchmarks import names, ours, topics
from benchmarks.measuring import Case, Measure, Ratio, ratio, speeds, turns
from benchmarks.peers import kafka
from benchmarks.peers.bare import evaluated
from benchmarks.peers.flink.job import PRODUCER, SETTINGS
from benchmarks.peers.flink.session import Flink
from benchmarks.results import Result
from benchmarks.rows import SMALL, source
from benchmarks.world import World
from epochal.coordinator.environment.versions import FLINK, FLINK_JARS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from benchmarks.tables import Options
    from benchmarks.world import Write

ROWS, FEWER = 8_000_000, 1_000_000
OURS = names.of("kafka")
EXACTLY, AT_LEAST = "exactly-once", "at-least-once"
PEERS = {f"flink {EXACTLY}": "kafka-flink", f"flink {AT_LEAST}": None, names.SPARK_KAFKA: None}
"""Peer -> the goal of our job compared with it."""


class IntoKafka:
    """The jobs over one source with an epoch of SMALL rows and one of ``rows``.  A job returns seconds."""

    def __init__(self, world: World, flink: Flink, rows: int) -> None:
        self._world, self._flink = world, flink
        self._source = source(world.spark, world.folder, [SMALL, rows], wide=False)
        self._all = SMALL + rows
        self._schema: StructType = world.spark.read.parquet(str(self._source)).schema
        self._counted: set[str] = set()
        self.checkpoints: dict[str, list[int]] = {EXACTLY: [], AT_LEAST: []}

    def jobs(self) -> Mapping[str, Callable[[], float]]:
        return {
            OURS: self._ours,
            f"flink {EXACTLY}": lambda: self._by_flink(EXACTLY),
            f"flink {AT_LEAST}": lambda: self._by_flink(AT_LEAST),
            names.SPARK_KAFKA: self._by_spark,
            "flink, reading alone": lambda: self._flink.read(self._source).seconds,
            "spark, reading alone": lambda: self._epoch(evaluated),
        }

    def _epoch(self, write: Write) -> float:
        return self._world.epochs(self._source, write)[-1]

    def _ours(self) -> float:
        pipeline = ours.pipeline(self._world, self._schema, "kafka")
        seconds = self._epoch(pipeline)
        self._checked(OURS, pipeline.app, transactions=True)
        return seconds

    def _by_flink(self, guarantee: str) -> float:
        topic = self._world.topic()
        told = self._flink.write(self._source, self._world.kafka.bootstrap, topic, guarantee)
        self.checkpoints[guarantee].append(told.checkpoints)
        self._checked(f"flink {guarantee}", topic, transactions=guarantee == EXACTLY)
        return told.seconds

    def _by_spark(self) -> float:
        topic = self._world.topic()
        seconds = self._epoch(kafka.spark(self._world.kafka.bootstrap, topic))
        self._checked(names.SPARK_KAFKA, topic, transactions=False)
        return seconds

    def _checked(self, job: str, topic: str, *, transactions: bool) -> None:
        """Check that all rows are there.  In the first turn of a job they are also counted one by one."""
        bootstrap = self._world.kafka.bootstrap
        topics.check(bootstrap, topic, self._all, transactions=transactions)
        if job not in self._counted:
            topics.check_count(bootstrap, topic, self._all)
            self._counted.add(job)


def run(options: Options) -> Result:
    result = Result("flink", options.rounds, options.quick)
    rows = FEWER if options.quick else ROWS
    case: Case = {"rows": rows, "value bytes": 100}
    with World() as world, Flink(world.folder / "flink") as flink:
        into = IntoKafka(world, flink, rows)
        taken = turns(into.jobs(), options.rounds, case, "s", warm_up=options.warm_up, after=world.clear)
    result.add([*taken, *speeds(taken, rows)], *_ratios(taken))
    jars = [jar.partition(":")[2] for jar in FLINK_JARS.coordinates]
    result.facts["flink"] = {"version": FLINK, "jars": jars, "settings": {**SETTINGS, **PRODUCER}}
    result.facts["checkpoints of each job of flink, warm-up first"] = into.checkpoints
    return result


def _ratios(taken: list[Measure]) -> list[Ratio]:
    return [ratio(taken, OURS, peer, "rows/s", goal, inverse=True) for peer, goal in PEERS.items()]
