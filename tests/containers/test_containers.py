"""Postgres and Kafka in containers, through testcontainers; run by `make test-containers` alone."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from epochal.chaos import servers
from epochal.chaos.servers.containers import ContainerKafka, ContainerPostgres
from epochal.chaos.servers.toxiproxy import Proxy
from tests.real.sinks.kafka.support import produce, read_topic


def test_the_lane_runs_on_containers(postgres_server: servers.Postgres, kafka_server: servers.Kafka) -> None:
    assert isinstance(postgres_server, ContainerPostgres)
    assert isinstance(kafka_server, ContainerKafka)


def again(server: servers.Postgres | servers.Kafka) -> None:
    server.restart()


def crash(server: servers.Postgres | servers.Kafka) -> None:
    server.crash()
    assert not server.running()
    server.start()


@pytest.mark.parametrize("interrupt", [again, crash])
def test_postgres_keeps_its_rows_and_its_address(
    postgres_server: servers.Postgres, pg_database: str, interrupt: Callable[[servers.Postgres], None]
) -> None:
    with psycopg.connect(pg_database) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS n")
    interrupt(postgres_server)
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("SELECT n FROM t").fetchone() == (7,)


@pytest.mark.parametrize("interrupt", [again, crash])
def test_kafka_keeps_its_messages_and_its_address(
    kafka_server: servers.Kafka, topic_name: str, interrupt: Callable[[servers.Kafka], None]
) -> None:
    kafka_server.create_topic(topic_name)
    produce(kafka_server.bootstrap, topic_name, b"kept")
    interrupt(kafka_server)
    assert [r.value for r in read_topic(kafka_server.bootstrap, topic_name)] == [b"kept"]


def test_clients_behind_the_proxy_stay_behind_it(
    kafka_server: servers.Kafka, kafka_proxy: Proxy, topic_name: str
) -> None:
    kafka_server.create_topic(topic_name)
    produce(kafka_proxy.address, topic_name, b"kept")
    assert [r.value for r in read_topic(kafka_server.bootstrap, topic_name)] == [b"kept"]
