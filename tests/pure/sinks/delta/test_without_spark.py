"""What a Delta sink says and refuses in a process without Spark, and before Spark is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from epochal.coordinator.model.epoch import Actor, Copy, Decision, Epoch, Marker, Query, SinkState
from epochal.coordinator.model.errors import Fenced, Misconfigured, OutcomeUnknown, PrepareRefused, SinkUnavailable
from epochal.sinks import DeltaSink
from epochal.sinks.delta import fencing, jvm, preparing, self_test, sink, without_spark
from epochal.sinks.delta.core import CommitResult, CommitStatus
from epochal.sinks.delta.target import Target
from tests.remedies import installed_by

ONE, TWO = Actor(1, 11), Actor(2, 22)
QUERY = Query("app", "q1", "r1", "file:/checkpoint")
TABLE = Path(__file__).parents[3] / "real" / "sinks" / "formats" / "delta-v1"
NAMED = Target.of(None, "lake.flights")


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (jvm, sink, fencing):
        monkeypatch.setattr(module, "running_session", lambda: None)


@pytest.mark.remedy(
    "table=… is a name in Spark's catalog, and no Spark runs in this process",
    "ask from a process with a SparkSession, or give the sink the path of the table and its own name=",
)
@pytest.mark.remedy(
    "… is a name in Spark's session catalog, and no Spark runs in this process",
    "start a SparkSession, or give the path of the table: DeltaSink(path, name=…)",
)
def test_a_name_of_a_catalog_is_read_by_spark_alone() -> None:
    with pytest.raises(SinkUnavailable, match=r"table='lake.flights' is a name in Spark's catalog"):
        without_spark.located(NAMED, "out")
    with pytest.raises(Misconfigured, match=r"lake.flights is a name in Spark's session catalog") as refused:
        DeltaSink(table="lake.flights", name="out").epochs("app")
    assert refused.value.help.endswith("DeltaSink(path, name='out')")
    by_path = DeltaSink(str(TABLE), name="out")
    assert [row.position for row in by_path.epochs("app")] == [1]
    assert without_spark.located(Target.of(str(TABLE), None), "out") == str(TABLE)


@pytest.mark.remedy(
    "delta-rs reads no Delta table at …",
    "name the path of a table, on a file system that delta-rs knows; or start a SparkSession",
)
def test_a_folder_without_a_table_has_no_epochs(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="delta-rs reads no Delta table at"):
        DeltaSink(str(tmp_path), name="out").epochs("app")
    assert DeltaSink(str(TABLE), name="out").epochs("app").rows


@pytest.mark.remedy("without Spark a Delta table is read by the package deltalake: …", "pip install 'epochal[console]'")
@pytest.mark.remedy(
    "no Spark runs in this process, and the package that reads Delta without it is missing: …",
    "pip install 'deltalake>=…', or start a SparkSession",
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    target, sink = Target.of(str(TABLE), None), DeltaSink(str(TABLE), name="out")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "deltalake", None)
        with pytest.raises(Misconfigured, match="read by the package deltalake") as refused:
            without_spark.Snapshot(target, "out")
        with pytest.raises(Misconfigured, match="the package that reads Delta without it is missing") as unread:
            sink.epochs("app")
    for error in (refused, unread):
        assert "deltalake" in installed_by(error.value.help)
    assert without_spark.Snapshot(target, "out").version > 0
    assert [row.position for row in sink.epochs("app")] == [1]


@pytest.mark.parametrize("error", [OSError("disk gone"), ValueError("no such feature"), NotImplementedError("later")])
def test_a_table_that_delta_rs_cannot_read_is_unavailable(error: Exception) -> None:
    with (
        pytest.raises(SinkUnavailable, match=f"cannot be read without Spark: {error}"),
        without_spark.reading("/lake/flights", "out"),
    ):
        raise error


def test_nothing_is_written_without_spark() -> None:
    with pytest.raises(NotImplementedError):
        without_spark.Folder(Target.of("/lake/flights", None), "out").write("a/note", "text")


def test_what_writes_needs_a_session_and_says_so() -> None:
    with pytest.raises(Misconfigured, match="there is no Spark session in this process, and DeltaSink needs one"):
        DeltaSink("/lake/flights", name="out").fence(QUERY, ONE)


def test_a_name_that_the_catalog_does_not_have_has_no_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "running_session", lambda: cast("Any", object()))
    monkeypatch.setattr(Target, "location", lambda *_: None)
    with pytest.raises(Misconfigured, match=r"there is no Delta table called lake.flights"):
        _ = DeltaSink(table="lake.flights", name="out").location


def test_a_session_without_delta_is_told_how_to_start_with_it() -> None:
    spark = SimpleNamespace(
        version="4.2.0", _jvm=SimpleNamespace(), sparkContext=SimpleNamespace(applicationId="without-delta")
    )
    setattr(spark._jvm, f"{jvm.DELTA}DeltaLog", object())
    with pytest.raises(Misconfigured, match="the Spark session has no Delta") as refused:
        self_test.check(cast("Any", spark), "out")
    assert refused.value.state == "Delta's classes are not there"


def test_a_merge_needs_the_durable_copy() -> None:
    core, never = DeltaSink("/lake/flights", name="out")._core, cast("Any", None)
    with pytest.raises(PrepareRefused, match="has no durable copy to merge"):
        preparing.prepare_merge(core, never, never, never, Epoch(Decision("q1", 0, ONE, "f"), 1), never, ONE)


def test_only_the_owner_of_the_fence_prepares_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    core, never = DeltaSink("/lake/flights", name="out")._core, cast("Any", None)
    epoch = Epoch(Decision("q1", 0, ONE, "f"), 1, copy=Copy("file:/copy", (), ""))
    monkeypatch.setattr(core, "state", lambda _: SinkState("delta:1", TWO, None))
    with pytest.raises(Fenced):
        preparing.prepare_merge(core, never, never, never, epoch, never, ONE)


# --- a marker that is written by hand ------------------------------------------------------------------------


@pytest.fixture
def marking(monkeypatch: pytest.MonkeyPatch) -> Callable[[CommitStatus], DeltaSink]:
    """A sink whose table never shows the marker, however often it is written; each request has this answer."""

    def made(answer: CommitStatus) -> DeltaSink:
        made = DeltaSink("/lake/flights", name="out")
        core, held = made._core, SinkState("delta:1", ONE, Marker(1, 7))
        monkeypatch.setattr(core, "table", lambda: None)
        monkeypatch.setattr(core, "begin", lambda *_, **__: None)
        monkeypatch.setattr(core, "existing", lambda txn: txn)
        monkeypatch.setattr(core, "own_state", lambda _: held)
        monkeypatch.setattr(core, "put", lambda *_: CommitResult(answer, "as it was"))
        monkeypatch.setattr(fencing, "marks_of", lambda *_: [])
        return made

    return made


def test_only_the_owner_of_the_fence_writes_a_marker(marking: Callable[[CommitStatus], DeltaSink]) -> None:
    with pytest.raises(Fenced):
        marking(CommitStatus.DONE).mark(QUERY, Marker(2, 8), TWO)


@pytest.mark.parametrize(
    ("answer", "error"), [(CommitStatus.UNKNOWN, OutcomeUnknown), (CommitStatus.CONFLICT, SinkUnavailable)]
)
def test_a_marker_that_no_snapshot_shows_is_not_taken_for_written(
    marking: Callable[[CommitStatus], DeltaSink], answer: CommitStatus, error: type[Exception]
) -> None:
    with pytest.raises(error):
        marking(answer).mark(QUERY, Marker(2, 8), ONE)
