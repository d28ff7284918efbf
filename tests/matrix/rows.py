"""Which versions `make test-matrix` has beside those of `make test`, and which tests rest on each of them."""

from __future__ import annotations

import hashlib
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from epochal.chaos.servers import environments, jars, postgres, s3
from epochal.chaos.servers.kafka import LIBRARIES
from epochal.chaos.servers.spark import DELTA_VERSION
from epochal.coordinator.environment.versions import (
    AT_OWN_RISK,
    HADOOP_CLOUD_JARS,
    KAFKA_MATRIX,
    POSTGRES,
    POSTGRES_MATRIX,
    PYSPARK,
    PYTHON_MATRIX,
    S3A_JARS,
    SERIES,
    VERSITYGW,
    delta_jars,
    kafka_broker_jars,
    series_of,
    spark_kafka_jars,
)

ROOT = Path(__file__).parents[2]
NUMPY = "numpy<2"  # PySpark 3.5 uses names that NumPy 2 does not have
ARROW = "pyarrow<21"  # `applyInPandasWithState` of Spark 4.1 fails under PyArrow 26


class Missing(Exception):
    """What a row needs and this machine has not; its text names it."""


@dataclass(frozen=True)
class Ready:
    """The Python that a row's tests run in, what is set for them, and options of pytest."""

    python: Path = Path(sys.executable)
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One version of one part; `ready` gets what it needs, from the cache or the network, or raises Missing."""

    part: str
    version: str
    what: str
    tests: tuple[str, ...]
    ready: Callable[[], Ready]


KILL = "tests/real/kills/test_kills.py::test_killed_after_the_decision_an_epoch_is_finished"
ASKED_FOR = "tests/matrix/test_asked_for.py"

# Delta 4.4.0 cannot read the files of a table on Spark 4.3 (NoSuchMethodError: LogicalRDD), as these tests do.
RUNBOOK = "tests/real/runbook"
# What the private interfaces of Spark and Delta are used for: plans, sessions, figures of a job, expressions as text.
ON_SPARK = (
    "tests/real/sinks/spark/test_expressions.py",
    "tests/real/sinks/spark/test_observing.py",
    "tests/real/sinks/spark/test_internals.py",
    "tests/real/sinks/spark/test_threads.py",
    "tests/real/sinks/delta/test_contract.py::TestDeltaSink",
    "tests/real/sinks/delta/test_self_test.py",
    "tests/real/sinks/kafka/test_contract.py::TestKafkaSink",
    "tests/real/sinks/kafka/test_contract.py::TestStagingKafkaSink",
    "tests/real/sinks/postgres/test_contract.py::TestPostgresSink",
    "tests/real/sinks/rows/test_digest.py",
    "tests/real/sinks/rows/test_projection.py",
    "tests/real/sinks/rows/test_rejects.py",
    "tests/real/coordinator/query/test_idempotent_sinks.py",
    "tests/real/coordinator/query/test_lint.py",
    "tests/real/coordinator/query/test_run.py",
    "tests/real/sinks/kafka/votes/test_votes.py",
    f"{RUNBOOK}/test_checkpoint.py::test_checkpoint_deleted",
    f"{RUNBOOK}/test_checkpoint.py::test_checkpoint_rolled_back_and_the_newest_restored_or_lost",
    f"{RUNBOOK}/test_checkpoint.py::test_checkpoint_copied_and_moved",
    KILL,
)
ON_DELTA = (
    f"{ASKED_FOR}::test_spark",
    f"{ASKED_FOR}::test_delta",
    "tests/real/sinks/delta/test_contract.py",
    "tests/real/sinks/delta/test_self_test.py",
    "tests/real/coordinator/query/test_left_out.py",
    KILL,
)
ON_OLDER_SPARK = ("tests/matrix/test_upgrade.py",)
REPLAY = "tests/real/coordinator/query/test_replay.py"
# Spark 3.5 has no reader of operator state; that of 4.0 cannot read format 2 (RocksDBFileManager:
# NumberFormatException).
_REPLAYED = f"{REPLAY}::test_a_replayed_epoch_is_not_written_again"
READABLE: Mapping[str, tuple[str, ...]] = {
    "3.5": (_REPLAYED,),
    "3.5.2": (_REPLAYED,),
    "4.0": (_REPLAYED, f"{REPLAY}::test_a_decided_epoch_feeds_state_and_watermark[default]"),
}
# Warnings are errors here.  PySpark before 4.2 leaves sockets to its JVM to the garbage collector; 3.5 uses distutils.
OLDER_PYSPARK = (
    *("-W", "ignore::pytest.PytestUnraisableExceptionWarning"),
    *("-W", "ignore:distutils Version classes are deprecated:DeprecationWarning"),
)
# Transactions, fencing of producers, last stable offsets, time-outs, crashes, topic settings; not what is in a message.
ON_KAFKA = (
    f"{ASKED_FOR}::test_kafka",
    "tests/real/sinks/kafka/test_contract.py::TestKafkaSink",
    "tests/real/sinks/kafka/test_marker.py",
    "tests/real/sinks/kafka/test_attempt.py",
    "tests/real/sinks/kafka/test_topics.py",
    KILL,
)
# Requests by hand at fixed versions, rows of many tasks in one transaction, and how it ends.  None before 3.7.
ON_KAFKA_WITH_VOTES = (
    "tests/real/sinks/kafka/test_contract.py::TestStagingKafkaSink",
    "tests/real/sinks/kafka/votes/test_deliver.py",
    "tests/real/sinks/kafka/votes/test_endings.py",
    "tests/real/sinks/kafka/votes/test_taken_over.py",
    "tests/real/sinks/kafka/votes/test_votes.py",
)
ON_KAFKA_WITHOUT_VOTES = ("tests/matrix/test_without_votes.py",)
VOTES_FROM = (3, 7)
# What its tables, transactions, locks and settings do, which differs between versions more than what is in a row.
ON_POSTGRES = (
    f"{ASKED_FOR}::test_postgres",
    "tests/real/sinks/postgres/test_contract.py::TestPostgresSink",
    "tests/real/sinks/postgres/test_contract.py::TestUpsertingPostgresSinkWithSelectAndWhere",
    "tests/real/sinks/postgres/test_commit.py",
    "tests/real/sinks/postgres/test_create.py",
    "tests/real/sinks/postgres/test_modes.py",
    "tests/real/sinks/postgres/test_settings.py",
    "tests/real/sinks/postgres/test_staged_tables.py",
    "tests/real/checkpoints/test_postgres_log.py::TestPostgresLog",
)
# What workers and clients do with rows, in wheels of their own per Python; and what the console prints.
ON_PYTHON = (
    f"{ASKED_FOR}::test_python",
    "tests/pure/checkpoints",
    "tests/pure/coordinator/protocol",
    "tests/pure/coordinator/console",
    "tests/pure/sinks",
    "tests/real/sinks/delta/test_contract.py::TestDeltaSink",
    "tests/real/sinks/kafka/test_contract.py::TestKafkaSink",
    "tests/real/sinks/kafka/test_contract.py::TestStagingKafkaSink",
    "tests/real/sinks/postgres/test_contract.py::TestPostgresSink",
    "tests/real/coordinator/query/test_run.py",
    KILL,
)
ON_PGBOUNCER = ("tests/matrix/test_pgbouncer.py",)
ON_OBJECT_STORE = ("tests/matrix/test_object_store.py",)


def rows() -> list[Row]:
    """In the order in which they run: what needs no Spark of its own first."""
    return [
        *(_postgres(version) for version in sorted({*POSTGRES[:-1], *POSTGRES_MATRIX})),
        Row("pgbouncer", "transaction mode", "sinks and log behind a pool", ON_PGBOUNCER, _pgbouncer),
        Row("Object store", f"versitygw {VERSITYGW}", "log, copy, kills, two drivers, console", ON_OBJECT_STORE, _s3),
        *(_kafka(version) for version in KAFKA_MATRIX),
        *(_python(version) for version in PYTHON_MATRIX),
        *(_spark(*pair) for series in SERIES for pair in series.pairs if pair[0] != PYSPARK),
    ]


def _postgres(version: str) -> Row:
    return Row(
        "Postgres",
        version,
        "contracts, tables, modes, commits, settings, log",
        ON_POSTGRES,
        partial(_with_postgres, version),
    )


def _with_postgres(version: str) -> Ready:
    postgres.binaries(version)
    return Ready(environment={"EPOCHAL_POSTGRES_VERSION": version})


def _kafka(version: str) -> Row:
    votes = tuple(map(int, version.split(".")[:2])) >= VOTES_FROM
    what = f"contract, markers, attempts, topics, a kill; {'votes' if votes else 'no votes'}"
    tests = (*ON_KAFKA, *(ON_KAFKA_WITH_VOTES if votes else ON_KAFKA_WITHOUT_VOTES))
    return Row("Kafka broker", version, what, tests, partial(_with_kafka, version))


def _with_kafka(version: str) -> Ready:
    jars.resolve(kafka_broker_jars(version))
    return Ready(environment={"EPOCHAL_KAFKA_VERSION": version})


def _python(version: str) -> Row:
    what = "contracts, protocol, clients, console, runs, a kill"
    return Row("Python", version, what, ON_PYTHON, partial(_with_python, version))


def _with_python(version: str) -> Ready:
    """A Python with this checkout and everything that its project file asks for."""
    interpreter = shutil.which(f"python{version}")
    if interpreter is None:
        raise Missing(f"no program python{version} on PATH")
    asked = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()[:12]
    extras = f"epochal[dev,java] @ {ROOT.as_uri()}"
    python = environments.python_with(f"checkout-{asked}", extras, interpreter=interpreter)
    return Ready(python, {"EPOCHAL_PYTHON_VERSION": version})


def _spark(version: str, delta: str) -> Row:
    """Return the row of a Spark with a Delta.

    What is not about Delta runs with the newest Delta for this Spark alone.
    """
    its = series_of(version)
    name = version if delta == its.delta_jar else f"{version} with Delta {delta}"
    ready = partial(_with_spark, version, delta)
    if delta != [other for spark, other in its.pairs if spark == version][-1]:
        return Row("Spark", name, "Delta's contract and self-test, where=, a kill", ON_DELTA, ready)
    what = "contracts, self-tests, digests, projections, bad rows, lint, runs, replay, a kill"
    asked = tuple(f"{ASKED_FOR}::{test}" for test in ("test_spark", "test_delta"))
    replay = READABLE.get(its.name, (REPLAY,))
    older = ON_OLDER_SPARK if its in SERIES[: SERIES.index(series_of(PYSPARK))] else ()
    ours = ON_SPARK if its.delta else tuple(test for test in ON_SPARK if RUNBOOK not in test)
    return Row("Spark", name, what, (*asked, *ours, *replay, *older), ready)


def _with_spark(version: str, delta: str) -> Ready:
    for each in (delta_jars(version, delta), spark_kafka_jars(version)):
        jars.resolve(each)
    named = {
        "EPOCHAL_SPARK_VERSION": version,
        "EPOCHAL_NEWER_PYTHON": sys.executable,
        DELTA_VERSION: delta,
        LIBRARIES: str(jars.of_pyspark()),
        AT_OWN_RISK: "" if series_of(version).delta else f"Delta {delta}",
    }
    return Ready(_venv(version), named, OLDER_PYSPARK)


def _venv(version: str) -> Path:
    """A Python with that PySpark and an Arrow that fits, and of everything else what this one has."""
    fitting = (ARROW, NUMPY) if series_of(version).scala == "2.12" else (ARROW,)
    python = environments.python_with(f"pyspark-{version}", f"pyspark=={version}", *fitting)
    [own] = python.parents[1].glob("lib/python*/site-packages")
    shared = sysconfig.get_path("purelib")
    (own / "of-the-checkout.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    return python


def _s3() -> Ready:
    s3.binary()
    for each in (S3A_JARS, HADOOP_CLOUD_JARS):
        jars.resolve(each)
    return Ready()


def _pgbouncer() -> Ready:
    if shutil.which("pgbouncer") is None:
        raise Missing("no program pgbouncer on PATH (apt-get install pgbouncer)")
    return Ready()
