"""A query whose checkpoint lies on HDFS: Spark's own files, the durable copy and the epoch log."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from epochal.chaos.servers.hdfs import HadoopClient, HdfsServer
from epochal.chaos.strike.nemesis import Driver
from epochal.checkpoints.hadoop import HadoopLog
from epochal.checkpoints.log import Commit, Fence
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.spark.executors import clone
from tests.real.coordinator.query.support import WAIT, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.wide

PROGRAM = Path(__file__).with_name("driver.py")
DECIDED = "after-decide:1=barrier"
EPOCHS, ROWS = 3, 10
SEEN_S, END_S = 300.0, 600.0


def in_both(ids: Iterable[int]) -> dict[str, list[int]]:
    return {"postgres": list(ids), "delta": list(ids)}


@pytest.mark.timeout(1200)
def test_a_driver_killed_in_an_epoch_goes_on_also_after_its_name_node_died(
    tmp_path: Path, hdfs_server: HdfsServer, pg_database: str
) -> None:
    """Killed when the epoch was decided and no sink showed it."""
    source = tmp_path / "source"
    source.mkdir()
    for epoch in range(EPOCHS):
        lines = [json.dumps({"id": i}) for i in range(epoch * ROWS, (epoch + 1) * ROWS)]
        (source / f"{epoch}.json").write_text("\n".join(lines))
        os.utime(source / f"{epoch}.json", (1_700_000_000 + epoch,) * 2)
    checkpoint = f"{hdfs_server.uri}/{uuid.uuid4().hex}"

    @contextmanager
    def started(name: str, *armed: str) -> Iterator[Driver]:
        argv = [str(PROGRAM), str(tmp_path), checkpoint, pg_database]
        with Driver(argv, tmp_path / name, failpoints_armed=armed) as driver:
            yield driver

    def shown() -> dict[str, list[int]]:
        with psycopg.connect(pg_database) as connection:
            rows = connection.execute("SELECT id FROM rows").fetchall()
        delta = DeltaTable(str(tmp_path / "lake")).to_pyarrow_table()["id"].to_pylist()
        return {"postgres": sorted(i for (i,) in rows), "delta": sorted(delta)}

    with started("first", DECIDED) as driver:
        driver.see_blocked(DECIDED, SEEN_S)
        assert {death.signal for death in driver.kill()} == {signal.SIGKILL}
    assert shown() == in_both(range(ROWS))
    hdfs_server.crash()
    hdfs_server.start()
    with started("second") as driver:
        assert driver.wait(END_S) == 0, driver.tail()
    assert shown() == in_both(range(EPOCHS * ROWS))

    with HadoopClient() as hadoop:
        records = [entry.record for entry in HadoopLog(f"{checkpoint}/epochal/log", lambda: hadoop).read()]
    generations = [(r.epoch, r.decision.actor.generation) for r in records if isinstance(r, Commit)]
    assert [r.actor.generation for r in records if isinstance(r, Fence)] == [1, 2]
    assert generations == [(0, 1), (1, 1), (2, 2)]


def test_a_checkpoint_where_no_log_can_lie_ends_the_start(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop's own way to a disk, which is not known to create a name once."""
    session = clone(spark)
    session.conf.set("fs.viewfs.mounttable.table.link./disk", tmp_path.as_uri())
    job = Job(session, tmp_path / "job")
    job.add(1)
    pipeline = job.pipeline()
    with pytest.raises(Misconfigured, match="the epoch log cannot lie on file://"):
        pipeline.check(job.df(), "viewfs://table/disk/checkpoint")
    stream = job.df().writeStream.foreachBatch(pipeline)
    query = stream.option("checkpointLocation", "viewfs://table/disk/checkpoint").start()
    with pytest.raises(StreamingQueryException, match="Misconfigured"):
        query.awaitTermination(WAIT)
    assert isinstance(pipeline.last_error, Misconfigured)
    assert "log=PostgresLog" in pipeline.last_error.help
    assert job.ids() == []
