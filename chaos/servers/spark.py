"""Spark sessions for demo, tests and benchmarks, with the jars that the sinks need."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from epochal.chaos.servers import jars, java
from epochal.chaos.servers.process import LOOPBACK
from epochal.coordinator.environment.versions import POSTGRES_JDBC_JARS, delta_jars, spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_VERSION = "EPOCHAL_DELTA_VERSION"
"""Environment variable with the version of Delta that sessions get, instead of the newest that is tested."""
CONF: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    # Without a large stack, `query.stop()` during foreachBatch may end in a StackOverflowError.
    "spark.driver.extraJavaOptions": "-Xss16m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def spark_session(
    master: str = "local[2]", *, app: str = "epochal", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process with Delta and Kafka; Spark keeps one per JVM. `conf` overrides CONF.

    The jars come from the cache, and are downloaded on first use. Workers run this Python, not any `python3`.
    """
    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app)  # type: ignore[attr-defined,unused-ignore]
    for key, value in spark_conf(conf).items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def spark_conf(conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of `spark_session`, with the paths of the jars."""
    return {**CONF, "spark.jars": ",".join(map(str, session_jars())), **(conf or {})}


def session_jars() -> list[Path]:
    """Return the jars of Delta and of Spark's Kafka source for this Python's Spark, cached or downloaded."""
    from pyspark import __version__ as version

    return [
        *jars.resolve(delta_jars(version, os.environ.get(DELTA_VERSION, ""))),
        *jars.resolve(spark_kafka_jars(version)),
    ]


def jars_of_sessions() -> list[Path]:
    """Return the jars of the kit's sessions, cached or downloaded: Delta, Spark's Kafka source, the JDBC driver."""
    return [*session_jars(), *jars.resolve(POSTGRES_JDBC_JARS)]


def prepare_environment() -> None:
    """Set what Spark reads from the environment of this process: Java, Python, and the address to bind to."""
    java.use_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
