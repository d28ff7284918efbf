"""A query whose checkpoint lies on s3a://, on a real S3 server: Spark's own files, the durable copy and the epoch log.

The server keeps each object as a file, so the tests read what lies there from the disk, past server and client.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import obstore
import obstore.store
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from epochal.chaos import servers
from epochal.chaos.contract.logs import ProcessContract
from epochal.chaos.demo.verdict import ABORTED, COMMITTED
from epochal.chaos.job import jvm
from epochal.chaos.servers import jars
from epochal.chaos.servers.s3 import S3Server
from epochal.chaos.servers.spark import spark_session
from epochal.chaos.servers.standalone import StandaloneCluster
from epochal.chaos.strike.nemesis import kill_seen
from epochal.checkpoints.log import EpochLog, Fence
from epochal.checkpoints.objects import ObjectLog
from epochal.coordinator.environment.versions import HADOOP_CLOUD_JARS, S3A_JARS
from epochal.coordinator.model.epoch import Actor, Json
from epochal.sinks.spark.executors import clone
from epochal.sinks.spark.stage import SparkStage
from tests.real.kills.support import END_S, LOCAL, SEEN_S, SINKS, Job, Kill, drivers, ends_named, finish, kill_in_turn
from tests.real.kills.test_two_drivers import BEFORE_ITS_DECISION, TAKEN_OVER
from tests.real.standalone.test_cluster import ancestors
from tests.real.standalone.test_speculation_and_allocation import EXECUTORS

pytestmark = pytest.mark.timeout(2400)

S3A_DRIVER = "tests.matrix.s3a_driver"
AWAY_S = 1200.0  # Hadoop's client tries again for minutes
OF_THE_STORE = ("errors.OutcomeUnknown:", "errors.SinkUnavailable:", "Connection refused")

BEFORE_THE_DECISION = (
    Kill("after-copy", 1, ABORTED),
    Kill("after-prepare", 2, ABORTED),
    Kill("before-decide", 3, ABORTED),
)
AFTER_THE_DECISION = (
    Kill("after-decide", 1, COMMITTED),
    Kill("after-sink-commit@delta", 2, COMMITTED, hold=("before-sink-commit@postgres",)),
)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@dataclass
class S3Job(Job):
    """A job whose checkpoint lies on the server, and also its Delta table if that is ``lake_on_s3``."""

    s3: S3Server = field(kw_only=True)
    lake_on_s3: bool = False

    @property
    def checkpoint_path(self) -> Path:
        return self.s3.files / self.topic / self.checkpoint

    @property
    def checkpoint_url(self) -> str:
        return self.s3.url(f"{self.topic}/{self.checkpoint}")

    @property
    def lake(self) -> str:
        return str(self.s3.files / self.topic / "lake") if self.lake_on_s3 else super().lake

    @property
    def lake_url(self) -> str:
        return self.s3.url(f"{self.topic}/lake") if self.lake_on_s3 else self.lake

    def log(self) -> ObjectLog:
        return ObjectLog(f"{self.checkpoint_url}/epochal/log", **self.s3.options)

    def check_exact(self) -> None:
        """And of the durable copies only those of the newest start are left, without a file of a dead task."""
        super().check_exact()
        newest = max(entry.record.actor.generation for entry in self.log().read() if isinstance(entry.record, Fence))
        copies = self.checkpoint_path / "epochal" / "copies"
        left = [path.relative_to(copies).parts for path in copies.rglob("*") if path.is_file()]
        assert {parts[1].partition("-")[0] for parts in left} == {str(newest)}
        assert [parts for parts in left if len(parts) != 3] == []


@pytest.fixture
def job(
    tmp_path: Path, s3: S3Server, pg_database: str, kafka_server: servers.Kafka, topic_name: str
) -> Iterator[S3Job]:
    """It has no epochs yet."""
    jvm.short_lived(*jars.resolve(S3A_JARS))  # made before a driver is waited for
    conf = json.dumps(s3.hadoop_conf)
    with drivers(LOCAL, tmp_path / "drivers", (S3A_DRIVER, conf)) as them:
        yield S3Job(them, tmp_path, pg_database, kafka_server.bootstrap, topic_name, 0, s3=s3)


def feed(job: Job, epochs: int) -> None:
    for _ in range(epochs):
        job.feed()


# --- the log ----------------------------------------------------------------------------------------


class TestObjectLog(ProcessContract):
    """Threads and processes race for positions, too: the server lets one of several puts win."""

    @pytest.fixture
    def url(self, s3: S3Server) -> str:
        return s3.url(f"log-{uuid.uuid4().hex}")

    @pytest.fixture
    def open_log(self, s3: S3Server, url: str) -> Callable[[], EpochLog]:
        return lambda: ObjectLog(url, **s3.options)

    @pytest.fixture
    def source(self, s3: S3Server, url: str) -> str:
        return f"from epochal.checkpoints.objects import ObjectLog; log = ObjectLog({url!r}, **{s3.options!r})"


# --- a query ----------------------------------------------------------------------------------------


def test_killed_before_the_decision_an_epoch_is_dropped_and_done_anew(job: S3Job) -> None:
    feed(job, 5)
    kill_in_turn(job, BEFORE_THE_DECISION)
    job.check_exact()


def test_killed_after_the_decision_an_epoch_is_finished_and_the_console_tells_it(job: S3Job) -> None:
    """Here the Delta table lies on the server, too, where Delta itself keeps only the writers of one driver apart."""
    job = replace(job, lake_on_s3=True)
    feed(job, 4)
    kill_in_turn(job, AFTER_THE_DECISION)
    job.check_exact()
    told = console(job, "status")
    assert told["spark"] == {"planned": 3, "committed": 3}
    assert {sink["name"]: (sink["epoch"], sink["error"]) for sink in told["sinks"]} == dict.fromkeys(SINKS, (3, None))
    assert console(job, "verify")["findings"] == []
    assert len(console(job, "log")["records"]) == len(job.log().read())
    copies = console(job, "clean", "--yes")["copies"]
    assert copies == {"removable": [], "done": [], "why": None}


def console(job: S3Job, command: str, *options: str) -> Json:
    """What the command says in a process without Spark, with the credentials of the environment."""
    program = job.folder / "console_job.py"
    program.write_text(f"from tests.real.kills import driver\npipeline = driver.pipeline({dict(job.settings())!r})\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "epochal.coordinator.console.cli",
            command,
            job.checkpoint_url,
            *_of(program, command),
            *options,
            "--json",
        ],
        env={**os.environ, **job.s3.environment},
        capture_output=True,
        text=True,
        timeout=SEEN_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    told: Json = json.loads(done.stdout)
    return told


def _of(program: Path, command: str) -> Sequence[str]:
    return () if command == "log" else ("--pipeline", f"{program}:pipeline")


def test_the_older_of_two_drivers_ends(job: S3Job) -> None:
    """It is halted before its decision, and wakes when the newer one has gone past that epoch.

    Hadoop's client of S3 does not keep them apart: a rename there overwrites.
    """
    feed(job, 3)
    with job.start(BEFORE_ITS_DECISION) as older:
        older.see_blocked(BEFORE_ITS_DECISION, SEEN_S)
        older.pause()
        older.go(BEFORE_ITS_DECISION)
        finish(job)
        older.resume()
        ends_named(older, *TAKEN_OVER)
    job.check_exact()


def test_a_driver_whose_offsets_were_overwritten_does_not_decide(job: S3Job) -> None:
    """As the other of two drivers may do it: the newest content is read again, from the server, before the decision."""
    feed(job, 2)
    store = obstore.store.S3Store(job.s3.bucket, client_options={"allow_http": True}, **job.s3.options)
    name = f"{job.topic}/{job.checkpoint}/offsets/1"
    with job.start(BEFORE_ITS_DECISION) as driver:
        driver.see_blocked(BEFORE_ITS_DECISION, SEEN_S)
        planned = bytes(obstore.get(store, name).bytes())
        obstore.put(store, name, planned + b" ")
        driver.go(BEFORE_ITS_DECISION)
        ends_named(driver, "the offsets of epoch 1 were changed while the epoch was prepared")
    obstore.put(store, name, planned)
    finish(job)
    job.check_exact()


@pytest.mark.parametrize("point", ["before-prepare", "before-decide", "after-decide"])
@pytest.mark.parametrize("away", ["for a moment", "until the query has ended"])
def test_the_server_crashes_in_mid_epoch(job: S3Job, point: str, away: str) -> None:
    """The query goes on, or ends with an error of the store.  The next start does the rest."""
    feed(job, 3)
    rule = f"{point}:1=barrier"
    with job.start(rule) as driver:
        driver.see_blocked(rule, SEEN_S)
        job.s3.crash()
        try:
            if away == "for a moment":
                job.s3.start()
            driver.go(rule)
            ended = driver.wait(AWAY_S)
        finally:
            if not job.s3.running():
                job.s3.start()
        assert away == "for a moment" or ended == 1, driver.tail()
        if ended:
            assert any(name in driver.tail(80) for name in OF_THE_STORE), driver.tail(80)
    finish(job)
    job.check_exact()


def test_an_executor_is_killed_in_mid_copy(job: S3Job, tmp_path: Path) -> None:
    """Its task is between two rows of a copy."""
    feed(job, 3)
    rule = "at-row#17=barrier"  # of one worker; an epoch has 20 rows
    conf = json.dumps({**EXECUTORS, **job.s3.hadoop_conf})
    with StandaloneCluster() as cluster, drivers(cluster.url, tmp_path / "far", (S3A_DRIVER, conf)) as them:
        far = replace(job, drivers=them)
        with far.start(rule) as driver:
            blocked = driver.see_hit(rule, SEEN_S)
            (struck,) = set(cluster.executors()) & set(ancestors(blocked.pid))
            assert kill_seen(struck).signal == signal.SIGKILL
            assert driver.wait(END_S) == 0, driver.tail()
        far.check_exact()


# --- the durable copy -------------------------------------------------------------------------------

PROTOCOL, COMMITTER = "spark.sql.sources.commitProtocolClass", "spark.sql.parquet.output.committer.class"
SPARKS = {
    PROTOCOL: "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol",
    COMMITTER: "org.apache.parquet.hadoop.ParquetOutputCommitter",
}
"""Files are renamed, which is the default without the module hadoop-cloud."""
HADOOPS = {
    PROTOCOL: "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
    COMMITTER: "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
}
"""The committer that ``fs.s3a.committer.name`` names.  With the module, Spark 4.2 takes ``magic`` by itself."""


@pytest.fixture(scope="module")
def spark(s3: S3Server) -> Iterator[SparkSession]:
    conf = {**jvm.short_lived(*jars.resolve(S3A_JARS), *jars.resolve(HADOOP_CLOUD_JARS)), **s3.hadoop_conf}
    session = spark_session(LOCAL, app="object-store", conf=conf)
    yield session
    session.stop()


@pytest.mark.parametrize("committer", ["", "magic", "directory", "partitioned"])
def test_a_copy_is_what_the_tasks_wrote_that_ended(s3: S3Server, spark: SparkSession, committer: str) -> None:
    """A task that fails after it has written runs again.  Of what it wrote nothing is read, and nothing is left.

    Without a committer of Hadoop's for S3, and with each of them.
    """

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        yield from batches
        if task.partitionId() == 1 and task.attemptNumber() == 0:
            raise RuntimeError("the task fails after it has written")

    session = clone(spark)
    for name, value in ({**HADOOPS, "fs.s3a.committer.name": committer} if committer else SPARKS).items():
        session.conf.set(name, value)
    checkpoint = uuid.uuid4().hex
    before = committed(spark, s3)
    stage = SparkStage(s3.url(checkpoint), lambda: session)
    rows = session.range(0, 1000, numPartitions=2).mapInArrow(fail_once, "id long")
    copy = stage.write(0, Actor(1, 7), rows)
    assert committed(spark, s3) - before == (len(copy.files) if committer else 0)
    assert sorted(row.id for row in stage.read(copy).collect()) == list(range(1000))
    folder = s3.files / checkpoint / "epochal" / "copies" / "0" / "1-7"
    assert sorted(path.name for path in folder.rglob("*")) == sorted(file.path for file in copy.files)
    stage.clean(Actor(2, 8), keep=[])
    assert not [path for path in folder.parent.rglob("*") if path.is_file()]


def committed(spark: SparkSession, s3: S3Server) -> int:
    """How many files Hadoop's committers for S3 have committed in this process."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    system = jvm.org.apache.hadoop.fs.Path(s3.url("")).getFileSystem(conf)
    return int(system.getIOStatistics().counters().get("committer_commits_completed") or 0)
