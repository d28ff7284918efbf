"""The console command reads and cleans a checkpoint on an object store, where no Spark runs.

The store is the kit's stand-in; the whole checkpoint of a real query is read from a real one in ``tests/matrix``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from epochal.chaos.servers.objects import ACCESS_KEY, ObjectServer
from epochal.checkpoints.log import Commit, Fence, Record
from epochal.checkpoints.objects import ObjectLog
from epochal.coordinator.console.render import FINE, UNKNOWN, USAGE
from epochal.coordinator.model.epoch import Actor, Json, Query
from tests.pure.coordinator.console.test_console import commit, error_of, run

WHERE = "s3a://lake/checkpoint"
JOB = """
import epochal
from epochal.sinks import PostgresSink

sink = PostgresSink("postgresql://127.0.0.1:1/nowhere", table="t", name="one", connect_timeout=2.0)
pipeline = epochal.Pipeline(app="app", sinks=[sink], log={log})
"""
ASKING = (
    *("coordinator.console.doctor", "coordinator.console.standing", "coordinator.query.asking"),
    *("coordinator.query.operate", "coordinator.query.pipeline", "sinks.spark.stage"),
)
"""The modules that ask whether a session runs."""
OFFSETS = b'v1\n{"batchWatermarkMs":0}\n1'


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A checkpoint: two starts, epochs 0 and 1, of which Spark has committed the first; a copy of each start."""
    for module in ASKING:  # another test of this process may have left a session
        monkeypatch.setattr(f"epochal.{module}.running_session", lambda: None)
    with ObjectServer() as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        log = ObjectLog(f"{WHERE}/epochal/log")
        records: list[Record] = [started_by(1), decided(0), decided(1), started_by(2)]
        for position, record in enumerate(records):
            assert log.append(position, record)
        started.objects.update(
            {
                "checkpoint/metadata": json.dumps({"id": "q1"}).encode(),
                "checkpoint/offsets/0": OFFSETS,
                "checkpoint/offsets/1": OFFSETS,
                "checkpoint/commits/": b"",  # Hadoop's mark of a folder
                "checkpoint/commits/0": b"v1\n{}",
                "checkpoint/epochal/copies/1/1-11/part-0.parquet": b"PAR1",
                "checkpoint/epochal/copies/1/1-11/_temporary/0/": b"",
                "checkpoint/epochal/copies/1/2-22/part-0.parquet": b"PAR1",
                "checkpoint/epochal/copies/2/": b"",
            }
        )
        yield started


def started_by(generation: int) -> Fence:
    return Fence(Actor(generation, 11 * generation), Query("app", "q1", f"r{generation}", WHERE), 0)


def decided(epoch: int) -> Commit:
    record = commit(epoch)
    decision = replace(record.decision, fingerprint=hashlib.sha256(OFFSETS).hexdigest())
    [(name, part)] = record.participants.items()
    vote = replace(part, committable=replace(part.committable, decision=decision))
    return replace(record, decision=decision, participants={name: vote}, offsets=OFFSETS.decode())


def job(folder: Path, log: str = "None") -> str:
    (folder / "a_job.py").write_text(JOB.format(log=log))
    return f"{folder / 'a_job.py'}:pipeline"


def status(*words: str, code: int) -> Json:
    told: Json = json.loads(run("status", WHERE, *words, "--json", code=code))
    return told


def test_status_reads_sparks_own_files(server: ObjectServer) -> None:
    told = status(code=FINE)
    assert told["spark"] == {"planned": 1, "committed": 0}
    assert told["notes"] == ["the sinks were not asked: give --pipeline, or set EPOCHAL_PIPELINE"]
    del server.objects["checkpoint/metadata"]
    assert "Spark's file metadata is missing" in status(code=FINE)["notes"][1]


@pytest.mark.usefixtures("server")
def test_status_asks_what_spark_will_ask(tmp_path: Path) -> None:
    """With the query's id and the offsets of the epoch that Spark runs next."""
    told = status("--pipeline", job(tmp_path), code=UNKNOWN)
    assert told["spark"] == {"planned": 1, "committed": 0}
    assert [note for note in told["notes"] if "not read" in note] == []


def test_clean_removes_the_copies_of_dead_starts(server: ObjectServer, tmp_path: Path) -> None:
    pipeline = ("--pipeline", job(tmp_path))
    copies = json.loads(run("clean", WHERE, *pipeline, "--json", code=UNKNOWN))["copies"]
    assert copies == {"removable": ["1/1-11"], "done": [], "why": None}
    cleaned = json.loads(run("clean", WHERE, *pipeline, "--yes", "--json", code=UNKNOWN))["copies"]
    assert cleaned["done"] == ["removed 1 copies"]
    kept = [name for name in server.names("checkpoint/epochal/copies/") if not name.endswith("/")]
    assert kept == ["1/2-22/part-0.parquet"]
    assert json.loads(run("clean", WHERE, *pipeline, "--json", code=UNKNOWN))["copies"]["removable"] == []


@pytest.mark.usefixtures("server")
def test_verify_looks_at_sparks_own_files(tmp_path: Path) -> None:
    told = json.loads(run("verify", WHERE, "--pipeline", job(tmp_path), "--json", code=UNKNOWN))
    assert [line for line in told["unchecked"] if line.startswith("Spark's own files")] == []


@pytest.mark.usefixtures("server")
def test_the_doctor_compares_the_log_with_the_sinks(tmp_path: Path) -> None:
    """It comes as far as the sink, whose server is away."""
    told = json.loads(run("doctor", WHERE, "--pipeline", job(tmp_path), "--json", code=UNKNOWN))
    found = {each["what"]: each for each in told["findings"] if each["of"] == "checkpoint"}
    assert found["epoch log"]["value"].endswith("4 records, 2 starts, last epoch 1")
    assert found["log and sinks agree"]["verdict"] == "unknown", "and not: not asked"


@pytest.mark.remedy(
    "the files of the checkpoint cannot be reached: …",
    "set the credentials of the store for this command, and AWS_ENDPOINT_URL_S3 for a store that is not AWS; or ask"
    " from a process with a SparkSession",
)
@pytest.mark.usefixtures("server")
def test_a_log_elsewhere_is_read_although_the_checkpoint_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was not read is said, with the reason."""
    pipeline = ("--pipeline", job(tmp_path, f"epochal.checkpoints.files.FilesLog({str(tmp_path / 'log')!r})"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobodys")
    told = status(*pipeline, code=UNKNOWN)
    assert told["spark"] == {"planned": None, "committed": None}
    [note] = [note for note in told["notes"] if note.startswith("Spark's own files were not read: ")]
    assert "cannot be reached" in note
    assert "InvalidAccessKeyId" in note
    copies = json.loads(run("clean", WHERE, *pipeline, "--json", code=UNKNOWN))["copies"]
    assert "the copies were not looked at: the files of the checkpoint cannot be reached" in copies["why"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    assert status(*pipeline, code=UNKNOWN)["spark"] == {"planned": 1, "committed": 0}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobodys")
    assert "InvalidAccessKeyId" in error_of("status", WHERE, code=USAGE)
