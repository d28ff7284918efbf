"""The goals: bounds for the median of a ratio, on two cores.  A ratio names the id of its goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """A bound for the median of a ratio, ``least`` or ``most``, in ``unit``."""

    what: str
    unit: str = "times"
    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def bound(self) -> str:
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"


GOALS: Mapping[str, Goal] = {
    "postgres-jdbc-rewritten": Goal("Postgres append / Spark JDBC with rewritten batches, rows/s", least=1.3),
    "postgres-jdbc": Goal("Postgres append / Spark JDBC, rows/s", least=2.2),
    "postgres-server-copy": Goal("Postgres append / server-side COPY of a prepared file, rows/s", least=0.8),
    "kafka-plain": Goal("Kafka / confluent-kafka without transactions, rows/s", least=1.2),
    "kafka-flink": Goal("Kafka / Flink's KafkaSink exactly-once, 8 million rows, rows/s", least=1.2),
    "kafka-spark": Goal("Kafka / Spark's at-least-once sink at its defaults, rows/s", least=1.1),
    "kafka-spark-tuned": Goal("Kafka / Spark's at-least-once sink with tuned options, rows/s", least=1.0),
    "delta-plain": Goal("Delta append / plain Delta append, rows/s", least=0.95),
    "delta-small": Goal("Delta append over a plain Delta append, 1,000 rows", "s more", most=0.3),
    "three-sum": Goal("three sinks in one epoch / sum of the three alone, seconds", most=1.0),
    "small-one": Goal("epoch of 1,000 rows over a bare foreachBatch, one Postgres sink", "s more", most=0.1),
    "small-kafka": Goal("epoch of 1,000 rows over a bare foreachBatch, one Kafka sink", "s more", most=0.1),
    "small-three": Goal("epoch of 1,000 rows over a bare foreachBatch, three sinks", "s more", most=1.0),
    "width": Goal("epoch of 1,500 columns, or of a struct of 1,500 fields / Spark's own writer, seconds", most=2.0),
    "view": Goal("reader view / plain scan, processor time", most=1.1),
    "recovery": Goal("recovery over Spark's restart", "s more", most=1.0),
    "growth": Goal("growth from epoch 10 to 100,000, seconds of an epoch", most=1.1),
}
