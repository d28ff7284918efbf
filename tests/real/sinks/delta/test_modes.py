"""Epochs that replace what the table holds, and epochs that are merged into it: what readers see, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.coordinator.model.epoch import Committable
from epochal.coordinator.model.errors import (
    CommitInDoubt,
    Fenced,
    Misconfigured,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.sinks.delta import Append, DeltaSink, Merge, Overwrite, committing
from epochal.sinks.delta.jvm import JavaFailure
from epochal.sinks.protocol import CommitOutcome, RedoSink, ReplacingSink
from tests.real.sinks.delta import support
from tests.real.sinks.delta.support import ONE, TWO, Start, commit_while, query

KEYED = Merge(key="id")
SHAPE = "id string, a string, seq long, gone boolean"
"""Rows of a change feed."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


def changes(spark: SparkSession, *given: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(given), SHAPE).coalesce(1)


def ready(spark: SparkSession, path: Path, mode: Any, shape: str = SHAPE, made: str | None = None) -> Start:
    """A start whose table is there (``made``: by this statement), checked and fenced."""
    schema = spark.createDataFrame([], shape).schema
    if made is not None:
        support.sql(spark, path, made)
    sink = DeltaSink(str(path), name="out", mode=mode)
    sink.create(query("app"), schema)
    sink.check(query("app"), schema)
    return Start(spark, path, mode=mode).fenced()


def rows(path: Path) -> list[tuple[Any, ...]]:
    """All rows, by delta-rs, in the order of their first column."""
    return sorted(tuple(row.values()) for row in support.read(path).to_pylist())


def refused(start: Start, frame: DataFrame, position: int = 1) -> PrepareRefused:
    with pytest.raises(PrepareRefused) as error:
        start.prepare(frame, position)
    return error.value


# --- which there are ------------------------------------------------------------------------------


def test_a_mode_is_a_capability_and_no_mode_is_an_error(tmp_path: Path) -> None:
    sinks = {type(mode): DeltaSink(str(tmp_path), mode=mode) for mode in (Append(), Overwrite(), KEYED)}
    assert [kind for kind, sink in sinks.items() if isinstance(sink, RedoSink)] == [Merge]
    assert [kind for kind, sink in sinks.items() if isinstance(sink, ReplacingSink)] == [Overwrite]
    with pytest.raises(Misconfigured, match="mode='append' is none of the modes"):
        DeltaSink(str(tmp_path), mode="append")  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match=r"Merge\(key=\.\.\.\) names no column"):
        DeltaSink(str(tmp_path), mode=Merge(key=[]))


# --- overwrite ------------------------------------------------------------------------------------


def test_an_epoch_replaces_all_that_the_table_holds(spark: SparkSession, path: Path) -> None:
    start = ready(spark, path, Overwrite(), "id string, n long")
    shape = "id string, n long"
    support.foreign_append_by_delta_rs(path, [{"id": "x", "n": 0}])
    start.show(spark.createDataFrame([("a", 1), ("b", 2)], shape).coalesce(1))
    assert rows(path) == [("a", 1), ("b", 2)]
    vote = start.prepare(spark.createDataFrame([("b", 3)], shape).coalesce(1), 2)
    assert rows(path) == [("a", 1), ("b", 2)]
    start.commit(vote)
    assert rows(path) == [("b", 3)]
    assert start.commit(vote) is CommitOutcome.ALREADY_COMMITTED
    start.show(spark.createDataFrame([], shape), 3)
    assert rows(path) == []
    history = support.newest_commit(path)
    assert (history["operation"], history["operationParameters"]["outputMode"]) == ("STREAMING UPDATE", "Complete")


