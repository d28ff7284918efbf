"""What each of Delta's log stores promises on each scheme."""

from __future__ import annotations

import pytest

from epochal.sinks.delta.log_store import Drivers, LogStore

SCALA = "org.apache.spark.sql.delta.storage."
JAVA = "io.delta.storage."
S3 = ("s3", "s3a", "s3n")
DISKS = ("file", "hdfs")


@pytest.mark.parametrize("package", [JAVA, SCALA])
@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("HDFSLogStore", "hdfs"),
        ("GCSLogStore", "gs"),
        *(("AzureLogStore", scheme) for scheme in ("abfs", "abfss", "adl", "wasb", "wasbs")),
        ("IBMCOSLogStore", "cos"),
        ("OracleCloudLogStore", "oci"),
    ],
)
def test_where_it_was_made_for_a_log_store_keeps_drivers_apart(package: str, name: str, scheme: str) -> None:
    found = LogStore(package + name, scheme)
    assert (found.problem(), found.drivers()) == (None, Drivers.ANY)
    assert "Condition" not in found.promise()


@pytest.mark.parametrize("scheme", S3)
def test_on_s3_one_driver_or_dynamo_is_a_condition(scheme: str) -> None:
    alone = LogStore(JAVA + "S3SingleDriverLogStore", scheme)
    assert (alone.problem(), alone.drivers()) == (None, Drivers.ONE)
    assert "Condition: one driver at a time writes this table" in alone.promise()
    dynamo = LogStore(JAVA + "S3DynamoDBLogStore", scheme)
    assert (dynamo.problem(), dynamo.drivers()) == (None, Drivers.ANY_WITH_DYNAMO)
    assert "Condition: every writer of this table uses this log store" in dynamo.promise()


@pytest.mark.parametrize("scheme", S3)
@pytest.mark.parametrize("name", ["HDFSLogStore", "LocalLogStore", "AzureLogStore", "GCSLogStore", "IBMCOSLogStore"])
def test_on_s3_a_log_store_for_another_storage_loses_versions(name: str, scheme: str) -> None:
    problem = LogStore(JAVA + name, scheme).problem()
    assert problem is not None
    assert "overwrites" in problem


@pytest.mark.parametrize("scheme", DISKS)
@pytest.mark.parametrize("name", ["S3SingleDriverLogStore", "GCSLogStore", "IBMCOSLogStore"])
def test_on_a_file_system_a_log_store_for_objects_shows_parts_of_versions(name: str, scheme: str) -> None:
    problem = LogStore(JAVA + name, scheme).problem()
    assert problem is not None
    assert "a part of it" in problem


@pytest.mark.parametrize("name", ["HDFSLogStore", "LocalLogStore"])
def test_on_a_local_disk_two_drivers_must_not_commit_in_the_same_instant(name: str) -> None:
    found = LogStore(JAVA + name, "file")
    assert (found.problem(), found.drivers()) == (None, Drivers.NEARLY_ANY)


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        (JAVA + "HDFSLogStore", "maprfs"),
        (JAVA + "HDFSLogStore", "gs"),
        (JAVA + "AzureLogStore", "hdfs"),
        (JAVA + "S3DynamoDBLogStore", "oss"),
        (JAVA + "S3LogStore", "s3a"),
        ("com.example.HDFSLogStore", "hdfs"),
        ("com.example.S3SingleDriverLogStore", "file"),
    ],
)
def test_what_is_not_known_is_a_condition_and_no_refusal(kind: str, scheme: str) -> None:
    found = LogStore(kind, scheme)
    assert (found.problem(), found.drivers()) == (None, Drivers.UNKNOWN)
    assert f"{kind} (scheme {scheme}). " in found.promise()
    assert "Epochal does not know" in found.promise()


def test_each_number_of_drivers_has_its_own_words() -> None:
    kinds = {
        LogStore(JAVA + name, scheme).drivers(): LogStore(JAVA + name, scheme).promise().partition("). ")[2]
        for name, scheme in [
            ("HDFSLogStore", "hdfs"),
            ("S3DynamoDBLogStore", "s3a"),
            ("HDFSLogStore", "file"),
            ("S3SingleDriverLogStore", "s3a"),
            ("HDFSLogStore", "oss"),
        ]
    }
    assert set(kinds) == set(Drivers)
    assert len(set(kinds.values())) == len(Drivers)
