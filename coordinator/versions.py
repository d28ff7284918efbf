"""Every version and Maven coordinate that Epochal names, in one place, and which combinations of them work.

Free of imports from Epochal: set-up, tests, servers and the checks at start all read it.
"""

from __future__ import annotations

from dataclasses import dataclass

PYTHON_MINIMUM = (3, 10)
PYTHON_TESTED = ("3.11",)
JAVA_MINIMUM = 17

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
TOXIPROXY = "2.12.0"
TOXIPROXY_PYTHON = "0.1.1"
GO_WHEEL = "1.26.6"


@dataclass(frozen=True)
class Jars:
    """Coordinates `group:artifact:version` that Ivy resolves together; `transitive`: with what they depend on."""

    name: str
    coordinates: tuple[str, ...]
    transitive: bool


# The jar 4.4.1 that would match the newest Python package was not to be had; 4.4.0 works with it. A path
# table needs these two jars only; the other 31 of the full set are duplicates of Spark's own.
DELTA_JARS = Jars(
    "delta",
    (
        f"io.delta:delta-spark_4.2_{SCALA}:{DELTA_JAR}",
        f"io.delta:delta-storage:{DELTA_JAR}",
    ),
    transitive=False,
)

# spark-sql-kafka 4.2.0 names a token provider of its own version that was not to be had; 4.0.0 works. The
# rest of what it names is in Spark already.
SPARK_KAFKA_JARS = Jars(
    "spark-kafka",
    (
        f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{PYSPARK}",
        f"org.apache.spark:spark-token-provider-kafka-0-10_{SCALA}:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
    transitive=False,
)

KAFKA_BROKER_JARS = Jars("kafka-broker", (f"org.apache.kafka:kafka_{SCALA}:{KAFKA_BROKER}",), transitive=True)

# For the plain foreachBatch job that the demo runs beside ours; Epochal itself needs no JDBC.
POSTGRES_JDBC_JARS = Jars("postgres-jdbc", ("org.postgresql:postgresql:42.7.7",), transitive=False)
