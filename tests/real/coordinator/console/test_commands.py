"""Every command beside a real job: on three sinks that are fine, and on tampered ones; each test puts things back."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import fs

from epochal.coordinator.model.epoch import Actor, Query
from epochal.coordinator.model.errors import Fenced, SinkUnavailable
from epochal.sinks import DeltaSink
from epochal.sinks.delta import fencing, without_spark
from epochal.sinks.delta.core import Core
from epochal.sinks.inspection import inspection_of
from epochal.sinks.kafka.marker import MarkerTopic
from tests.real.coordinator.console.support import SINKS, Console, by_name
from tests.real.sinks.delta import support
from tests.real.sinks.kafka.support import hanging
from tests.real.sinks.postgres.support import observe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- all is fine ------------------------------------------------------------------------------------


def test_status_tells_where_each_sink_stands(console: Console) -> None:
    told = console.epochal("status", console.checkpoint, code=0)
    assert (told["spark"], told["error"], told["asked"]) == ({"planned": 2, "committed": 2}, None, True)
    assert (told["log"]["last_epoch"], told["log"]["last_is"], told["log"]["owner"]) == (
        2,
        "decided",
        str(console.newest),
    )
    for row in told["sinks"]:
        assert (row["position"], row["epoch"], row["lag_epochs"], row["in_doubt"]) == (3, 2, 0, None)
        assert (row["owner"], row["owner_is_newest"], row["error"]) == (str(console.newest), True, None)
        assert 0 <= row["lag_seconds"] < 600
        assert row["committed_at"].endswith("Z")
    assert [row["name"] for row in told["sinks"]] == list(SINKS)


def test_status_without_a_pipeline_says_that_the_sinks_were_not_asked(console: Console) -> None:
    told = console.epochal("status", console.checkpoint, "--pipeline", "", code=0)
    assert told["asked"] is False
    assert {row["name"]: row["visible_by_log"] for row in told["sinks"]} == dict.fromkeys(SINKS, 1)
    assert "the sinks were not asked" in console.told("status", console.checkpoint, "--pipeline", "", code=0)


def test_log_shows_fence_and_decisions(console: Console) -> None:
    told = console.epochal("log", console.checkpoint, "--offsets", "--committables", code=0)
    assert [(record["kind"], record["epoch"]) for record in told["records"]] == [
        ("fence", None),
        ("commit", 0),
        ("commit", 1),
        ("commit", 2),
    ]
    assert set(told["records"][1]["record"]["participants"]) == set(SINKS)
    assert '{"logOffset":2}' in told["records"][-1]["offsets"]
    assert len(console.epochal("log", console.checkpoint, "--last", 2, code=0)["records"]) == 2


@pytest.mark.wide
def test_verify_finds_nothing_and_says_what_it_did_not_check(console: Console) -> None:
    told = console.epochal("verify", console.checkpoint, code=0)
    assert told["findings"] == []
    for name in SINKS:
        assert f"{name}: the audit of 3 epochs (positions 1 to 3), 3 against the log" in told["checked"]
    for name in ("table", "lake"):
        assert any(text.startswith(f"{name}: row counts of 3 epochs") for text in told["checked"])
    assert any(text.startswith("topic: row counts; a topic does not tell") for text in told["unchecked"])
    assert "NOT checked: topic" in console.told("verify", console.checkpoint, code=0)


def test_reconcile_compares_what_two_systems_hold(console: Console) -> None:
    """Decimals, NaN, floats, times, bytes and NULL are one in both; a column that is not comparable is named."""
    told = console.epochal("reconcile", console.checkpoint, "table", "lake", code=0)
    assert (told["compared_by_content"], told["epochs"], told["differing"]) == (3, 3, [])
    expected = ["amount", "at", "day", "even", "id", "local", "name", "ratio", "raw", "small"]
    assert told["columns"] == expected
    assert list(told["columns_left_out"]) == ["many"]


@pytest.mark.wide
def test_reconcile_refuses_to_guess_where_content_has_no_epoch(console: Console) -> None:
    told = console.epochal("reconcile", console.checkpoint, "table", "topic", code=3)
    assert told["compared_by_content"] == 0
    assert any("a topic does not tell" in why for why in told["not_compared"])
    assert any("different columns" in why for why in told["not_compared"])
    told = console.epochal("reconcile", console.checkpoint, "table", "topic", "--audit", "--from", 1, "--to", 1, code=0)
    assert (told["from"], told["to"]) == (1, 1)


def test_sql_is_that_of_the_table(console: Console) -> None:
    told = console.epochal("sql", "--filter", "at", "--filter", "id", code=0)
    (made,) = [statement for statement in told["ddl"] if statement.startswith('CREATE TABLE "rows__rows"')]
    assert '"amount" numeric(16,6)' in made
    assert told["indexes"] == [
        'CREATE INDEX CONCURRENTLY ON "rows__rows" USING brin ("at")',
        'CREATE INDEX CONCURRENTLY ON "rows__rows" ("id")',
    ]
    assert 'GRANT SELECT ON "rows" TO <reader>' in told["grants"]
    assert told["view"] in told["ddl"][-1]


def test_sql_of_a_schema_runs_as_it_is_printed(console: Console) -> None:
    """In a database that has nothing."""
    told = console.epochal("sql", "--schema", "id bigint, at timestamp, a array<struct<x:int>>", code=0)
    from psycopg import connect

    with connect(console.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE empty")
    empty = console.dsn.replace(console.dsn.partition("?")[0].rpartition("/")[2], "empty", 1)
    try:
        with connect(empty) as connection:
            for statement in told["ddl"]:
                connection.execute(statement)
            connection.rollback()
    finally:
        observe(console.dsn, "DROP DATABASE empty")


@pytest.mark.wide
def test_no_transaction_is_open_and_nothing_is_left_over(console: Console) -> None:
    told = console.epochal("txns", console.checkpoint, code=0)
    assert [(sink["name"], sink["transactional_ids"], sink["open"]) for sink in told["sinks"]] == [
        ("topic", [f"epochal-{console.app}-topic"], [])
    ]
    cleaned = console.epochal("clean", console.checkpoint, code=0)
    assert [sink["leftovers"] for sink in cleaned["sinks"]] == [[], [], []]


def test_a_delta_table_is_the_same_with_and_without_spark(
    console: Console, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One way is a start's alone: where a session runs, delta-rs is never asked."""
    query = Query(console.app, "", "", "")
    assert spark.sparkContext.applicationId
    with monkeypatch.context() as patch:
        patch.setattr(without_spark.Snapshot, "__init__", lambda *_: pytest.fail("delta-rs was asked"))
        by_spark = DeltaSink(str(console.lake), name="lake").look(query)
    with monkeypatch.context() as patch:
        patch.setattr(fencing, "running_session", lambda: None)
        patch.setattr(Core, "begin", lambda *_, **__: pytest.fail("Spark was asked"))
        by_delta_rs = DeltaSink(str(console.lake), name="lake").look(query)
    assert by_spark.marker is not None
    assert by_delta_rs == by_spark


