"""Corners in which a sink is not what it was, or does not take what was decided."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from epochal import Pipeline
from epochal.chaos import servers
from epochal.chaos.servers.postgres import PostgresServer
from epochal.coordinator.model.failpoints import Point
from epochal.sinks import KafkaSink
from tests.real.runbook.conftest import MakeCorner
from tests.real.runbook.support import blocks
from tests.real.sinks.delta import support as delta
from tests.real.sinks.kafka.support import await_markers
from tests.real.sinks.postgres.support import observe

ALL = [1, 2, 3, 4, 5]


@pytest.mark.wide
def test_delta_table_restored_and_the_restore_undone(corner: MakeCorner) -> None:
    job = corner("Delta table restored to an older version")
    newest = delta.version(job.lake)
    delta.sql(job.spark, job.lake, f"RESTORE TABLE {{t}} TO VERSION AS OF {newest - 2}")
    assert job.shown()["lake"] == []
    job.add(4, 5)
    job.fails()
    [statement] = blocks(job.title, "sql")
    job.spark.sql(statement.replace("$TABLE", str(job.lake)).replace("$BEFORE", str(newest)))
    job.converges(table=ALL, topic=ALL, lake=ALL)


@pytest.mark.wide
def test_a_last_epoch_that_a_restore_took_back_is_shown_again(corner: MakeCorner) -> None:
    """The log does not say yet that it is visible everywhere, so its rows are there to be committed again."""
    job = corner("Delta table restored to an older version")
    delta.sql(job.spark, job.lake, f"RESTORE TABLE {{t}} TO VERSION AS OF {delta.version(job.lake) - 1}")
    assert job.shown()["lake"] == [1, 2]
    job.add(4, 5)
    job.converges(table=ALL, topic=ALL, lake=ALL)


@pytest.mark.wide
def test_delta_table_restored_and_gone_on_with(corner: MakeCorner) -> None:
    job = corner("Delta table restored to an older version")
    for number in (4, 5):
        job.add(number)
    job.go()
    delta.sql(job.spark, job.lake, f"RESTORE TABLE {{t}} TO VERSION AS OF {delta.version(job.lake) - 2}")
    job.add(6)
    job.fails()
    *_, told = job.follow(SINK="lake", OTHER="table")
    assert "lake has not got 2 epochs, 2 to 3" in told
    job.converges(table=[*ALL, 6], topic=[*ALL, 6], lake=[1, 2, 3, 6])


@pytest.mark.wide
@pytest.mark.remedy(
    "the prepared epoch cannot be shown any more, and nothing of it is visible: …",
    "start the query again: the rows are redone",
)
def test_delta_table_vacuumed(corner: MakeCorner) -> None:
    job = corner("Delta table vacuumed")
    job.add(4)
    job.crash()
    for file in set(delta.data_files(job.lake)) - set(delta.live_files(job.lake)):
        (job.lake / file).unlink()
    delta.vacuum_everything(job.spark, job.lake)
    job.add(5)
    job.go()
    job.follow()
    job.converges(table=ALL, topic=ALL, lake=ALL)


@pytest.mark.wide
def test_postgres_restored_from_an_older_backup(corner: MakeCorner, tmp_path: Path) -> None:
    """The files of a stopped server, as a snapshot of its disk has them."""
    with PostgresServer(directory=tmp_path / "server") as server:
        job = corner("Postgres restored from an older backup", server)
        backup = tmp_path / "backup"
        server.stop()
        subprocess.run(["cp", "-a", str(server.directory / "data"), str(backup)], check=True)
        server.start()
        for number in (4, 5):
            job.add(number)
        job.go()
        server.stop()
        shutil.rmtree(server.directory / "data")
        backup.rename(server.directory / "data")
        server.start()
        job.add(6)
        job.fails()
        *_, told = job.follow(SINK="table", OTHER="lake")
        assert "table has not got 2 epochs, 2 to 3" in told
        job.converges(table=[1, 2, 3, 6], topic=[*ALL, 6], lake=[*ALL, 6])
        columns = "id, name, at, day, amount, ratio, small, even, raw, local, many"
        observe(
            job.dsn,
            f"INSERT INTO rows__rows ({columns}, _epoch, _attempt)"
            " SELECT 4, name, at, day, amount, ratio, small, even, raw, local, many, 0, 0 FROM rows WHERE id = 3",
        )
        job.add(7)
        job.converges(table=[1, 2, 3, 4, 6, 7], topic=[*ALL, 6, 7], lake=[*ALL, 6, 7])


@pytest.mark.wide
def test_kafka_topic_recreated(corner: MakeCorner, kafka_server: servers.Kafka) -> None:
    job = corner("Kafka topic recreated")
    kafka_server.delete_topic(job.topic)
    kafka_server.create_topic(job.topic)
    job.add(4)
    job.fails()
    job.follow(SINK="topic")
    job.converges(table=[1, 2, 3, 4], topic=[4], lake=[1, 2, 3, 4])


@pytest.mark.wide
@pytest.mark.timeout(600)
@pytest.mark.remedy(
    "… could not be produced within the transaction timeout of … s, … times",
    "raise transaction_timeout= (and the broker's transaction.max.timeout.ms), speed up the brokers or the link to"
    " them, and restart the query",
)
def test_kafka_transaction_expired(corner: MakeCorner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task takes longer than the transaction may last, and than the broker's next look, each 10 seconds."""
    job = corner("Kafka transaction expired")
    job.add(4)
    made = job.made

    def hasty() -> Pipeline:
        sinks = [sink for sink in made().sinks if sink.name != "topic"]
        topic = KafkaSink(
            job.bootstrap, topic=job.topic, name="topic", key="name", select=["id", "name"], transaction_timeout=1.0
        )
        return Pipeline(app=job.app, sinks=[*sinks, topic])

    with monkeypatch.context() as patch:
        patch.setattr(job, "made", hasty)
        patch.setitem(job.spark.sparkContext.environment, "EPOCHAL_FAILPOINTS", "before-publish@topic=sleep(12)")
        job.fails()
    assert job.shown() == {"table": [1, 2, 3, 4], "topic": [1, 2, 3], "lake": [1, 2, 3, 4]}
    await_markers(job.bootstrap, job.topic)
    job.add(5)
    job.go()
    job.follow()
    job.converges(table=ALL, topic=ALL, lake=ALL)


