"""What a start asks Delta before it relies on it: that it is there, its version, and the private methods.

A future Delta, or the fork of a platform, thus ends a start with one readable error, before anything is written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from epochal.coordinator.environment import versions
from epochal.coordinator.model.epoch import Json
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.delta.jvm import CATALOG, DELTA, EXTENSION, Java, JavaFailure, java_errors, streaming_update
from epochal.sinks.spark import internals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AN_ADD: Json = {"path": "p", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
_A_REMOVE: Json = {"path": "p", "deletionTimestamp": 1, "dataChange": True, "partitionValues": {}, "size": 1}
_METHODS = {
    "OptimisticTransaction": {
        "txnVersion/1",
        "writeFiles/1",
        "commit/2",
        "metadata/0",
        "protocol/0",
        "readVersion/0",
        "filterFiles/0",
        "snapshot/0",
        "readTxn/0",
    },
    "commands.MergeIntoCommand": {
        "prepareMergeSource/6",
        "isInsertOnly/0",
        "findTouchedFiles/2",
        "writeOnlyInserts/4",
        "writeAllChanges/5",
        "writeDVs/3",
        "shouldWritePersistentDeletionVectors/2",
    },
    "DeltaLog": {"startTransaction/0", "startTransaction/2", "store/0"},
    "Snapshot": {"logSegment/0", "checksumOpt/0"},
    "LogSegment": {"lastCommitFileModificationTimestamp/0"},
    "storage.LogStore": {"apply/1"},
    "storage.DelegatingLogStore": {"getDelegate/1"},
    "storage.LogStoreAdaptor": {"logStoreImpl/0"},
}
"""Delta's classes, each with the methods that are called here, as name/number of arguments."""
_passed: set[str] = set()  # ids of the Spark applications that passed the self-test


def check(spark: SparkSession, sink: str) -> None:
    """Raise ``Misconfigured`` for a session without Delta, or with a Delta whose private API may differ.

    Checked once per Spark application.
    """
    from py4j.java_gateway import JavaClass

    application = spark.sparkContext.applicationId
    if application in _passed:
        return
    jvm: Java = spark._jvm
    if not isinstance(getattr(jvm, DELTA + "DeltaLog"), JavaClass):
        raise _no_delta(spark, sink, "Delta's classes are not there")
    if EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise _no_delta(spark, sink, f"spark.sql.extensions does not name {EXTENSION}")
    version = str(getattr(jvm, "io.delta.package").VERSION())
    versions.check(versions.on_spark(versions.DELTA, spark.version), version, sink)
    try:
        _try_private_parts(jvm)
    except (JavaFailure, TypeError, AttributeError) as error:
        raise _unknown_delta(spark, sink, version, str(error).partition("\n")[0]) from error
    _passed.add(application)


def tell(spark: SparkSession, sink: str) -> str:
    """Make the self-test; return what was found, for people."""
    check(spark, sink)
    jvm: Java = spark._jvm
    version = str(getattr(jvm, "io.delta.package").VERSION())
    return f"Delta {version}: {len(_METHODS)} classes have the methods that are called"


def _try_private_parts(jvm: Java) -> None:
    with java_errors():
        action_of = getattr(jvm, DELTA + "actions.Action")
        for action in (
            {"txn": {"appId": "a", "version": 1, "lastUpdated": 1}},
            {"add": _AN_ADD},
            {"remove": _A_REMOVE},
        ):
            there_and_back = json.loads(str(action_of.fromJson(json.dumps(action)).json()))
            kind = next(iter(action))
            lost = {key: value for key, value in action[kind].items() if there_and_back[kind].get(key) != value}
            if lost:
                raise TypeError(f"an action does not survive JSON: {lost}")
        streaming_update(jvm, "Append", "q", 0, "m")
        for name, wanted in _METHODS.items():
            missing = wanted - (internals.methods(jvm, DELTA + name) or frozenset())
            if missing:
                raise TypeError(f"{name} has no {sorted(missing)}")


def _no_delta(spark: SparkSession, sink: str, state: str) -> Misconfigured:
    its = versions.series_of(spark.version)
    way = (
        f"start it with spark.jars.packages={','.join(versions.delta_jars(spark.version).coordinates)} "
        f"spark.sql.extensions={EXTENSION} spark.sql.catalog.spark_catalog={CATALOG}"
        if its.delta
        else f"use Spark {versions.PYSPARK}, because no release of Delta is made for Spark {its.name}"
    )
    return Misconfigured(
        "the Spark session has no Delta",
        sink=sink,
        state=state,
        help=way,
    )


def _unknown_delta(spark: SparkSession, sink: str, version: str, state: str) -> Misconfigured:
    return Misconfigured(
        f"Delta {version} on the Spark session is not one that this Epochal was tried with",
        sink=sink,
        state=state,
        help=f"use Delta {versions.series_of(spark.version).delta_jar}",
    )
