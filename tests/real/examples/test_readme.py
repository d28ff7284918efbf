"""README's drop-in example runs as it stands there."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from epochal.chaos import servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = Path(__file__).parents[3] / "README.md"


def python_blocks(markdown: str) -> list[str]:
    """The fenced Python blocks, in order."""
    return re.findall(r"^```python\n(.*?)^```", markdown, flags=re.MULTILINE | re.DOTALL)


def run_example(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Execute ``code`` with what the text around it says the reader has; the names it leaves."""
    exec(compile(code, str(README), "exec"), names)
    return names


@pytest.mark.timeout(400)
def test_the_drop_in_example(
    spark: SparkSession, tmp_path: Path, pg_database: str, kafka_server: servers.Kafka
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"tailnum": "N1", "seats": 2}\n{"tailnum": null, "seats": 3}\n')
    flights = spark.readStream.schema("tailnum string, seats int").json(str(tmp_path / "in"))
    code = python_blocks(README.read_text())[0].replace('topic="flights"', f'topic="flights-{uuid.uuid4().hex[:8]}"')
    names = run_example(
        code,
        {
            "flights": flights,
            "POSTGRES": pg_database,
            "KAFKA": kafka_server.bootstrap,
            "LAKE": str(tmp_path / "lake"),
            "CHECKPOINT": str(tmp_path / "checkpoint"),
        },
    )
    assert names["query"].exception() is None
    expected = [("N1", 2), (None, 3)]
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("select tailnum, seats from flights order by seats").fetchall() == expected
    delta = spark.read.format("delta").load(str(tmp_path / "lake" / "flights")).orderBy("seats")
    assert [tuple(row) for row in delta.collect()] == expected
    status = names["pipeline"].status()
    assert (status.rows, set(status.shown.values())) == (2, {0})
    names["pipeline"].close()