@pytest.mark.wide
def test_kafka_transaction_hangs(corner: MakeCorner) -> None:
    """Once with a decided epoch, once with one that is not decided."""
    job = corner("Kafka transaction hangs")
    job.add(4)
    job.crash(Point.AFTER_DECIDE)
    shown = "".join(job.follow(0))
    assert "by the log" in shown
    assert "decided" in shown
    would, done = job.follow(1, SINK="topic")
    assert "--yes would commit epoch 2" in would
    assert "committed epoch 2" in done
    assert job.shown() == {"table": [1, 2, 3], "topic": [1, 2, 3, 4], "lake": [1, 2, 3]}
    job.go()
    job.add(5)
    job.crash(Point.AFTER_PREPARE)
    assert "not decided" in "".join(job.follow(0))
    would, done = job.follow(2, SINK="topic")
    assert "--yes would init" in would
    assert "aborted what was open" in done
    assert job.shown()["topic"] == [1, 2, 3, 4]
    job.converges(table=ALL, topic=ALL, lake=ALL)


@pytest.mark.wide
def test_marker_lost_and_the_rows_still_there(corner: MakeCorner) -> None:
    job = corner("Marker lost, rows still there")
    stored = "SELECT count(*) FROM rows__rows"
    before = observe(job.dsn, stored)
    observe(job.dsn, f"DELETE FROM epochal.sinks WHERE app = '{job.app}'")
    job.add(4)
    with pytest.raises(StreamingQueryException, match=r"Misconfigured: .*in epochal.sinks does not exist"):
        job.go()
    job.made().create(job.rows().schema)
    job.fails()
    job.command(["retire", str(job.checkpoint), "topic", "--why", "x", "--yes"], 1)
    assert observe(job.dsn, stored) == before
    *_, recorded = job.follow(SINK="table")
    assert "recorded" in recorded
    job.add(5)
    job.converges(table=ALL, topic=ALL, lake=ALL)


@pytest.mark.wide
def test_a_sink_down_for_good(corner: MakeCorner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with PostgresServer(directory=tmp_path / "server") as server:
        job = corner("Sink down for good", server)
        job.add(4)
        job.crash(Point.BEFORE_SINK_COMMIT, "table")
        server.stop()
        job.fails()
        job.follow(SINK="table")
        made = job.made

        def without() -> Pipeline:
            return Pipeline(app=job.app, sinks=[sink for sink in made().sinks if sink.name != "table"])

        job.add(5)
        with monkeypatch.context() as patch:
            patch.setattr(job, "made", without)
            job.go()
        server.start()
        job.add(6)
        job.converges(table=[1, 2, 3, 6], topic=[*ALL, 6], lake=[*ALL, 6])
        told = json.loads(job.command(["verify", str(job.checkpoint), "--json"]))
        assert "table: epochs 2 to 3, which an operator has left out of it" in told["unchecked"]


@pytest.mark.wide
@pytest.mark.remedy(
    "rows violate a constraint of the table", "or drop the constraint (ALTER TABLE … DROP CONSTRAINT name"
)
@pytest.mark.parametrize("way_out", ["drop", "accept"])
def test_a_table_never_takes_decided_rows(corner: MakeCorner, way_out: str) -> None:
    job = corner("Table never takes decided rows")
    job.add(4)
    job.crash()
    delta.sql(job.spark, job.lake, "ALTER TABLE {t} ADD CONSTRAINT never CHECK (id <> 4)")
    job.add(5)
    for _ in range(2):
        job.fails()
    if way_out == "accept":
        job.follow(SINK="lake")
        job.converges(table=ALL, topic=ALL, lake=[1, 2, 3, 5])
    else:
        delta.sql(job.spark, job.lake, "ALTER TABLE {t} DROP CONSTRAINT never")
        job.converges(table=ALL, topic=ALL, lake=ALL)
