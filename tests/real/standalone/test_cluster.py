"""A standalone cluster: executors are processes of their own, whose Python has what was installed there and no more."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer

import epochal
from epochal.chaos import servers
from epochal.chaos.demo import data, readers
from epochal.chaos.demo.jobs import Settings
from epochal.chaos.job import jvm
from epochal.chaos.servers import jars, java
from epochal.chaos.servers.spark import spark_conf
from epochal.chaos.servers.standalone import StandaloneCluster, spark_submit
from epochal.chaos.strike.nemesis import Driver, kill_seen, parent_of, poll
from epochal.coordinator.model import failpoints

HERE = Path(__file__).parent
ROWS, AGAIN, ROWS_PER_EPOCH = 900, 300, 400
IN_WRITE = "in-write@postgres:1=barrier"
SEEN_S, END_S = 300.0, 600.0
pytestmark = [pytest.mark.wide, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    with StandaloneCluster() as started:
        yield started


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Epochal as a zip, the way a wheel holds it."""
    packed = tmp_path_factory.mktemp("package") / "epochal.zip"
    top = Path(epochal.__file__).parent
    with zipfile.ZipFile(packed, "w") as archive:
        for folder, _, names in os.walk(top, followlinks=True):
            for name in names:
                if not name.endswith(".pyc"):
                    file = Path(folder, name)
                    archive.write(file, file.relative_to(top.parent))
    return packed


