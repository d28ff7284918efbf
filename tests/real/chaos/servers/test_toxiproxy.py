"""Every fault that the proxies can make, with a real Postgres and a real Kafka behind them."""

from __future__ import annotations

import contextlib
import time

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer

from epochal.chaos import servers
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.toxiproxy import Proxy, ToxiproxyServer


@pytest.fixture
def table(pg_database: str) -> str:
    with psycopg.connect(pg_database) as connection:
        connection.execute("CREATE TABLE t (n int)")
    return "t"


def rows(dsn: str) -> list[int]:
    """What a second connection, past the proxy, sees."""
    with psycopg.connect(dsn) as connection:
        return [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")]


def test_a_lost_answer_to_commit_leaves_the_transaction_applied(
    pg_database: str, proxied_dsn: str, postgres_proxy: Proxy, table: str
) -> None:
    with psycopg.connect(proxied_dsn) as connection:
        connection.execute(f"INSERT INTO {table} VALUES (1)".encode())
        postgres_proxy.lose_answer()
        with pytest.raises(psycopg.OperationalError) as lost:
            connection.commit()
        assert lost.value.sqlstate is None
    assert rows(pg_database) == [1]


def test_a_cut_before_commit_leaves_nothing_and_looks_the_same_to_the_client(
    pg_database: str, proxied_dsn: str, postgres_proxy: Proxy, table: str
) -> None:
    with psycopg.connect(proxied_dsn) as connection:
        connection.execute(f"INSERT INTO {table} VALUES (1)".encode())
        postgres_proxy.cut()
        with pytest.raises(psycopg.OperationalError) as cut:
            connection.commit()
        assert cut.value.sqlstate is None
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(proxied_dsn)
    assert rows(pg_database) == []
    postgres_proxy.clear()
    psycopg.connect(proxied_dsn).close()


def test_latency_delays_every_answer(proxied_dsn: str, postgres_proxy: Proxy) -> None:
    with psycopg.connect(proxied_dsn) as connection:
        postgres_proxy.latency(300)
        began = time.monotonic()
        connection.execute("SELECT 1")
        assert time.monotonic() - began >= 0.3
        postgres_proxy.clear()


def test_a_half_open_connection_takes_requests_and_never_answers(
    pg_database: str, proxied_dsn: str, postgres_proxy: Proxy, table: str
) -> None:
    with contextlib.closing(psycopg.connect(proxied_dsn, autocommit=True)) as connection:
        postgres_proxy.half_open()
        sent = connection.pgconn
        sent.send_query(f"INSERT INTO {table} VALUES (1)".encode())
        sent.flush()
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            sent.consume_input()
            assert sent.is_busy()
            time.sleep(0.05)
        assert rows(pg_database) == [1]


@pytest.mark.wide
def test_a_lost_answer_to_a_kafka_commit_is_an_error_at_the_client(
    kafka_server: servers.Kafka, kafka_proxy: Proxy, topic_name: str
) -> None:
    kafka_server.create_topic(topic_name)
    producer = Producer(
        {
            "bootstrap.servers": kafka_proxy.address,
            "transactional.id": topic_name,
            "log_level": 0,
            "reconnect.backoff.ms": 10,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic_name, b"x")
    assert producer.flush(30) == 0
    kafka_proxy.lose_answer()
    with pytest.raises(KafkaException):
        producer.commit_transaction(5)
    kafka_proxy.clear()


def test_a_taken_port_and_a_vanished_proxy_are_named(
    toxiproxy_server: ToxiproxyServer, postgres_server: servers.Postgres
) -> None:
    taken = int(postgres_server.address.rpartition(":")[2])
    with pytest.raises(ServerUnavailable, match=f"{taken}.*address already in use"):
        toxiproxy_server.proxy(postgres_server.address, port=taken)
    gone = toxiproxy_server.proxy(postgres_server.address)
    gone.close()
    with pytest.raises(ServerUnavailable, match=f"{gone.name}.*proxy not found|proxy not found.*{gone.name}"):
        gone.cut()
