"""The example of docs/frames.md: nested orders become two tables, two topics and a Delta table."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from epochal.chaos import servers
from tests.real.examples.test_readme import python_blocks, run_example
from tests.real.sinks.kafka.support import read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

[EXAMPLE] = python_blocks((Path(__file__).parents[3] / "docs" / "frames.md").read_text())
SCHEMA = "order_id long, customer string, items array<struct<sku: string, n: int>>"
ORDERS = [
    {"order_id": 1, "customer": "Ann", "items": [{"sku": "a", "n": 2}, {"sku": "b", "n": 1}]},
    {"order_id": 2, "customer": "Bob", "items": [{"sku": "a", "n": 3}]},
    {"order_id": 3, "customer": "Eve", "items": []},
]


@pytest.mark.timeout(600)
def test_orders_and_items(spark: SparkSession, tmp_path: Path, pg_database: str, kafka_server: servers.Kafka) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text("".join(json.dumps(order) + "\n" for order in ORDERS))
    items, totals = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("items", "totals"))
    names = run_example(
        EXAMPLE.replace('topic="items"', f'topic="{items}"').replace('topic="totals"', f'topic="{totals}"'),
        {
            "orders": spark.readStream.schema(SCHEMA).json(str(tmp_path / "in")),
            "POSTGRES": pg_database,
            "KAFKA": kafka_server.bootstrap,
            "LAKE": str(tmp_path / "lake"),
            "CHECKPOINT": str(tmp_path / "checkpoint"),
        },
    )
    assert names["query"].exception() is None
    expected = [(1, "a", 2), (1, "b", 1), (2, "a", 3)]
    with psycopg.connect(pg_database) as connection:
        assert sorted(connection.execute("SELECT order_id, customer FROM orders").fetchall()) == [
            (order["order_id"], order["customer"]) for order in ORDERS
        ]
        assert sorted(connection.execute("SELECT order_id, sku, n FROM items").fetchall()) == expected
    records = [json.loads(record.value or b"") for record in read_topic(kafka_server.bootstrap, items)]
    assert sorted((r["order_id"], r["sku"], r["n"]) for r in records) == expected
    sums = [json.loads(record.value or b"") for record in read_topic(kafka_server.bootstrap, totals)]
    assert sorted((r["sku"], r["n"]) for r in sums) == [("a", 5), ("b", 1)]
    assert spark.read.format("delta").load(str(tmp_path / "lake" / "raw")).count() == 3
    names["pipeline"].close()