def executor_python(folder: Path, without: Sequence[str] = ()) -> str:
    """A virtual environment with the packages of this one, but for Epochal and those named."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    hidden = ("epochal", "__", *without)
    for path in {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}:
        for entry in Path(path).iterdir():
            if not entry.name.startswith(hidden) and entry.suffix != ".pth" and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return str(folder / "bin" / "python")


@pytest.fixture
def settings(tmp_path: Path, pg_database: str, kafka_server: servers.Kafka, topic_name: str) -> Settings:
    source = f"{topic_name}-in"
    kafka_server.create_topic(source, 2)
    data.write_dimensions(tmp_path / "dimensions")
    return Settings(
        bootstrap=kafka_server.bootstrap,
        source_topic=source,
        dimensions=str(tmp_path / "dimensions"),
        checkpoint=str(tmp_path / "checkpoint"),
        rows_per_epoch=ROWS_PER_EPOCH,
        dsn=pg_database,
        table="flights",
        topic=topic_name,
        lake=str(tmp_path / "lake"),
    )


def feed(settings: Settings, flights: pa.Table) -> None:
    """The flights, and some of them once more."""
    producer = Producer({"bootstrap.servers": settings.bootstrap, "log_level": 0})
    for number, value in enumerate([*data.json_lines(flights), *data.json_lines(flights.slice(0, AGAIN))]):
        producer.produce(settings.source_topic, value, partition=number % 2)
    assert producer.flush(60) == 0


BECOME = """
import os, signal, sys
if os.fork() == 0:
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a command that ends with whoever started it: the JVM of `spark-submit` does not look at its standard input."""


@contextmanager
def submitted(
    cluster: StandaloneCluster,
    settings: Settings,
    python: str,
    program: str,
    *arguments: str,
    py_files: Path | None = None,
    conf: dict[str, str] | None = None,
) -> Iterator[Driver]:
    """A driver as `spark-submit` starts it, in a folder beside the checkpoint."""
    folder = Path(settings.checkpoint).parent / f"driver-{uuid.uuid4().hex}"
    file = folder.with_suffix(".json")
    settings.write(file)
    options = {
        **spark_conf(),
        **jvm.with_other_jars(),
        "spark.master": cluster.url,
        "spark.executor.memory": "768m",
        "spark.executor.cores": "1",
        "spark.pyspark.python": python,
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.session.timeZone": "UTC",
        **(conf or {}),
    }
    argv = [spark_submit(), *(part for name, value in options.items() for part in ("--conf", f"{name}={value}"))]
    if py_files is not None:
        argv += ["--py-files", str(py_files)]
    argv += [str(HERE / program), str(file), *arguments]
    environment = {
        "SPARK_HOME": str(jars.of_pyspark().parent),
        "JAVA_HOME": str(java.java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with Driver(["-c", BECOME, *argv], folder, environment=environment) as driver:
        yield driver


def told(driver: Driver) -> dict[str, Any]:
    """What the program printed last, once it has ended well."""
    assert driver.wait(END_S) == 0, driver.tail(80)
    (line,) = [line for line in driver.output().splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


def test_what_is_submitted_ends_with_whoever_started_it() -> None:
    command = [sys.executable, "-c", BECOME, "/bin/sleep", "60"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(120) == -signal.SIGKILL


def test_three_sinks_are_exact_though_an_executor_is_killed_in_a_write(
    cluster: StandaloneCluster, settings: Settings, package: Path, tmp_path: Path
) -> None:
    flights = data.flights().slice(0, ROWS)
    feed(settings, flights)
    strikes = tmp_path / "strikes"
    strikes.mkdir()
    conf = {
        f"spark.executorEnv.{failpoints.ENVIRONMENT}": IN_WRITE,
        f"spark.executorEnv.{failpoints.FOLDER}": str(strikes),
    }
    python = executor_python(tmp_path / "python")
    with submitted(cluster, settings, python, "driver.py", py_files=package, conf=conf) as driver:

        def blocked() -> int | None:
            assert driver.exit_status is None, driver.tail(80)
            seen = strikes / "0.blocked"
            return int(json.loads(seen.read_text())["pid"]) if seen.exists() else None

        worker = poll(blocked, SEEN_S, "a task blocked in its write")
        executors = cluster.wait_for_executors(2)
        (struck,) = set(executors) & set(ancestors(worker))
        assert driver.pid not in ancestors(worker)
        assert kill_seen(struck).signal == signal.SIGKILL
        done = told(driver)
        assert done["epochs"] >= (ROWS + AGAIN) // ROWS_PER_EPOCH
        assert str(package.name) in done["epochal"]
    expected = data.expected(flights)
    for found in (
        readers.read_postgres(settings.dsn, settings.table),
        readers.read_kafka(settings.bootstrap, settings.topic),
        readers.read_delta(settings.lake),
    ):
        count = readers.compare(expected, found)
        assert count.exact, count


def ancestors(pid: int) -> list[int]:
    """A process, its parent, and so on."""
    found = [pid]
    while (parent := parent_of(found[-1])) not in (None, 0):
        assert parent is not None
        found.append(parent)
    return found


def test_executors_that_lack_something_are_a_named_error_at_start(
    cluster: StandaloneCluster, settings: Settings, package: Path, tmp_path: Path
) -> None:
    """Their Python is sent to them as an archive."""
    executor_python(tmp_path / "python", without=("psycopg", "confluent_kafka"))
    archive = shutil.make_archive(str(tmp_path / "environment"), "gztar", tmp_path / "python")
    conf = {"spark.archives": f"{archive}#environment"}
    with submitted(cluster, settings, "./environment/bin/python", "lacking.py", str(package), conf=conf) as driver:
        refused = told(driver)
    help_line = "pip install 'epochal[{}]' pyarrow on every executor"
    assert refused == {
        "kafka, without epochal": [
            "Misconfigured",
            "the executors' Python cannot load confluent_kafka: Epochal is not installed there",
            help_line.format("kafka"),
        ],
        "kafka": [
            "Misconfigured",
            "the executors' Python cannot load confluent_kafka: No module named 'confluent_kafka'",
            help_line.format("kafka"),
        ],
        "postgres": [
            "Misconfigured",
            "the executors' Python cannot load psycopg: No module named 'psycopg'",
            help_line.format("postgres"),
        ],
    }
    with psycopg.connect(settings.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM lacking__rows").fetchone() == (0,)
    assert not Path(settings.checkpoint).exists()
