"""The examples of docs/sinks.md and docs/kafka.md, and the table of the latter."""

from __future__ import annotations

import json
import re
import sys
import uuid
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Producer

from epochal.chaos import servers
from epochal.coordinator.query.plan import analyzed
from epochal.coordinator.query.sources import cautions
from epochal.sinks.kafka import KafkaSink
from epochal.sinks.kafka.rows import Encoding
from tests.real.examples.test_readme import python_blocks, run_example
from tests.real.sinks.kafka.support import read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[3] / "docs"
KAFKA = (DOCS / "kafka.md").read_text()
SOME_COLUMNS, BAD_ROWS = python_blocks((DOCS / "sinks.md").read_text())
READING, ROUTES, MADE_VALUES, SECRETS = python_blocks(KAFKA)
IMPORTS = SOME_COLUMNS.partition("pipeline = ")[0]


@pytest.mark.timeout(400)
def test_some_columns_some_rows(
    spark: SparkSession, tmp_path: Path, pg_database: str, kafka_server: servers.Kafka
) -> None:
    """Three sinks, one decision, three projections."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"tailnum": "n1", "seats": 2}\n{"tailnum": null, "seats": 3}\n')
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    names = run_example(
        SOME_COLUMNS.replace('topic="flights"', f'topic="{topic}"'),
        {
            "flights": spark.readStream.schema("tailnum string, seats int").json(str(tmp_path / "in")),
            "POSTGRES": pg_database,
            "KAFKA": kafka_server.bootstrap,
            "LAKE": str(tmp_path / "lake"),
            "CHECKPOINT": str(tmp_path / "checkpoint"),
        },
    )
    assert names["query"].exception() is None
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("select * from seats").fetchall() == [(None, 6)]
        assert connection.execute("select row_count from epochal.epochs").fetchall() == [(1,)]
    records = read_topic(kafka_server.bootstrap, topic)
    assert [(r.key, r.value) for r in records] == [(b"n1", b'{"tailnum":"n1","seats":2,"upper":"N1"}')]
    assert spark.read.format("delta").load(str(tmp_path / "lake" / "flights")).count() == 2
    names["pipeline"].close()


@pytest.mark.timeout(400)
def test_where_a_row_goes(spark: SparkSession, tmp_path: Path, kafka_server: servers.Kafka) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"tailnum": f"n{n}", "carrier": carrier} for n, carrier in enumerate(("AA", "UA", "AA"))]
    (tmp_path / "in" / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prefix = f"flights-{uuid.uuid4().hex[:8]}."
    code = IMPORTS + ROUTES.replace("flights.", prefix)
    names: dict[str, Any] = {"KAFKA": kafka_server.bootstrap}
    exec(code, names)
    flights = spark.readStream.schema("tailnum string, carrier string").json(str(tmp_path / "in"))
    names["pipeline"].create(flights.schema)
    names["pipeline"].check(flights)
    write = flights.writeStream.foreachBatch(names["pipeline"]).trigger(availableNow=True)
    query = write.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    found = {c: [r.value for r in read_topic(kafka_server.bootstrap, f"{prefix}{c}")] for c in ("AA", "UA")}
    assert found == {
        "AA": [b'{"tailnum":"n0","carrier":"AA"}', b'{"tailnum":"n2","carrier":"AA"}'],
        "UA": [b'{"tailnum":"n1","carrier":"UA"}'],
    }
    names["pipeline"].close()


def test_reading_what_was_committed(spark: SparkSession, kafka_server: servers.Kafka) -> None:
    """K4: of two transactions the one that was aborted is not read, and a check has nothing to say."""
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(120)
    for value, end in (("gone", producer.abort_transaction), ("there", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(120)
        end(120)
    code = READING.replace('"flights")', f'"{topic}")')
    given = {"spark": spark, "KAFKA": kafka_server.bootstrap}
    seen = {}
    for name, block in (("set", code), ("unset", code.replace('"kafka.isolation.level"', '"kafka.client.id"'))):
        flights = run_example(block.replace("readStream", "read"), dict(given))["flights"]
        seen[name] = sorted(bytes(row.value).decode() for row in flights.collect())
        plan = analyzed(run_example(block, dict(given))["flights"])
        assert len(cautions(plan, lambda key: spark.conf.get(key, None))) == (0 if name == "set" else 1)
    assert seen == {"set": ["there"], "unset": ["gone", "there"]}


def test_values_that_a_function_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the names of the client library that it imports, and a registry that only tells what it was asked."""

    def serializer(client: Any, schema: str) -> Any:
        return lambda row, context: f"{schema} {client} {row} {context}".encode()

    context = SimpleNamespace(VALUE="value")
    made: dict[str, dict[str, Any]] = {
        "": {"SchemaRegistryClient": lambda conf: conf["url"]},
        ".avro": {"AvroSerializer": serializer},
    }
    for name, contents in made.items():
        module = ModuleType(f"confluent_kafka.schema_registry{name}")
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    module = ModuleType("confluent_kafka.serialization")
    module.__dict__.update({"MessageField": context, "SerializationContext": lambda topic, field: (topic, field)})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names: dict[str, Any] = {
        "KafkaSink": KafkaSink,
        "KAFKA": "localhost:1",
        "REGISTRY": "http://registry",
        "SCHEMA": "s",
    }
    names = run_example(MADE_VALUES, names)
    value = names["avro"]()
    assert value({"n": 1}, "flights") == b"s http://registry {'n': 1} ('flights', 'value')"
    assert names["sink"]._core.make_value is names["avro"]


