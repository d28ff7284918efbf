"""What the benchmarks share: servers, a source, the plain jobs that are the peers, turns, medians, results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from epochal.chaos import servers
from epochal.chaos.servers import jars
from epochal.chaos.servers.spark import spark_conf, spark_session
from epochal.coordinator import versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

HERE = Path(__file__).parent
Write = Callable[["DataFrame", int], None]
JAVA_URL = "jdbc:postgresql://"
EPOCHS = 2  # per stream: the first warms up, the second is counted


class Bench:
    """The session, the servers and the source of one run."""

    def __init__(self, spark: SparkSession, postgres: servers.Postgres, kafka: servers.Kafka, folder: Path) -> None:
        self.spark, self.postgres, self.kafka, self.folder = spark, postgres, kafka, folder
        self.dsn = postgres.create_database("bench")
        self.jdbc = f"{JAVA_URL}{postgres.address}/bench?user=postgres&reWriteBatchedInserts=true"

    @property
    def schema(self) -> StructType:
        return self.spark.read.parquet(str(self.source(1000))).schema

    def source(self, rows: int) -> Path:
        """A folder of files, one epoch each, of (bigint, 16 B, 100 B, double)."""
        path = self.folder / f"source-{rows}"
        if not path.exists():
            for _ in range(EPOCHS):
                frame = self.spark.range(0, rows, numPartitions=2).selectExpr(
                    "id", "substr(sha(string(id)), 1, 16) k", "repeat(substr(sha(string(id)), 1, 20), 5) v", "rand() x"
                )
                frame.write.mode("append").parquet(str(path))
        return path

    def seconds(self, rows: int, write: Write) -> float:
        """Spark's ``addBatch`` of the counted epoch."""
        path = self.source(rows)
        frame = self.spark.read.parquet(str(path))
        stream = self.spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 2).parquet(str(path))
        query = (
            stream.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(self.folder / f"checkpoint-{uuid.uuid4().hex}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(600)
        batches = [p for p in query.recentProgress if p["numInputRows"]]
        return float(batches[-1]["durationMs"]["addBatch"]) / 1000

    # --- the peers: each system's native writer in a plain foreachBatch -------------------------

    def plain(self, kind: str) -> Write:
        name = f"plain_{uuid.uuid4().hex[:8]}"
        if kind == "kafka":
            self.kafka.create_topic(name, partitions=4)
        single: dict[str, Write] = {
            "postgres": lambda df, _: self._plain_postgres(df, name),
            "kafka": lambda df, _: self._plain_kafka(df, name),
            "delta": lambda df, _: df.write.format("delta").mode("append").save(str(self.folder / name)),
        }
        return single[kind]

    def _plain_postgres(self, df: DataFrame, table: str) -> None:
        writer = df.write.format("jdbc").mode("append").option("url", self.jdbc).option("dbtable", table)
        writer.option("batchsize", 10_000).option("driver", "org.postgresql.Driver").save()

    def _plain_kafka(self, df: DataFrame, topic: str) -> None:
        out = df.selectExpr("k AS key", "to_json(struct(*)) AS value")
        out.write.format("kafka").option("kafka.bootstrap.servers", self.kafka.bootstrap).option("topic", topic).save()

    def plain_three(self) -> Write:
        writes = [self.plain(kind) for kind in ("postgres", "kafka", "delta")]

        def write(df: DataFrame, epoch: int) -> None:
            df.persist()
            for one in writes:
                one(df, epoch)
            df.unpersist()

        return write


Jobs = Mapping[str, Callable[[], Write]]
"""By name, in the order in which they take turns."""


def measure(bench: Bench, jobs: Jobs, rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per job and round, the jobs interleaved; the first round is a warm-up and not kept."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, make in jobs.items():
            seconds = bench.seconds(rows, make())
            if turn:
                taken[name].append(seconds)
            print(
                f"  {rows:>9,} rows  {'warm-up' if not turn else f'round {turn}'}  {name:26} {seconds:7.2f} s",
                flush=True,
            )
    return taken


def summary(taken: Mapping[str, list[float]], rows: int) -> list[dict[str, object]]:
    """Median, quartiles, rows per second, and the median of the per-round ratio to the peer of the same system.

    That is ``plain S`` for a job called ``epochal S`` or ``epochal S, some mode``.
    """
    lines: list[dict[str, object]] = []
    for name, seconds in taken.items():
        quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        peer = taken[name.replace("epochal", "plain").partition(",")[0]]
        ratio = statistics.median(mine / theirs for mine, theirs in zip(seconds, peer, strict=True))
        median = statistics.median(seconds)
        lines.append(
            {"job": name, "rows": rows, "seconds": seconds, "median": median, "quartiles": quartiles}
            | {"rows_per_second": round(rows / median), "times_the_plain_job": round(ratio, 2)}
        )
    return lines


def show(lines: list[dict[str, object]]) -> None:
    print(f"\n{'job':28}{'rows':>10}{'median s':>10}{'rows/s':>12}{'x plain':>9}")
    for line in lines:
        print(
            f"{line['job']:28}{line['rows']:>10}{line['median']:>10.2f}{line['rows_per_second']:>12}"
            f"{line['times_the_plain_job']:>9}"
        )


def environment() -> dict[str, object]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return {
        "commit": commit.stdout.strip(),
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "pyspark": versions.PYSPARK,
        "kafka": versions.KAFKA_BROKER,
        "delta": versions.DELTA_JAR,
    }


def run(name: str, about: str | None, jobs_of: Callable[[Bench], Jobs]) -> None:
    """The program: every job in turn at two sizes of an epoch; prints a table, writes ``results/NAME-TIME.json``."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one for warm-up")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a large epoch")
    parser.add_argument("--small", type=int, default=1_000, help="rows of a small one")
    options = parser.parse_args()
    with ExitStack() as stack:
        bench = _started(stack)
        jobs = jobs_of(bench)
        lines = [
            line
            for rows in (options.small, options.rows)
            for line in summary(measure(bench, jobs, rows, options.rounds), rows)
        ]
    show(lines)
    result = {"environment": environment(), "rounds": options.rounds, "lines": lines}
    path = HERE / "results" / f"{name}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten to {path.relative_to(HERE.parent)}")


def _started(stack: ExitStack) -> Bench:
    found = [spark_conf()["spark.jars"], *map(str, jars.resolve(versions.POSTGRES_JDBC_JARS))]
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
    postgres, kafka = servers.choose_postgres(), servers.choose_kafka(long_lived=True)
    for server in (postgres, kafka):
        server.start()
        stack.callback(server.close)
    spark = spark_session("local[2]", conf={"spark.jars": ",".join(found), "spark.driver.memory": "2g"})
    stack.callback(spark.stop)
    return Bench(spark, postgres, kafka, folder)