def test_rows_of_a_delta_table_are_not_read_ahead(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of Arrow that gives bytes back to Python while the command ends would abort it: exit 134, not 0."""
    threads: set[int] = set()

    class File:
        def __init__(self, file: object) -> None:
            self._file = file

        def __getattr__(self, name: str) -> object:
            threads.add(threading.get_ident())
            return getattr(self._file, name)

    class Watched(fs.DeltaStorageHandler):
        def open_input_file(self, path: str) -> pa.PythonFile:
            return pa.PythonFile(File(self._handler.open_input_file(path)), mode="r")

    monkeypatch.setattr(fs, "DeltaStorageHandler", Watched)
    inspection = DeltaSink(str(console.lake), name="lake").inspection(Query(console.app, "", "", ""))
    assert sorted(inspection.rows(1, ["id", "name"])) == [(1, "n1"), (2, "n2"), (3, "n3")]
    assert threads == {threading.get_ident()}


def test_a_feature_that_delta_rs_does_not_know_is_a_named_error(
    console: Console, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    shutil.copytree(console.lake, lake)
    features = ["timestampNtz", "feature-of-tomorrow"]
    support.upgrade(
        spark,
        lake,
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features},
    )
    with pytest.raises(SinkUnavailable, match="cannot be read without Spark: Kernel error"):
        without_spark.Snapshot(DeltaSink(str(lake), name="lake")._core.target, "lake")


def test_a_sink_that_does_not_answer_is_told_beside_the_others(console: Console, tmp_path: Path) -> None:
    other = tmp_path / "down.py"
    other.write_text(console.file.read_text().replace(f"{console.dsn!r}", "'postgresql://127.0.0.1:1/nowhere'"))
    told = console.epochal("status", console.checkpoint, "--pipeline", f"{other}:pipeline", code=3)
    rows = by_name(told["sinks"])
    assert rows["table"]["error"]["kind"] == "SinkUnavailable"
    assert rows["lake"]["epoch"] == rows["topic"]["epoch"] == 2
    assert told["error"] is None


# --- somebody has changed something -----------------------------------------------------------------


@pytest.mark.wide
def test_verify_finds_a_row_of_the_audit_that_is_gone(console: Console) -> None:
    observe(console.dsn, "CREATE TABLE kept AS SELECT * FROM epochal.epochs")
    with console.changed(
        "DELETE FROM epochal.epochs WHERE position = 2",
        "INSERT INTO epochal.epochs SELECT * FROM kept WHERE position = 2",
    ):
        (found,) = console.epochal("verify", console.checkpoint, code=1)["findings"]
        assert (found["kind"], found["sink"], found["position"]) == ("gap", "table", 2)
        told = console.epochal("reconcile", console.checkpoint, "table", "lake", code=1)
        assert told["lacking"] == {"table": [1], "lake": []}


def test_verify_finds_a_changed_marker_and_status_says_what_a_start_would(console: Console) -> None:
    with console.changed(
        "UPDATE epochal.sinks SET decision = decision - 1", "UPDATE epochal.sinks SET decision = decision + 1"
    ):
        kinds = {finding["kind"] for finding in console.epochal("verify", console.checkpoint, code=1)["findings"]}
        assert {"refused", "decision"} <= kinds
        told = console.epochal("status", console.checkpoint, code=1)
        assert told["error"]["kind"] == "CheckpointMismatch"
        assert by_name(told["sinks"])["table"]["error"]["sink"] == "table"
        assert console.epochal("clean", console.checkpoint, "--yes", code=1)["error"]["kind"] == "CheckpointMismatch"


@pytest.mark.parametrize(("column", "kind"), [("decision", "decision"), ("row_count", "count"), ("epoch", "decision")])
def test_verify_holds_the_audit_against_the_log(console: Console, column: str, kind: str) -> None:
    change = f"UPDATE epochal.epochs SET {column} = {column} {{}} 100 WHERE position = 2"
    with console.changed(change.format("+"), change.format("-")):
        findings = console.epochal("verify", console.checkpoint, code=1)["findings"]
    assert (kind, "table", 2) in {(found["kind"], found["sink"], found["position"]) for found in findings}


def test_verify_and_reconcile_find_rows_that_are_gone(console: Console) -> None:
    observe(console.dsn, "CREATE TABLE lost AS SELECT * FROM rows__rows WHERE id = 2")
    with console.changed("DELETE FROM rows__rows WHERE id = 2", "INSERT INTO rows__rows SELECT * FROM lost"):
        (found,) = console.epochal("verify", console.checkpoint, code=1)["findings"]
        assert (found["kind"], found["sink"], found["epoch"]) == ("count", "table", 0)
        told = console.epochal("reconcile", console.checkpoint, "table", "lake", code=1)
    (differing,) = told["differing"]
    assert differing["epoch"] == 0
    assert differing["rows"]["only in table"] == []
    (row,) = differing["rows"]["only in lake"]
    assert (row["id"], row["name"], row["amount"]) == (2, "n2", "0.5")


@pytest.mark.wide
def test_reconcile_finds_a_value_that_is_another(console: Console) -> None:
    with console.changed(
        "UPDATE rows__rows SET raw = '' WHERE id = 3", "UPDATE rows__rows SET raw = NULL WHERE id = 3"
    ):
        told = console.epochal("reconcile", console.checkpoint, "table", "lake", code=1)
        assert "only in lake" in console.told("reconcile", console.checkpoint, "table", "lake", code=1)
    rows = told["differing"][0]["rows"]
    assert [row["raw"] for row in (*rows["only in table"], *rows["only in lake"])] == ["", None]


@pytest.mark.wide
def test_reconcile_does_not_guess_about_files_that_were_rewritten(console: Console, spark: SparkSession) -> None:
    """Rows of an epoch that were deleted are nobody's epoch: the versions after it tell no more."""
    before = support.version(console.lake)
    support.sql(spark, console.lake, "DELETE FROM {t} WHERE id = 4")
    try:
        told = console.epochal("reconcile", console.checkpoint, "table", "lake", code=3)
        assert list(told["epochs_not_compared"]) == ["1"]
        assert told["compared_by_content"] == 2
    finally:
        support.sql(spark, console.lake, f"RESTORE TABLE {{t}} TO VERSION AS OF {before}")
        support.forget_snapshots(spark)


# --- what dead starts leave -------------------------------------------------------------------------


def test_an_open_transaction_is_seen_and_ended(console: Console) -> None:
    place = MarkerTopic(console.app, "topic")
    producer = Producer(
        {"bootstrap.servers": console.bootstrap, "transactional.id": place.transactional_id, "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for topic in (console.topic, place.topic):
        producer.produce(topic, b"{}", b"key", partition=0)
    assert producer.flush(30) == 0
    (sink,) = console.epochal("txns", console.checkpoint, code=1)["sinks"]
    found = {one["topic"]: one for one in sink["open"]}
    assert set(found) == {console.topic, place.topic}
    assert found[place.topic]["transactional_id"] == place.transactional_id
    assert found[console.topic]["transactional_id"] is None
    assert 0 <= found[console.topic]["age_seconds"] < 120
    shown = console.epochal("txns", console.checkpoint, "--abort", "topic", code=1)
    assert shown["done"][0].startswith("--yes would init")
    console.epochal("txns", console.checkpoint, "--abort", "topic", "--yes", "--wait", 0.1, code=0)
    assert hanging(console.bootstrap, console.topic) == hanging(console.bootstrap, place.topic) == []


def test_clean_removes_what_is_below_the_newest_fence_and_nothing_else(console: Console) -> None:
    newest = console.newest
    dead, living = Actor(newest.generation - 1, 7), newest
    _leave(console, dead, attempt=-1)
    _leave(console, living, attempt=-2)
    told = by_name(console.epochal("clean", console.checkpoint, code=0)["sinks"])
    for name in ("table", "lake"):
        assert {left["owner"]: left["removable"] for left in told[name]["leftovers"]} == {
            str(dead): True,
            str(living): False,
        }
    assert _left(console, dead) == _left(console, living) == (1, True, True)
    done = console.epochal("clean", console.checkpoint, "--yes", code=0)
    assert done["copies"]["removable"] == [f"9/{dead.generation}-{dead.token}"]
    assert (_left(console, dead), _left(console, living)) == ((0, False, False), (1, True, True))
    _forget(console, living)
    assert console.epochal("verify", console.checkpoint, code=0)["findings"] == []


@pytest.mark.parametrize("name", ["table", "lake"])
def test_only_under_the_newest_fence_is_anything_removed(console: Console, name: str) -> None:
    """As when a start takes over between the look and the removal."""
    (sink,) = (sink for sink in console.made().sinks if sink.name == name)
    inspection = inspection_of(sink, Query(console.app, "", "", ""))
    assert inspection is not None
    for other in (Actor(console.newest.generation + 1, 5), Actor(console.newest.generation, 5)):
        with pytest.raises(Fenced, match="the sink is owned by"):
            inspection.remove(other)
    inspection.close()


def _leave(console: Console, by: Actor, attempt: int) -> None:
    """What a start leaves that dies while it prepares the fourth epoch: rows, files with their note, a copy."""
    observe(console.dsn, f"INSERT INTO rows__rows (_epoch, _attempt, id) VALUES (4, {attempt}, {by.token % 1000})")
    observe(
        console.dsn,
        f"INSERT INTO epochal.attempts VALUES ('{console.app}', 'table', 4, {attempt}, {by.generation}, {by.token}, 1)",
    )
    (console.lake / _file(by)).write_text("rows")
    note = console.lake / "epochal-stage" / console.app / "lake" / f"4-{by.generation}-{by.token}-1.json"
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps([_file(by)]))
    _copy(console, by).mkdir(parents=True)


def _file(by: Actor) -> str:
    return f"part-{by.token}.parquet"


def _copy(console: Console, by: Actor) -> Path:
    return console.checkpoint / "epochal" / "copies" / "9" / f"{by.generation}-{by.token}"


def _left(console: Console, by: Actor) -> tuple[int, bool, bool]:
    ((rows,),) = observe(console.dsn, f"SELECT count(*) FROM rows__rows WHERE _epoch = 4 AND id = {by.token % 1000}")
    return int(rows), (console.lake / _file(by)).exists(), _copy(console, by).exists()


def _forget(console: Console, by: Actor) -> None:
    observe(console.dsn, "DELETE FROM rows__rows WHERE _epoch = 4")
    observe(console.dsn, "DELETE FROM epochal.attempts")
    (console.lake / _file(by)).unlink()
    shutil.rmtree(console.lake / "epochal-stage")
    shutil.rmtree(_copy(console, by).parent)
