"""What a reader of a hot standby sees, and what a sink and a log say that are led to one."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal.chaos.contract.logs import fence
from epochal.chaos.servers.postgres import PostgresServer
from epochal.checkpoints.postgres import PostgresLog
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import SinkUnavailable
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.postgres.write import write_partition
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres.support import (
    ONE,
    QUERY,
    SCHEMA,
    TWO,
    batches,
    epoch,
    observe,
    ready,
    rows,
    stored,
    task,
    visible,
    voted,
)


@contextmanager
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A streaming replica, begun from a cold copy of the data."""
    replica = PostgresServer(settings={"primary_conninfo": f"host=127.0.0.1 port={primary.port} user=postgres"})
    owner = primary.directory.stat()
    primary.stop()
    os.chown(replica.directory, owner.st_uid, owner.st_gid)
    subprocess.run(["cp", "-a", str(primary.directory / "data"), str(replica.directory)], check=True, timeout=60)
    (replica.directory / "data" / "standby.signal").touch()
    primary.start()
    with replica:
        yield replica


def caught_up(primary: PostgresServer, replica: PostgresServer) -> None:
    """Wait until the replica has replayed all that the primary has committed."""
    [(written,)] = observe(primary.dsn, "SELECT pg_current_wal_lsn()::text")
    deadline = time.monotonic() + 120
    while observe(replica.dsn, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", written) != [(True,)]:
        assert time.monotonic() < deadline, f"the replica did not come to {written}"
        time.sleep(0.05)


def test_a_replica_shows_marker_and_rows_at_once() -> None:
    reads: list[tuple[Any, ...]] = []
    with PostgresServer() as primary, standby(primary) as replica:

        def read(point: Point, _sink: str, _epoch: int) -> None:
            caught_up(primary, replica)
            [markers] = observe(
                replica.dsn, "SELECT (SELECT count(*) FROM epochal.epochs), published FROM epochal.sinks"
            )
            reads.append((point, *markers, visible(replica.dsn), len(stored(replica.dsn))))

        sink = ready(primary.dsn)
        for number in range(2):
            vote = voted([write_partition(task(primary.dsn, position=number + 1), batches([number]))], epoch(number))
            with failpoints.handler(read):
                sink.commit(vote, ONE)
        sink.close()
    assert reads == [
        (Point.BEFORE_PUBLISH, 0, 0, [], 1),
        (Point.AFTER_PUBLISH, 1, 1, [0], 1),
        (Point.BEFORE_PUBLISH, 1, 1, [0], 2),
        (Point.AFTER_PUBLISH, 2, 2, [0, 1], 2),
    ]


@pytest.mark.remedy("… is a standby, which takes no writes", "nothing to do if a fail-over is under way")
def test_a_standby_is_a_server_that_is_away_whatever_it_is_asked(spark: SparkSession) -> None:
    """P16: a fail-over leads the address to a standby for a while: no refusal, no doubt."""
    with PostgresServer() as server:
        sink, log = ready(server.dsn), PostgresLog(server.dsn, "flights", timeout=5)
        log.create()
        log.append(0, fence())
        one = task(server.dsn)
        vote = voted([write_partition(one, batches([1]))], epoch())
        server.stop()
        (server.directory / "data" / "standby.signal").touch()
        server.start()
        asked: dict[str, Callable[[], object]] = {
            "create": lambda: sink.create(QUERY, SCHEMA),
            "check": lambda: sink.check(QUERY, SCHEMA),
            "look": lambda: sink.look(QUERY),
            "look again": lambda: sink.look(QUERY, by=ONE),
            "fence": lambda: sink.fence(QUERY, TWO),
            "abort": lambda: sink.abort(QUERY, ONE),
            "prepare": lambda: sink.prepare(epoch(1), rows(spark, [1]), ONE),
            "task": lambda: write_partition(one, batches([2])),
            "commit": lambda: sink.commit(vote, ONE),
            "create the log": log.create,
            "read": log.read,
            "append": lambda: log.append(1, fence(2)),
            "compact": lambda: log.compact(1, ()),
        }
        for verb, ask in asked.items():
            with pytest.raises(SinkUnavailable) as away:
                ask()
            told = "during recovery" if away.value.sink is None else "is a standby, which takes no writes"
            assert told in away.value.what, verb
        assert observe(server.dsn, "SELECT pg_promote()") == [(True,)]
        assert log.append(1, fence(2))
        assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
        assert visible(server.dsn) == [1]
        sink.close()
