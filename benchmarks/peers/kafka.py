"""Spark's Kafka sink, at its defaults and tuned, and confluent-kafka without transactions; rows are ``k`` and ``v``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": str(2**20), "kafka.compression.type": "lz4"}
ROOM = 500_000
"""How many rows the client may hold in its queue."""


def spark(bootstrap: str, topic: str, *, tuned: bool = False) -> Callable[[DataFrame, int], None]:
    """Write with Spark's sink: at least once; acks=all and idempotence are its client's defaults."""

    def write(df: DataFrame, _: int) -> None:
        writer = df.selectExpr("k AS key", "v AS value").write.format("kafka").option("topic", topic)
        writer.options(**(TUNED if tuned else {})).option("kafka.bootstrap.servers", bootstrap).save()

    return write


def confluent(bootstrap: str, topic: str) -> Callable[[DataFrame, int], None]:
    """Write with one idempotent producer per task, without transactions."""

    def write(df: DataFrame, _: int) -> None:
        df.select("k", "v").mapInArrow(_produced(bootstrap, topic), "rows bigint").collect()

    return write


def _produced(bootstrap: str, topic: str) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def task(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from confluent_kafka import Producer

        failed: list[object] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failed.append(error)

        options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "partitioner": "murmur2_random"}
        options |= {"delivery.report.only.error": True, "queue.buffering.max.messages": ROOM}
        producer = Producer({**options, "on_delivery": delivered})
        count = 0
        for batch in batches:
            for key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                while True:
                    try:
                        producer.produce(topic, value, key)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.poll(0)
            count += batch.num_rows
        if producer.flush(120) or failed:
            raise RuntimeError(f"rows were not delivered: {failed[:1]}")
        yield pyarrow.RecordBatch.from_pydict({"rows": [count]})

    return task
