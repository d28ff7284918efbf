"""The files of a checkpoint on an object store, without Spark.  The store is the kit's stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyarrow import parquet

pytest.importorskip("obstore")

from epochal.chaos.servers.objects import ObjectServer
from epochal.coordinator.model.errors import SinkUnavailable
from epochal.sinks.spark.objects import ObjectFiles

ROOT = "s3a://lake/check point"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with ObjectServer() as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        started.objects |= {
            "check point/offsets/0": b"v1",
            "check point/offsets/1": b"v1\n",
            "check point/offsets-of-others": b"x",
            "check point/state/0/1/2.delta": b"xyz",
            "check point/empty/": b"",
        }
        yield started


def test_a_listing_has_files_and_folders_and_no_marks(server: ObjectServer) -> None:
    files = ObjectFiles(ROOT)
    assert files.listing(ROOT) == {"offsets": -1, "offsets-of-others": 1, "state": -1}
    assert files.listing(f"{ROOT}/offsets") == {"0": 2, "1": 3}
    assert files.listing(f"{ROOT}/state/0") == {"1": -1}
    assert files.listing(f"{ROOT}/empty") is files.listing(f"{ROOT}/none") is None
    server.page = 1
    assert files.listing(f"{ROOT}/offsets") == {"0": 2, "1": 3}


@pytest.mark.usefixtures("server")
def test_a_file_is_read_whole_or_is_none() -> None:
    files = ObjectFiles(ROOT)
    assert files.read(f"{ROOT}/offsets/1") == b"v1\n"
    assert files.read(f"{ROOT}/offsets/2") is None


@pytest.mark.usefixtures("server")
def test_a_folder_is_deleted_with_all_that_lies_in_it() -> None:
    files = ObjectFiles(ROOT)
    files.delete(f"{ROOT}/offsets", recursive=False)
    assert files.listing(f"{ROOT}/offsets") == {"0": 2, "1": 3}
    files.delete(f"{ROOT}/offsets")
    files.delete(f"{ROOT}/none")
    assert files.listing(ROOT) == {"offsets-of-others": 1, "state": -1}


def test_the_rows_of_a_parquet_file_are_counted(server: ObjectServer) -> None:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"id": [1, 2, 3]}), sink)
    server.objects["check point/part-0.parquet"] = sink.getvalue().to_pybytes()
    assert ObjectFiles(ROOT).parquet_rows(f"{ROOT}/part-0.parquet") == 3


@pytest.mark.usefixtures("server")
def test_a_bucket_that_does_not_exist_is_no_empty_checkpoint() -> None:
    with pytest.raises(SinkUnavailable, match="cannot be reached"):
        ObjectFiles("s3a://pond/checkpoint").listing("s3a://pond/checkpoint/commits")
