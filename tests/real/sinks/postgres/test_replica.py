"""What a reader of a hot standby sees: the same states as on the primary, and no others."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from epochal.chaos.servers.postgres import PostgresServer
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.postgres.write import write_partition
from tests.real.sinks.postgres.support import ONE, batches, epoch, observe, ready, stored, task, visible, voted


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