@pytest.mark.wide
def test_what_others_do_while_an_epoch_replaces(spark: SparkSession, path: Path) -> None:
    """Each is a conflict, and the epoch replaces that, too."""
    shape = "id string, n long"
    start = ready(spark, path, Overwrite(), shape)
    for key in "xy":
        support.foreign_append(spark, path, [(key, 0)], shape)
    vote = start.prepare(spark.createDataFrame([("a", 1)], shape).coalesce(1))
    assert commit_while(start, vote, lambda: support.sql(spark, path, "OPTIMIZE {t}")) is CommitOutcome.COMMITTED
    assert rows(path) == [("a", 1)]
    vote = start.prepare(spark.createDataFrame([("b", 2)], shape).coalesce(1), 2)
    commit_while(start, vote, lambda: support.foreign_append(spark, path, [("z", 0)], shape))
    assert rows(path) == [("b", 2)]


@pytest.mark.wide
def test_files_of_an_overwrite_that_are_gone_or_no_longer_fit_are_lost(spark: SparkSession, path: Path) -> None:
    """As of an append: its rows are redone, and until then the table holds what it held."""
    shape = "id string, n long"
    start = ready(spark, path, Overwrite(), shape)
    start.show(spark.createDataFrame([("a", 1)], shape).coalesce(1))
    vote = start.prepare(spark.createDataFrame([("b", 7)], shape).coalesce(1), 2)
    support.sql(spark, path, "ALTER TABLE {t} ADD CONSTRAINT small CHECK (n < 5)")
    with pytest.raises(PreparedLost, match="the table has changed since: constraints"):
        start.commit(vote)
    vote = start.prepare(spark.createDataFrame([("b", 2)], shape).coalesce(1), 2)
    support.vacuum_everything(spark, path)
    with pytest.raises(PreparedLost, match="1 of 1 files are gone"):
        start.commit(vote)
    assert rows(path) == [("a", 1)]


def test_a_newer_fence_bars_an_older_overwrite(spark: SparkSession, path: Path) -> None:
    shape = "id string, n long"
    start = ready(spark, path, Overwrite(), shape)
    start.show(spark.createDataFrame([("a", 1)], shape).coalesce(1))
    vote = start.prepare(spark.createDataFrame([("b", 2)], shape).coalesce(1), 2)
    with pytest.raises(Fenced):
        commit_while(start, vote, lambda: Start(spark, path, TWO, mode=Overwrite()).fenced())
    assert rows(path) == [("a", 1)]


@pytest.mark.parametrize("mode", [Overwrite(), KEYED], ids=["overwrite", "merge"])
def test_a_table_that_only_grows_is_refused(spark: SparkSession, path: Path, mode: Any) -> None:
    support.sql(spark, path, "CREATE TABLE {t} (id string) USING delta TBLPROPERTIES ('delta.appendOnly' = 'true')")
    frame = spark.createDataFrame([("a",)], "id string")
    start = Start(spark, path, mode=mode)
    with pytest.raises(Misconfigured, match=r"delta\.appendOnly = 'true'"):
        start.sink.check(query("app"), frame.schema)
    assert "delta.appendOnly = 'true'" in refused(start.fenced(), frame).what


# --- merge ----------------------------------------------------------------------------------------


def test_merge_inserts_updates_and_deletes(spark: SparkSession, path: Path) -> None:
    start = ready(spark, path, Merge(key="id", delete_when="gone"))
    start.show(changes(spark, ("1", "one", 1, None), ("2", "two", 1, False), ("3", "three", 1, True)))
    assert rows(path) == [("1", "one", 1), ("2", "two", 1)]
    vote = start.prepare(changes(spark, ("1", "uno", 2, False), ("2", None, 2, True), ("9", None, 2, True)), 2)
    assert rows(path) == [("1", "one", 1), ("2", "two", 1)]
    written = support.data_files(path)
    start.commit(vote)
    assert rows(path) == [("1", "uno", 2)]
    assert support.data_files(path) == written  # what was tried is what is shown
    assert start.commit(vote) is CommitOutcome.ALREADY_COMMITTED
    assert support.notes(path) == []
    history = support.newest_commit(path)
    assert (history["operation"], history["operationParameters"]["outputMode"]) == ("STREAMING UPDATE", "Update")


