"""The sink contract on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos import servers
from epochal.chaos.contract import IdempotentContract, MarkedContract, ModeContract, SinkContract
from epochal.chaos.contract.harness import query
from epochal.chaos.contract.sinks import ONE, Start
from epochal.chaos.contract.spark import SparkHarness
from epochal.coordinator.model.epoch import Actor, Copy, Epoch, Json
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.kafka import KafkaSink
from epochal.sinks.protocol import RedoSink, Sink
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka import support
from tests.real.sinks.projected import OPTIONS, ProjectedRows


class KafkaHarness(SparkHarness):
    """One topic of two partitions; rows go through real durable copies."""

    app = support.APP
    secrets: Sequence[str] = (support.SECRET,)
    options: Mapping[str, Any] = {"votes": False}
    prepare_is_fenced = False

    def __init__(self, spark: SparkSession, server: servers.Kafka, topic: str, stage: SparkStage) -> None:
        super().__init__(spark)
        self._server = server
        self._topic = topic
        self._stage = stage

    def sink(self) -> Sink:
        return self.named(self._topic)

    def named(self, name: str) -> Sink:
        return self._sink(self._topic, name)

    def neighbour(self) -> Sink:
        return self._sink(f"{self._topic}-2", self._topic)

    def _sink(self, topic: str, name: str) -> Sink:
        bootstrap = self._server.bootstrap
        return KafkaSink(bootstrap, topic=topic, name=name, options=support.OPTIONS, partitions=2, **self.options)

    def slotted(self) -> KafkaSink:
        """Another sink of the same topic, in two slots."""
        bootstrap, name = self._server.bootstrap, f"{self._topic}-3"
        return KafkaSink(bootstrap, topic=self._topic, name=name, slots=2, key="id", options=support.OPTIONS)

    def copy(self, rows: DataFrame, epoch: int, by: Actor) -> Copy | None:
        return self._stage.write(epoch, by, rows)

    def visible(self) -> list[tuple[str, str]]:
        records = support.read_topic(self._server.bootstrap, self._topic)
        rows = [json.loads(r.value or b"") for r in records]
        return [(row["id"], row["attempt"]) for row in rows]

    def restart_server(self) -> None:
        self._server.crash()
        self._server.start()
        support.await_markers(self._server.bootstrap, self._topic)

    def in_another_process(self, committable: Json | None, by: Json) -> str:
        return support.in_another_process(self._server.bootstrap, self._topic, committable, by, spark={})


@pytest.mark.wide
class TestKafkaSinkInIdempotentMode(IdempotentContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> KafkaHarness:
        return KafkaHarness(spark, kafka_server, topic, stage)


@pytest.mark.wide
class TestKafkaSink(SinkContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> KafkaHarness:
        return KafkaHarness(spark, kafka_server, topic, stage)

    def test_it_redoes(self, harness: KafkaHarness) -> None:
        assert isinstance(harness.sink(), RedoSink)


@pytest.mark.wide
class TestMarkedKafkaSink(MarkedContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> KafkaHarness:
        return KafkaHarness(spark, kafka_server, topic, stage)

    def test_slots_have_markers_of_their_own(self, harness: KafkaHarness) -> None:
        harness.sink().create(query(harness.app), harness.schema)
        sink = harness.slotted()
        sink.create(query(harness.app), harness.schema)
        start = Start(harness, ONE, sink).fenced()
        with pytest.raises(Misconfigured, match="slots=2, each with a marker of its own"):
            sink.check_mark(start.query)


class SlotsKafkaHarness(KafkaHarness):
    """Two transactions per epoch; another process, which knows of one, commits what the committable says."""

    options: Mapping[str, Any] = {"slots": 2, "key": "id"}
    prepare_is_fenced = True


class VotingKafkaHarness(KafkaHarness):
    """An open transaction holds the prepared rows; another process, which was not told to vote, ends it."""

    options: Mapping[str, Any] = {"votes": True}
    prepare_is_fenced = True

    def restart_server(self) -> None:
        self._server.crash()
        self._server.start()

    def end(self) -> None:
        """Abort what is prepared, so that no reader waits for it."""
        support.bar(self._server.bootstrap, self._topic)


class StagingKafkaHarness(VotingKafkaHarness):
    """The durable copy consists of record batches, as it does where the sink is alone."""

    def staged(self, sink: Sink, rows: DataFrame, epoch: Epoch, by: Actor) -> Copy | None:
        assert isinstance(sink, KafkaSink)
        copy = sink.stage(epoch, rows, self._stage.reserve(epoch.number, by))
        assert copy is not None
        self._stage.keep(epoch.number, copy)
        return copy


def until_ended(harness: VotingKafkaHarness) -> Iterator[KafkaHarness]:
    yield harness
    harness.end()


@pytest.mark.wide
class TestStagingKafkaSink(SinkContract):
    @pytest.fixture
    def harness(
        self, spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
    ) -> Iterator[KafkaHarness]:
        yield from until_ended(StagingKafkaHarness(spark, kafka_server, topic, stage))


@pytest.mark.wide
class TestVotingKafkaSink(SinkContract):
    @pytest.fixture
    def harness(
        self, spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
    ) -> Iterator[KafkaHarness]:
        yield from until_ended(VotingKafkaHarness(spark, kafka_server, topic, stage))


@pytest.mark.wide
class TestMarkedVotingKafkaSink(MarkedContract):
    @pytest.fixture
    def harness(
        self, spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage
    ) -> Iterator[KafkaHarness]:
        yield from until_ended(VotingKafkaHarness(spark, kafka_server, topic, stage))


class ProjectedKafkaHarness(ProjectedRows, KafkaHarness):
    """The same topic; another process, which knows no projection, commits what the committable says."""


class ProjectedSlotsKafkaHarness(ProjectedRows, SlotsKafkaHarness):
    """The same with two transactions per epoch."""

    options: Mapping[str, Any] = {**OPTIONS, **SlotsKafkaHarness.options}


@pytest.mark.wide
class TestKafkaSinkWithSlotsSelectAndWhere(ModeContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> KafkaHarness:
        return ProjectedSlotsKafkaHarness(spark, kafka_server, topic, stage)


@pytest.mark.wide
class TestKafkaSinkWithSelectAndWhereInIdempotentMode(IdempotentContract):
    @pytest.fixture
    def harness(self, spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> KafkaHarness:
        return ProjectedKafkaHarness(spark, kafka_server, topic, stage)