def test_options_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "of-the-environment")
    names = {"KafkaSink": KafkaSink, "KAFKA": "localhost:1", "CERTIFICATE": "ca.pem"}
    sink = run_example(SECRETS, names)["sink"]
    assert sink._core.link().options["sasl.password"] == "of-the-environment"


@pytest.mark.timeout(400)
def test_rows_that_a_sink_cannot_hold(spark: SparkSession, tmp_path: Path, pg_database: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"tailnum": "n1"}\n{"tailnum": "n\\u00002"}\n')
    names = {"DATABASE": pg_database, "LAKE": str(tmp_path / "lake")}
    code = IMPORTS + BAD_ROWS
    pipeline = run_example(code, names)["pipeline"]
    flights = spark.readStream.schema("tailnum string").json(str(tmp_path / "in"))
    pipeline.create(flights.schema)
    write = flights.writeStream.foreachBatch(pipeline).trigger(availableNow=True)
    write.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("select * from flights").fetchall() == [("n1",)]
    [rejected] = spark.read.format("delta").load(str(tmp_path / "lake" / "rejected")).collect()
    assert rejected["tailnum"] == "n\x002"
    pipeline.close()


def test_the_table_of_json(spark: SparkSession) -> None:
    """Each example, of a value of its type."""
    values = {
        "string": ["'N1'"],
        "boolean": ["true"],
        "tinyint, smallint, int, bigint": ["9223372036854775807L"],
        "decimal": ["cast(1 AS decimal(5, 2))", "cast('0.00000000000000000001' AS decimal(38, 20))"],
        "float, double": ["cast(0.1 AS float)", "1.7976931348623157e308d"],
        "date": ["date '2013-01-31'"],
        "timestamp": ["timestamp '2013-01-31 23:59:59.123456 UTC'"],
        "timestamp_ntz": ["timestamp_ntz '2013-01-31 23:59:59.123456'"],
        "binary": ["x'0061'"],
        "array": ["array(1, null)"],
        "struct": ["named_struct('x', cast(null AS int))"],
        "map with string keys": ["map('k', 1, 'j', null)"],
        "NULL of any type": ["cast(null AS int)"],
    }
    section = KAFKA.partition("## What a row is in Kafka")[2].partition("\n## ")[0]
    table = dict(re.findall(r"^\| ([a-zN][^|]*?) \| [^|]*? \| ((?:`[^`]+`(?:, )?)+) \|$", section, re.MULTILINE))
    assert table.keys() == values.keys()
    for kind, expressions in values.items():
        shown = re.findall(r"`([^`]+)`", table[kind])
        rows = spark.range(1).selectExpr(*(f"{e} AS v{n}" for n, e in enumerate(expressions)))
        encoding = Encoding(None, None, "random")
        encoding.check(rows.schema, "out")
        [record] = encoding.records(rows).collect()
        assert bytes(record["value"]).decode() == json_of(shown), kind


def json_of(texts: list[str]) -> str:
    assert all(json.loads(text) is None or json.loads(text) is not None for text in texts)
    return "{" + ",".join(f'"v{n}":{text}' for n, text in enumerate(texts)) + "}"
