"""Drivers that live for a minute: their classes come from an archive, and whoever cannot have one starts too."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from epochal.chaos.job import jvm, program, workers
from epochal.chaos.servers.spark import jars_of_sessions
from epochal.chaos.strike import disk
from epochal.chaos.strike.disk import Disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.wide

FEW = 3_000
ATTEMPTS = 5
DRIVER = """
import sys
from epochal.chaos.job import jvm
from epochal.chaos.servers.spark import jars_of_sessions
from epochal.chaos.servers.spark import spark_session
conf = jvm.short_lived()
conf["spark.driver.extraJavaOptions"] += " -Xlog:class+load:file=" + sys.argv[1]
spark = spark_session(conf=conf)
assert spark.range(3).count() == 3
spark.read.format("delta")
"""


@pytest.mark.timeout(900)
def test_classes_of_spark_and_of_delta_come_from_the_archive(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    subprocess.run([sys.executable, "-c", DRIVER, str(loaded)], check=True, timeout=800)
    if "SharedArchiveFile" not in str(jvm.short_lived()):
        return  # a Java that makes none: told as a warning, once
    lines = loaded.read_text().splitlines()
    archived = [line for line in lines if "shared objects file (top)" in line]
    assert len(archived) > FEW
    assert any(" org.apache.spark.sql.SparkSession" in line for line in archived)
    assert any(" io.delta.sql.DeltaSparkSessionExtension" in line for line in archived)


def test_an_archive_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java that does not start with these options."""
    monkeypatch.setattr(jvm, "QUICK", "-Xss1k")
    why = jvm._make([], tmp_path / "never.jsa")
    assert why is not None
    assert "stack size specified is too small" in why
    assert list(tmp_path.iterdir()) == []


def test_without_an_archive_drivers_start_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody tries a second time."""
    tried: list[Path] = []

    def fails(_: object, archive: Path) -> str:
        tried.append(archive)
        return "no such option"

    found = jars_of_sessions()
    monkeypatch.setattr(jvm, "jars_of_sessions", lambda: found)
    monkeypatch.setattr(jvm, "_make", fails)
    monkeypatch.setenv("EPOCHAL_CACHE", str(tmp_path))
    assert jvm.short_lived() == jvm.short_lived()
    assert "SharedArchiveFile" not in str(jvm.short_lived())
    assert len(tried) == 1
    assert [file.read_text() for file in tmp_path.glob("*.none")] == ["no such option"]


def test_jars_of_the_users_own_replace_those_of_the_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setattr(program, "spark_session", lambda *_, conf, **__: given.append(conf))
    for conf in ({}, {"spark.jars": "/mine.jar"}):
        program.session(program.Settings("", "rows", 0, "", "", conf=conf))
    ours, theirs = given
    assert "delta-spark" in ours["spark.driver.extraClassPath"]
    assert theirs["spark.jars"] == "/mine.jar"
    assert not any("delta-spark" in value for value in theirs.values())
    assert theirs["spark.driver.extraJavaOptions"] == jvm.QUICK


def test_workers_are_forked_with_all_that_they_need(spark: SparkSession) -> None:
    def told(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            there = [name in sys.modules for name in workers.NEEDED]
            yield pa.RecordBatch.from_pydict({"there": [all(there)], "unseen": [gc.get_freeze_count() > FEW]})

    rows = spark.range(1).mapInArrow(told, "there boolean, unseen boolean").collect()
    assert [tuple(row) for row in rows] == [(True, True)]


def test_workers_take_pyspark_from_its_folder_and_no_archive(spark: SparkSession) -> None:
    def told(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        for _ in batches:
            archives = [entry for entry in sys.path if Path(entry).is_file() and "pyspark" in entry]
            yield pa.RecordBatch.from_pydict({"source": [pyspark.__file__], "archives": [len(archives)]})

    import pyspark

    rows = spark.range(1).mapInArrow(told, "source string, archives bigint").collect()
    assert [tuple(row) for row in rows] == [(pyspark.__file__, 0)]


def test_files_that_failed_tasks_left_open_are_closed(spark: SparkSession, tmp_path: Path) -> None:
    """Or the next strike could not make the disk read-only: tasks that cannot write leave their files open, deleted."""
    if disk.why_not():
        return
    with Disk(tmp_path / "disk", megabytes=4) as small:
        small.fill()
        assert any(_failed_tasks_leave_files_open(spark, small.folder / f"rows-{n}") for n in range(ATTEMPTS))
        small.drain()
        program.close_abandoned_files(spark)
        small.read_only()
        small.writable()


def _failed_tasks_leave_files_open(spark: SparkSession, folder: Path) -> bool:
    """Of a write to a full disk; False if the JVM happened to collect them at once."""
    with pytest.raises(Py4JError, match="No space left on device"):
        spark.range(10).repartition(2).write.option("compression", "zstd").parquet(str(folder))
    return bool(disk._open_below(folder))
