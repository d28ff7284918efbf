"""A pipeline on a broker that speaks TLS, asks for a password and grants what docs/kafka.md lists, and no more."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import epochal
from epochal.coordinator.model.errors import EpochalError, Misconfigured, SinkUnavailable
from epochal.sinks.kafka import KafkaSink
from tests.real.sinks.kafka.attempts import QUERY
from tests.real.sinks.kafka.guarded import USER, SecuredKafka
from tests.real.sinks.kafka.support import APP, SECRET, hanging, read_topic
from tests.real.sinks.plans import plans

pytestmark = pytest.mark.wide

SCHEMA = StructType().add("k", "string").add("n", "long")
VARIABLE = "EPOCHAL_TEST_KAFKA_PASSWORD"


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecuredKafka]:
    with SecuredKafka() as server:
        server.add_user()
        yield server


@pytest.fixture
def login(kafka: SecuredKafka, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, str]]:
    """As docs/kafka.md has it."""
    monkeypatch.setenv(VARIABLE, SECRET)

    def options() -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(kafka.certificate),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": os.environ[VARIABLE],
        }

    return options


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("slots", "votes"), [(1, False), (2, False), (1, True)])
def test_a_pipeline_runs_with_the_least_rights_and_shows_no_secret(
    kafka: SecuredKafka,
    topic_name: str,
    login: Callable[[], dict[str, str]],
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    slots: int,
    votes: bool,
) -> None:
    options: dict[str, Any] = {"topic": topic_name, "name": topic_name, "key": "k", "slots": slots, "partitions": 2}
    KafkaSink(kafka.bootstrap, **options).create(QUERY, SCHEMA)  # by somebody who may
    options["votes"] = votes
    kafka.grant(ResourceType.TOPIC, topic_name, "WRITE", "DESCRIBE", *(["READ"] if votes else []))
    kafka.grant(ResourceType.TOPIC, f"__epochal.{APP}.{topic_name}", "READ", "WRITE", "DESCRIBE")
    for slot in ("", "#1")[:slots]:
        kafka.grant(ResourceType.TRANSACTIONAL_ID, f"epochal-{APP}-{topic_name}{slot}", "WRITE", "DESCRIBE")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text("".join(json.dumps({"k": str(n), "n": n}) + "\n" for n in range(20)))
    rows = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))

    with caplog.at_level(logging.DEBUG):
        sink = KafkaSink(kafka.guarded, options=login, transaction_timeout=60, **options)
        pipeline = epochal.Pipeline(app=APP, sinks=[sink])
        pipeline.check(rows)
        write = rows.writeStream.foreachBatch(pipeline).trigger(availableNow=True)
        query = write.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(400)
        assert query.exception() is None
        pipeline.close()
    found = [json.loads(r.value or b"")["n"] for r in read_topic(kafka.bootstrap, topic_name)]
    assert sorted(found) == list(range(20))
    assert "epochs are produced after the decision" not in caplog.text
    assert hanging(kafka.bootstrap, topic_name) == []

    kept = [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    executed = "\n".join(plans(spark))
    told = [*kept, executed, caplog.text, *capfd.readouterr(), str(pipeline.guarantee()), repr(pipeline)]
    assert "__epochal" in executed or len(executed) > 1000
    assert [text for text in told if SECRET in text] == []
    marker = read_topic(kafka.bootstrap, f"__epochal.{APP}.{topic_name}")
    assert [r for r in marker if SECRET.encode() in (r.value or b"")] == []


@pytest.mark.remedy(
    "an executor has no connection: …",
    "the server, and every file that the connection names (certificates, keys), must be found from each executor"
    " as from the driver",
)
def test_a_certificate_that_an_executor_does_not_find_is_named_at_start(
    kafka: SecuredKafka,
    topic_name: str,
    login: Callable[[], dict[str, str]],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The workers of the session have another working directory, in which this name leads nowhere."""
    assert spark.range(1).count() == 1
    KafkaSink(kafka.bootstrap, topic=topic_name, name=topic_name).create(QUERY, SCHEMA)
    kafka.grant(ResourceType.TOPIC, topic_name, "WRITE", "DESCRIBE")
    kafka.grant(ResourceType.TOPIC, f"__epochal.{APP}.{topic_name}", "READ", "WRITE", "DESCRIBE")
    monkeypatch.chdir(kafka.certificate.parent)
    options = {**login(), "ssl.ca.location": kafka.certificate.name}
    sink = KafkaSink(kafka.guarded, topic=topic_name, name=topic_name, transaction_timeout=60, options=options)
    with pytest.raises(SinkUnavailable, match="an executor has no connection") as refused:
        sink.check(QUERY, SCHEMA)
    assert "ssl.ca.location" in refused.value.what
    assert SECRET not in str(refused.value)
    options["ssl.ca.location"] = str(kafka.certificate)
    KafkaSink(kafka.guarded, topic=topic_name, name=topic_name, transaction_timeout=60, options=options).check(
        QUERY, SCHEMA
    )


def refusal(sink: KafkaSink) -> EpochalError:
    with pytest.raises((Misconfigured, SinkUnavailable)) as refused:
        sink.look(QUERY)
    assert SECRET not in str(refused.value)
    return refused.value


def test_a_broker_with_an_unknown_certificate_is_not_trusted(
    kafka: SecuredKafka, topic_name: str, login: Callable[[], dict[str, str]], tmp_path: Path
) -> None:
    other = SecuredKafka(directory=tmp_path)
    other._make_certificate()
    options = {**login(), "ssl.ca.location": str(other.certificate)}
    told = refusal(KafkaSink(kafka.guarded, topic=topic_name, options=options, request_timeout=3))
    assert "certificate verify failed" in str(told)


def test_a_password_that_is_not_there_is_named_by_its_variable(
    kafka: SecuredKafka, topic_name: str, login: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    told = refusal(KafkaSink(kafka.guarded, topic=topic_name, options=login))
    assert told.what == f"the function of options= raised KeyError '{VARIABLE}'"


def test_what_a_function_of_options_raises_is_not_shown(topic_name: str) -> None:
    def options() -> dict[str, str]:
        raise ValueError(f"the vault says {SECRET}")

    told = refusal(KafkaSink("localhost:1", topic=topic_name, options=options))
    assert told.what == "the function of options= raised ValueError"
