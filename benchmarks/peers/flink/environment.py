"""The environment of Flink: its released Python package in a virtual environment, made in the cache at first use."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measuring import say
from epochal.chaos.servers import environments, jars, java
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.coordinator.environment.versions import FLINK, FLINK_JARS, FLINK_PYTHON

HEAP = "2g"
# Jars of PySpark that Flink's Parquet format needs: Hadoop's client, and the decompression.
HADOOP = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "commons-logging-*.jar", "zstd-jni-*.jar")
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "FLINK_HOME", "FLINK_CONF_DIR", "FLINK_ENV_JAVA_OPTS")
"""Variables that would bring another Flink, or packages of another environment."""


def python(version: tuple[int, int] = sys.version_info[:2]) -> Path:
    """Return the Python that has Flink.  Raises ServerUnavailable if Flink does not support this Python version."""
    low, below = FLINK_PYTHON
    if not low <= version < below:
        raise ServerUnavailable(
            f"apache-flink {FLINK} is for Python {_dotted(low)} to below {_dotted(below)}, this is {_dotted(version)}",
            f"make .venv of a Python that is older (`make venv PYTHON=python{below[0]}.{below[1] - 1}`), "
            "or leave out the table `flink`",
        )
    return environments.python_with(f"flink-{FLINK}", f"apache-flink=={FLINK}", making=_told)


def _told() -> None:
    say(f"  apache-flink {FLINK} is installed into a Python of its own: once, some 850 MB, about two minutes")


def connectors() -> list[Path]:
    """Return the jars of Flink's Kafka connector and of its Parquet format."""
    return jars.resolve(FLINK_JARS)


def variables(logs: Path) -> Mapping[str, str]:
    """Return the program's environment variables: Spark's Java, the heap, and Hadoop for the Parquet format."""
    own = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    hadoop = [str(jar) for pattern in HADOOP for jar in sorted(jars.of_pyspark().glob(pattern))]
    return {
        **own,
        "JAVA_HOME": str(java.java_home()),
        "JVM_ARGS": f"-Xmx{HEAP}",
        "HADOOP_CLASSPATH": os.pathsep.join(hadoop),
        "FLINK_LOG_DIR": str(logs),
    }


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
