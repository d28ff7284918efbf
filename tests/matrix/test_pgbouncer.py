"""Sink and log behind a real pgbouncer in transaction mode: one session's transactions run on many back-ends.

What the tests observe, they observe through it, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from epochal.chaos import servers
from epochal.chaos.servers.toxiproxy import Proxy, ToxiproxyServer
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.postgres.address import Address, Limits
from epochal.sinks.postgres.client import open_session
from epochal.sinks.postgres.modes import Upsert
from tests.matrix.pgbouncer import PgBouncer
from tests.real.checkpoints import test_postgres_log
from tests.real.kills.support import LOCAL, SEEN_S, Job, drivers, ends_named, finish
from tests.real.sinks.postgres import support, test_commit, test_contract, test_network
from tests.real.sinks.postgres.support import ONE, QUERY, TWO, observe, ready
from tests.real.sinks.postgres.test_network import sink, vote  # noqa: F401  # fixtures of the tests below


@pytest.fixture(scope="module")
def pool(postgres_server: servers.Postgres) -> Iterator[PgBouncer]:
    with PgBouncer(postgres_server) as started:
        yield started


@pytest.fixture
def direct_database(pg_database: str) -> str:
    return pg_database


@pytest.fixture
def pooled(direct_database: str, pool: PgBouncer) -> str:
    """The database through the pool, which has several back-ends there by then."""
    dsn = pool.database_dsn(direct_database.rpartition("/")[2])
    spare(dsn)
    return dsn


def spare(dsn: str) -> None:
    """Three back-ends of the pool are idle after it."""
    with ExitStack() as open_at_once:
        for _ in range(3):
            connection = open_at_once.enter_context(psycopg.connect(dsn, connect_timeout=60))
            connection.execute("SELECT 1")


def test_two_transactions_of_a_session_have_different_back_ends(pooled: str) -> None:
    """Else the tests below would show nothing."""
    session = open_session(Address(pooled), "out", Limits())
    pids = set()
    for _ in range(4):
        with session.transaction():
            pids.add(session.backend())
            assert session.backend() in pids
    session.close()
    assert len(pids) > 1


# --- the contracts --------------------------------------------------------------------------------


class TestPostgresSinkBehindThePool(test_contract.TestPostgresSink):
    @pytest.fixture
    def harness(
        self, spark: SparkSession, postgres_server: servers.Postgres, pooled: str
    ) -> test_contract.PostgresHarness:
        return test_contract.PostgresHarness(spark, postgres_server, pooled, self.mode)


class TestUpsertingPostgresSinkBehindThePool(TestPostgresSinkBehindThePool):
    mode = Upsert(key=["id", "n"])


class TestPostgresLogBehindThePool(test_postgres_log.TestPostgresLog):
    @pytest.fixture
    def pg_database(self, pooled: str) -> str:
        return pooled

    @pytest.fixture
    def direct_database(self, postgres_server: servers.Postgres) -> Iterator[str]:
        name = f"log_{threading.get_native_id()}"
        yield postgres_server.create_database(name)
        postgres_server.drop_database(name)


# --- lost answers, and a link that is cut, between client and pool --------------------------------


class TestTheLink:
    @pytest.fixture
    def postgres_proxy(self, pool: PgBouncer, toxiproxy_server: ToxiproxyServer) -> Iterator[Proxy]:
        with toxiproxy_server.proxy(pool.address) as proxy:
            yield proxy

    @pytest.fixture
    def proxied_dsn(self, pooled: str, pool: PgBouncer, postgres_proxy: Proxy) -> str:
        return pooled.replace(pool.address, postgres_proxy.address)

    test_lost = staticmethod(test_network.test_the_answer_to_commit_is_lost_for_good_and_asked_later)
    test_lost_and_asked = staticmethod(test_network.test_the_answer_to_commit_is_lost_and_the_marker_answers)
    test_cut = staticmethod(test_network.test_the_link_is_cut_before_commit)
    test_half_open = staticmethod(test_network.test_a_half_open_link_at_any_verb_ends_within_its_limit)


# --- who is ended ---------------------------------------------------------------------------------


def test_a_fence_ends_who_holds_the_row_and_nobody_else(pooled: str) -> None:
    """The others, too, wait and hold: on back-ends that the fence had before its transaction."""
    made = ready(pooled)
    observe(pooled, "CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    with test_commit.holding(pooled) as zombie, psycopg.connect(pooled, connect_timeout=60) as innocent:
        innocent.execute("UPDATE other SET id = id")
        waiting = [threading.Thread(target=_update_other, args=(pooled,), daemon=True) for _ in range(4)]
        for thread in waiting:
            thread.start()
        spare(pooled)
        made.fence(QUERY, TWO)
        with pytest.raises(psycopg.OperationalError):
            zombie.execute("SELECT 1")
        innocent.execute("SELECT 1")
        innocent.commit()
        for thread in waiting:
            thread.join(120)
            assert not thread.is_alive()
    assert made.look(QUERY, by=TWO).fence == TWO
    made.close()


def _update_other(dsn: str) -> None:
    with psycopg.connect(dsn, connect_timeout=60) as connection:
        connection.execute("UPDATE other SET id = id")


def test_a_pool_that_dies_in_a_commit_leaves_no_doubt(pooled: str, pool: PgBouncer) -> None:
    from epochal.coordinator.model import failpoints
    from epochal.coordinator.model.errors import OutcomeUnknown, SinkUnavailable
    from epochal.coordinator.model.failpoints import Point
    from epochal.sinks.postgres.write import write_partition
    from epochal.sinks.protocol import CommitOutcome

    made = ready(pooled)
    of = support.voted([write_partition(support.task(pooled), support.batches([1, 2]))], support.epoch())

    def die(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.BEFORE_PUBLISH and pool.running():
            pool.crash()

    with failpoints.handler(die), pytest.raises((OutcomeUnknown, SinkUnavailable)):
        made.commit(of, ONE)
    pool.start()
    assert support.visible(pooled) == []
    assert made.commit(of, ONE) is CommitOutcome.COMMITTED
    assert support.visible(pooled) == [1, 2]
    made.close()


# --- two drivers and a kill -----------------------------------------------------------------------


@pytest.mark.timeout(1200)
def test_two_drivers_and_a_kill(pooled: str, tmp_path: Path) -> None:
    """One sleeps in its commit and holds the sink's row, the next is killed there, a third does the rest."""
    with drivers(LOCAL, tmp_path / "drivers") as local:
        job = Job(local, tmp_path, pooled, "", "flights", 5, sinks=("postgres",))
        asleep, killed = "before-publish@postgres:1=barrier", "before-publish@postgres:3=barrier"
        with job.start(asleep) as first:
            first.see_blocked(asleep, SEEN_S)
            first.pause()
            with job.start(killed) as second:
                second.see_blocked(killed, SEEN_S)
                second.kill()
            finish(job)
            first.go(asleep)
            first.resume()
            ends_named(first, "errors.Fenced:", "CONCURRENT_STREAM_LOG_UPDATE", "errors.CommitInDoubt:")
        job.check_exact()


def test_the_sink_needs_no_pool_of_its_own_size(pooled: str) -> None:
    """Connections are given back after every transaction: more sinks than back-ends take turns."""
    made = [PostgresSink(pooled, table=f"t{n}", name=f"s{n}") for n in range(30)]
    for each in made:
        each.create(QUERY, support.SCHEMA)
    for each in made:
        each.look(QUERY)
        each.fence(QUERY, ONE)
    for each in made:
        each.close()
