"""A Delta whose private parts may be others than those that are called is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from epochal.coordinator.errors import Misconfigured
from epochal.coordinator.versions import DELTA_JAR
from epochal.sinks.delta import DeltaSink, jvm
from tests.integration.delta.support import query


@pytest.fixture
def delta(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of the session's Delta, which no sink has tried yet."""
    monkeypatch.setattr(jvm, "_tested", set())
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


@pytest.mark.parametrize("tried", ["3.4.0", "4.5.0", "5.4.0"])
def test_an_unknown_version_is_refused(delta: str, tried: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jvm, "DELTA_JAR", tried)
    assert refusal(tmp_path) == (
        f"sink 'out': Delta {delta} on the Spark session is not one that this Epochal was tried with\n"
        f"  State: tried with {tried}\n"
        f"  Help: use Delta {tried}"
    )


def test_another_patch_of_a_known_version_is_not(
    delta: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    major, minor, _ = delta.split(".")
    monkeypatch.setattr(jvm, "DELTA_JAR", f"{major}.{minor}.99")
    jvm.self_test(spark, "out")
    assert jvm._tested == {spark.sparkContext.applicationId}


@pytest.mark.parametrize(
    ("part", "value", "state"),
    [
        (
            "_TRANSACTION_METHODS",
            {*jvm._TRANSACTION_METHODS, "voteLater", "abstain"},
            "OptimisticTransaction has no ['abstain', 'voteLater']",
        ),
        (
            "_AN_ADD",
            {**jvm._AN_ADD, "prepared": True},
            "an action does not survive JSON: {'prepared': True}",
        ),
    ],
)
def test_private_parts_that_changed_are_refused(
    delta: str, part: str, value: object, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jvm, part, value)
    assert refusal(tmp_path) == (
        f"sink 'out': Delta {delta} on the Spark session is not one that this Epochal was tried with\n"
        f"  State: {state}\n"
        f"  Help: use Delta {DELTA_JAR}"
    )