def test_the_last_row_by_the_declared_order_wins_and_only_what_may_change_is_changed(
    spark: SparkSession, path: Path
) -> None:
    """Through every partition; seq is not in the table, and what update= does not name stays."""
    made = (
        "CREATE TABLE {t} (`k.1` string, `wert ``x` string, more string) USING delta"
        " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    mode = Merge(key="k.1", update=["wert `x"], order_by=["seq"], delete_when="gone")
    shape = "`k.1` string, `wert ``x` string, more string, seq long, gone boolean"
    start = ready(spark, path, mode, shape, made)
    support.foreign_append(
        spark, path, [(key, "old", "old") for key in "048"], "`k.1` string, `wert ``x` string, more string"
    )
    given = [(str(n % 5), f"{n:02}", "new", n // 5, n % 5 == 4 and n > 20) for n in range(30)]
    start.show(spark.createDataFrame(given, shape).repartition(3))
    assert sorted(map(tuple, spark.sql(f"SELECT * FROM delta.`{path}`").collect())) == [
        ("0", "25", "old"),
        ("1", "26", "new"),
        ("2", "27", "new"),
        ("3", "28", "new"),
        ("8", "old", "old"),
    ]


def test_a_column_of_the_order_is_written_however_the_table_spells_it(spark: SparkSession, path: Path) -> None:
    schema = "id string, a string, seq long"
    start = ready(
        spark,
        path,
        Merge(key="id", order_by="seq"),
        schema,
        "CREATE TABLE {t} (id string, a string, SEQ long) USING delta",
    )
    start.show(spark.createDataFrame([("1", "x", 1), ("1", "y", 2)], schema))
    assert rows(path) == [("1", "y", 2)]


@pytest.mark.wide
def test_an_update_of_nothing_keeps_the_row_that_is_there(spark: SparkSession, path: Path) -> None:
    start = ready(spark, path, Merge(key="id", update=()), "id string, a string")
    start.show(spark.createDataFrame([("1", "first"), ("2", "first")], "id string, a string"))
    start.show(spark.createDataFrame([("2", "second"), ("3", "second")], "id string, a string"), 2)
    assert rows(path) == [("1", "first"), ("2", "first"), ("3", "second")]


def test_what_can_never_be_merged_is_refused_at_start(spark: SparkSession, path: Path) -> None:
    schema = changes(spark).schema
    for mode, named in (
        (Merge(key="nr"), "key= names the column 'nr', which is not in the rows"),
        (Merge(key="id", delete_when="a"), "delete_when= names the column 'a', which is string"),
    ):
        sink = DeltaSink(str(path), mode=mode)
        for verb in (sink.create, sink.check):
            if verb == sink.create or path.exists():
                with pytest.raises(Misconfigured, match=named):
                    verb(query("app"), schema)
    sink = DeltaSink(str(path), mode=Merge(key="id", delete_when="gone"))
    sink.create(query("app"), schema)
    sink.check(query("app"), schema)
    with pytest.raises(Misconfigured, match="column gone: the table has no such column"):
        DeltaSink(str(path), mode=KEYED).check(query("app"), schema)


def test_rows_that_cannot_be_merged_are_refused_by_key_and_count(spark: SparkSession, path: Path) -> None:
    start = ready(spark, path, Merge(key=["id", "a"], delete_when="gone"))
    error = refused(start, changes(spark, ("1", None, 1, None), (None, None, 1, None), ("2", "x", None, None)))
    assert error.what == "rows with NULL in a column of key= or order_by=: column 'id': 1, column 'a': 2"
    error = refused(start, changes(spark, *[("2", "x", n, None) for n in range(3)], *[("3", "x", 1, None)] * 2))
    assert error.what == "key (id, a) = (2, x): 3 rows of one epoch"
    assert error.state == "2 such keys: (2, x): 3 rows, (3, x): 2 rows"
    assert "Merge(order_by=...)" in error.help
    ordered = Start(spark, path, mode=Merge(key="id", order_by="seq", delete_when="gone"))
    given = [("1", "x", 5, None), ("1", "y", 5, None), ("2", "x", 4, None), ("2", "y", 4, None), ("2", "z", 6, None)]
    error = refused(ordered, changes(spark, *given))
    assert error.what == "key (id) = (1): 2 rows that are all last by order_by="
    assert rows(path) == []


def test_what_the_table_does_not_take_is_refused_before_the_decision(spark: SparkSession, path: Path) -> None:
    """By a try of all of it: the row as it would be after the update is what the constraint is about."""
    start = ready(spark, path, Merge(key="id", update=["n"]), "id string, n long, top long")
    shape = "id string, n long, top long"
    support.sql(spark, path, "ALTER TABLE {t} ADD CONSTRAINT small CHECK (n < top)")
    start.show(spark.createDataFrame([("1", 1, 5)], shape).coalesce(1))
    error = refused(start, spark.createDataFrame([("1", 7, 9)], shape).coalesce(1), 2)
    assert (error.what, error.sink, error.epoch) == ("rows violate a constraint of the table", "out", 1)
    assert "small" in str(error.state)
    assert rows(path) == [("1", 1, 5)]


# --- what happens between vote and commit ---------------------------------------------------------


def foreign_delete(spark: SparkSession, path: Path) -> None:
    support.sql(spark, path, "DELETE FROM {t} WHERE id = 'x'")


def foreign_update(spark: SparkSession, path: Path) -> None:
    support.sql(spark, path, "UPDATE {t} SET a = 'theirs' WHERE id = 'y'")


def foreign_insert_of_a_key(spark: SparkSession, path: Path) -> None:
    """What was tried before would insert it a second time."""
    support.foreign_append(spark, path, [("1", "theirs")], "id string, a string")


def optimize(spark: SparkSession, path: Path) -> None:
    support.sql(spark, path, "OPTIMIZE {t}")


def new_column(spark: SparkSession, path: Path) -> None:
    support.sql(spark, path, "ALTER TABLE {t} ADD COLUMN more int")


IN_THE_WINDOW = {
    foreign_delete: [("1", "one"), ("y", "ours")],
    foreign_update: [("1", "one"), ("x", "old"), ("y", "ours")],
    foreign_insert_of_a_key: [("1", "one"), ("x", "old"), ("y", "ours")],
    optimize: [("1", "one"), ("x", "old"), ("y", "ours")],
    new_column: [("1", "one", None), ("x", "old", None), ("y", "ours", None)],
}


@pytest.mark.wide
@pytest.mark.parametrize(("strike", "after"), IN_THE_WINDOW.items(), ids=[s.__name__ for s in IN_THE_WINDOW])
def test_a_merge_is_made_again_where_the_table_has_changed(
    spark: SparkSession, path: Path, strike: Callable[[SparkSession, Path], None], after: list[tuple[Any, ...]]
) -> None:
    shape = "id string, a string"
    start = ready(spark, path, KEYED, shape)
    for key in "xy":
        support.foreign_append(spark, path, [(key, "old")], shape)
    vote = start.prepare(spark.createDataFrame([("1", "one"), ("y", "ours")], shape).coalesce(1))
    strike(spark, path)
    assert start.commit(vote) is CommitOutcome.COMMITTED
    assert rows(path) == after


def test_a_merge_is_made_again_where_the_table_was_put_back(spark: SparkSession, path: Path) -> None:
    """Its log ends earlier than when the merge was tried, whose commit would leave a gap in it."""
    shape = "id string, a string"
    start = ready(spark, path, KEYED, shape)
    support.foreign_append(spark, path, [("y", "old")], shape)
    vote = start.prepare(spark.createDataFrame([("1", "one"), ("y", "ours")], shape).coalesce(1))
    newest = max(file.stem for file in (path / "_delta_log").glob("*.json"))
    for file in (path / "_delta_log").glob(f"*{newest}*"):
        file.unlink()
    assert start.commit(vote) is CommitOutcome.COMMITTED
    assert rows(path) == [("1", "one"), ("y", "ours")]


def test_a_merge_whose_files_are_gone_is_made_again(spark: SparkSession, path: Path) -> None:
    """VACUUM by a client that writes nothing of it into the log.  What the epoch deletes is deleted again, too."""
    start = ready(spark, path, Merge(key="id", delete_when="gone"))
    support.foreign_append(spark, path, [("y", "old", 0), ("z", "old", 0)], "id string, a string, seq long")
    before = support.data_files(path)
    vote = start.prepare(changes(spark, ("1", "one", 1, None), ("y", "ours", 1, False), ("z", None, 1, True)))
    tried = support.data_files(path) - before
    assert tried
    for file in tried:
        (path / file).unlink()
    assert start.commit(vote) is CommitOutcome.COMMITTED
    assert rows(path) == [("1", "one", 1), ("y", "ours", 1)]


@pytest.mark.parametrize(
    "strike",
    [pytest.param(foreign_delete, marks=pytest.mark.wide), foreign_insert_of_a_key],
    ids=["delete", "insert"],
)
def test_a_change_inside_the_commit_is_a_conflict_and_the_merge_is_made_again(
    spark: SparkSession, path: Path, strike: Callable[[SparkSession, Path], None]
) -> None:
    shape = "id string, a string"
    start = ready(spark, path, KEYED, shape)
    start.show(spark.createDataFrame([("x", "old"), ("y", "old")], shape).coalesce(1))
    vote = start.prepare(spark.createDataFrame([("1", "one"), ("y", "ours")], shape).coalesce(1), 2)
    commit_while(start, vote, lambda: strike(spark, path))
    kept = [("x", "old")] if strike is foreign_insert_of_a_key else []
    assert rows(path) == [("1", "one"), *kept, ("y", "ours")]


def test_a_newer_fence_bars_an_older_merge_even_the_one_that_was_tried(spark: SparkSession, path: Path) -> None:
    shape = "id string, a string"
    start = ready(spark, path, KEYED, shape)
    vote = start.prepare(spark.createDataFrame([("y", "ours")], shape).coalesce(1))
    newer = Start(spark, path, TWO, mode=KEYED)
    with pytest.raises(Fenced):
        commit_while(start, vote, lambda: newer.fenced())
    assert rows(path) == []
    assert newer.commit(vote) is CommitOutcome.COMMITTED
    assert rows(path) == [("y", "ours")]


@pytest.mark.wide
def test_a_table_that_no_longer_takes_decided_rows_is_in_doubt_until_it_does(spark: SparkSession, path: Path) -> None:
    shape = "id string, n long"
    start = ready(spark, path, KEYED, shape)
    vote = Committable.from_json(
        json.loads(json.dumps(start.prepare(spark.createDataFrame([("1", 7)], shape).coalesce(1)).to_json()))
    )
    support.sql(spark, path, "ALTER TABLE {t} ADD CONSTRAINT small CHECK (n < 5)")
    with pytest.raises(CommitInDoubt, match="the table does not take the decided rows") as doubt:
        start.commit(vote)
    assert "small" in str(doubt.value.state)
    assert rows(path) == []
    support.sql(spark, path, "ALTER TABLE {t} DROP CONSTRAINT small")
    assert Start(spark, path, ONE, mode=KEYED).commit(vote) is CommitOutcome.COMMITTED
    assert rows(path) == [("1", 7)]


@pytest.mark.wide
def test_a_merge_that_fails_for_no_reason_of_its_rows_is_tried_again(
    spark: SparkSession, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = "id string, n long"
    start = ready(spark, path, KEYED, shape)
    vote = start.prepare(spark.createDataFrame([("1", 7)], shape).coalesce(1))

    def broken(*_: object) -> object:
        raise JavaFailure("no space left on device", ["java.io.IOException"])

    start.sink._core.tried = None  # as in another process
    monkeypatch.setattr(committing, "merged_by_delta", broken)
    with pytest.raises(SinkUnavailable, match="the table cannot be read or written"):
        start.commit(vote)
    monkeypatch.undo()
    assert start.commit(vote) is CommitOutcome.COMMITTED
    assert rows(path) == [("1", 7)]


def test_decided_rows_are_not_bent_to_another_type(spark: SparkSession, path: Path) -> None:
    """MERGE itself would write the number as text."""
    shape = "id string, n long"
    start = ready(spark, path, KEYED, shape)
    vote = start.prepare(spark.createDataFrame([("1", 7)], shape).coalesce(1))
    other = spark.createDataFrame([("x", "text")], "id string, n string")
    other.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(path))
    with pytest.raises(CommitInDoubt, match="column n: the rows have bigint, the table has string"):
        start.commit(vote)
    assert rows(path) == [("x", "text")]


@pytest.mark.wide
def test_an_epoch_is_finished_in_the_mode_that_it_was_prepared_in(spark: SparkSession, path: Path) -> None:
    """mode= was changed while it was in doubt."""
    shape = "id string, n long"
    merging = ready(spark, path, KEYED, shape)
    merging.show(spark.createDataFrame([("a", 1)], shape).coalesce(1))
    vote = merging.prepare(spark.createDataFrame([("a", 2)], shape).coalesce(1), 2)
    replacing = Start(spark, path, mode=Overwrite())
    replacing.commit(vote)
    assert rows(path) == [("a", 2)]
    vote = replacing.prepare(spark.createDataFrame([("b", 3)], shape).coalesce(1), 3)
    appending = Start(spark, path)
    appending.commit(vote)
    assert rows(path) == [("b", 3)]
    vote = appending.prepare(spark.createDataFrame([("b", 4)], shape).coalesce(1), 4)
    merging.commit(vote)
    assert rows(path) == [("b", 3), ("b", 4)]


FEATURES = {
    "deletion vectors": "'delta.enableDeletionVectors' = 'true'",
    "change data feed": "'delta.enableChangeDataFeed' = 'true'",
    "column mapping and row tracking": "'delta.columnMapping.mode' = 'name', 'delta.enableRowTracking' = 'true'",
}


@pytest.mark.wide
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("mode", [Overwrite(), Merge(key="id", delete_when="gone")], ids=["overwrite", "merge"])
def test_features_of_the_table_are_deltas_own_business(
    spark: SparkSession, path: Path, mode: Any, features: str
) -> None:
    made = (
        "CREATE TABLE {t} (id string, n long, twice long GENERATED ALWAYS AS (n * 2)) USING delta"
        f" CLUSTER BY (id) TBLPROPERTIES ({features})"
    )
    shape = "id string, n long, gone boolean" if isinstance(mode, Merge) else "id string, n long"
    start = ready(spark, path, mode, shape, made)
    width = 3 if isinstance(mode, Merge) else 2
    start.show(spark.createDataFrame([("a", 1, None)[:width], ("b", 2, None)[:width]], shape).coalesce(1))
    start.show(spark.createDataFrame([("a", 3, None)[:width], ("b", 4, True)[:width]], shape).coalesce(1), 2)
    found = sorted(map(tuple, spark.sql(f"SELECT * FROM delta.`{path}`").collect()))
    assert found == ([("a", 3, 6)] if isinstance(mode, Merge) else [("a", 3, 6), ("b", 4, 8)])
    if "ChangeDataFeed" in features:
        feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
        told = sorted((r._commit_version, r.id, r.n, r._change_type) for r in feed.load(str(path)).collect())
        newest = [change[1:] for change in told if change[0] == told[-1][0]]
        if isinstance(mode, Merge):
            assert newest == [
                *(("a", 1, "update_preimage"), ("a", 3, "update_postimage")),
                ("b", 2, "delete"),
            ]
        else:
            assert newest == [
                *(("a", 1, "delete"), ("a", 3, "insert")),
                *(("b", 2, "delete"), ("b", 4, "insert")),
            ]
