"""A Delta whose private parts may be others than those that are called is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from epochal.coordinator.environment import versions
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.delta import DeltaSink, jvm, self_test
from tests.real.sinks.delta.support import query


@pytest.fixture
def delta(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of the session's Delta, which no sink has tried yet."""
    monkeypatch.setattr(self_test, "_passed", set())
    return str(spark._jvm.io.delta.package.VERSION())  # type: ignore[union-attr]


def refusal(folder: Path) -> str:
    """What a sink says that looks, twice: what was refused is not taken for tried."""
    told = []
    for _ in range(2):
        with pytest.raises(Misconfigured) as refused:
            DeltaSink(str(folder / "t"), name="out").look(query("app"))
        told.append(str(refused.value))
    assert told[0] == told[1]
    return told[0]


def known_are(monkeypatch: pytest.MonkeyPatch, low: str, below: str) -> None:
    """Of every series of Spark."""
    known = [
        replace(each, delta=(low, below), other_delta=versions.DELTA.reason, pairs=((each.tested[0], low),))
        for each in versions.SERIES
    ]
    monkeypatch.setattr(versions, "SERIES", known)
    monkeypatch.delenv(versions.AT_OWN_RISK, raising=False)  # `make test-matrix` names a Spark there


@pytest.mark.parametrize(("low", "below"), [("3.4", "3.5"), ("4.5", "4.6"), ("5.4", "5.5")])
def test_an_unknown_version_is_refused(
    delta: str, low: str, below: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known_are(monkeypatch, low, below)
    series = ".".join(delta.split(".")[:2])
    assert refusal(tmp_path) == (
        f"sink 'out': Delta {delta} is outside what Epochal supports: {low} to below {below}, "
        f"tested with {low} ({versions.DELTA.reason})\n"
        f"  State: this is Delta {delta}\n"
        f"  Help: use Delta {low} or newer, below {below}; or go on without any promise, with "
        f"EPOCHAL_AT_OWN_RISK='Delta {series}' in the driver's environment"
    )


def test_an_unknown_version_that_the_user_names_is_tried(
    delta: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known_are(monkeypatch, "5.4", "5.5")
    monkeypatch.setenv(versions.AT_OWN_RISK, f"Spark 9.9, Delta {delta}")
    self_test.check(spark, "out")
    assert self_test._passed == {spark.sparkContext.applicationId}
    assert f"Delta {delta} is outside what Epochal supports" in caplog.text


@pytest.mark.usefixtures("delta")
def test_another_patch_of_a_known_version_is_not(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [replace(each, pairs=((each.tested[0], "0.1"),)) for each in versions.SERIES]
    monkeypatch.setattr(versions, "SERIES", known)
    self_test.check(spark, "out")
    assert self_test._passed == {spark.sparkContext.applicationId}


@pytest.mark.parametrize(
    ("part", "value", "state"),
    [
        (
            "_METHODS",
            {**self_test._METHODS, "OptimisticTransaction": {"voteLater", "commit/2", "abstain"}},
            "OptimisticTransaction has no ['abstain', 'voteLater']",
        ),
        ("_METHODS", {**self_test._METHODS, "LogSegment": {"lastCommit/0"}}, "LogSegment has no ['lastCommit/0']"),
        (
            "_AN_ADD",
            {**self_test._AN_ADD, "prepared": True},
            "an action does not survive JSON: {'prepared': True}",
        ),
    ],
)
def test_private_parts_that_changed_are_refused(
    delta: str,
    spark: SparkSession,
    part: str,
    value: object,
    state: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(self_test, part, value)
    assert refusal(tmp_path) == (
        f"sink 'out': Delta {delta} on the Spark session is not one that this Epochal was tried with\n"
        f"  State: {state}\n"
        f"  Help: use Delta {versions.series_of(spark.version).delta_jar}"
    )


def test_a_spark_for_which_delta_has_no_release_is_refused(
    delta: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(versions, "SERIES", [replace(each, delta=None) for each in versions.SERIES])
    monkeypatch.delenv(versions.AT_OWN_RISK, raising=False)
    told = refusal(tmp_path)
    assert f"Delta {delta} is outside what Epochal supports: no version (" in told
    assert "or leave this sink out; or go on without any promise" in told


@pytest.mark.usefixtures("delta")
def test_a_session_whose_extensions_are_not_deltas_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(self_test, "EXTENSION", "org.example.Another")
    told = refusal(tmp_path)
    assert told.startswith("sink 'out': the Spark session has no Delta\n")
    assert "State: spark.sql.extensions does not name org.example.Another\n" in told


def test_a_file_that_cannot_be_read_is_no_missing_file(spark: SparkSession, tmp_path: Path) -> None:
    table = jvm.Table(spark, str(tmp_path))
    table.write("note", "as it was")
    assert (table.read("note"), table.read("no-such-note")) == ("as it was", None)
    (tmp_path / "note").write_text("changed!!")  # its checksum lies beside it
    with pytest.raises(jvm.JavaFailure) as failure:
        table.read("note")
    assert failure.value.is_a("ChecksumException")


def test_a_jvm_that_does_not_answer_is_a_failure_too() -> None:
    with pytest.raises(jvm.JavaFailure, match="no answer") as failure, jvm.java_errors():
        raise Py4JNetworkError("no answer")
    assert failure.value.is_a("Py4JNetworkError")


def test_the_page_on_deployment_says_what_a_session_needs() -> None:
    page = (Path(__file__).parents[4] / "docs" / "deployment.md").read_text()
    section = page.partition("## A session with Delta")[2].partition("\n## ")[0]
    assert ",".join(versions.delta_jars(versions.PYSPARK).coordinates) in section
    assert f"spark.sql.extensions={jvm.EXTENSION}" in section
    assert f"spark.sql.catalog.spark_catalog={jvm.CATALOG}" in section
