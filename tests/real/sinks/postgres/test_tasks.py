"""A task's transaction, run in this process against the real server: twins, zombies, lost votes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import Misconfigured, SinkUnavailable
from epochal.coordinator.model.failpoints import FailpointError, Point
from epochal.sinks.postgres.ddl import PgColumn
from epochal.sinks.postgres.ways import Way
from epochal.sinks.postgres.write import write_partition
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, TWO, batches, epoch, ready, registered, stored, task, visible
from tests.remedies import installed_by


def held(started: threading.Event, go: threading.Event, ids: list[int]) -> Iterator[pa.RecordBatch]:
    """Half of the rows, then a pause until ``go``, then the other half."""
    yield from batches(ids[:1])
    started.set()
    assert go.wait(120)
    yield from batches(ids[1:])


def test_rows_and_registration_are_one_transaction(pg_database: str) -> None:
    ready(pg_database)
    write_partition(task(pg_database), batches([1, 2], [], [3]))
    assert stored(pg_database) == [(1, 1), (1, 2), (1, 3)]
    assert registered(pg_database) == [(1, 3)]
    assert support.observe(
        pg_database, "SELECT DISTINCT r.xmin::text = a.xmin::text FROM flights__rows r, epochal.attempts a"
    ) == [(True,)]


def test_a_partition_without_rows_votes_without_a_connection(pg_database: str) -> None:
    nowhere = task(pg_database.replace("127.0.0.1", "host.invalid"))
    assert write_partition(nowhere, batches([], [])) == {}


def test_a_zombie_whose_copy_began_before_the_fence_leaves_nothing(pg_database: str) -> None:
    sink = ready(pg_database)
    started, go = threading.Event(), threading.Event()
    votes: list[object] = []
    zombie = threading.Thread(
        target=lambda: votes.append(write_partition(task(pg_database), held(started, go, [1, 2])))
    )
    zombie.start()
    assert started.wait(120)
    sink.fence(QUERY, TWO)
    sink.abort(QUERY, TWO)
    go.set()
    zombie.join(120)
    assert votes == [{"stale": {"fence": TWO.to_json(), "published": 0}}]
    assert (stored(pg_database), registered(pg_database)) == ([], [])


def test_a_twin_that_comes_after_the_publish_leaves_nothing(pg_database: str) -> None:
    sink = ready(pg_database)
    started, go = threading.Event(), threading.Event()
    votes: list[object] = []
    twin = threading.Thread(target=lambda: votes.append(write_partition(task(pg_database), held(started, go, [1, 2]))))
    twin.start()
    assert started.wait(120)
    winner = write_partition(task(pg_database), batches([1, 2]))
    assert sink.commit(support.voted([winner], epoch()), ONE) is CommitOutcome.COMMITTED
    go.set()
    twin.join(120)
    assert votes == [{"stale": {"fence": ONE.to_json(), "published": 1}}]
    assert stored(pg_database) == [(1, 1), (1, 2)]
    assert visible(pg_database) == [1, 2]


def test_a_twin_that_came_before_the_publish_is_deleted_by_it(pg_database: str) -> None:
    sink = ready(pg_database)
    write_partition(task(pg_database), batches([1, 2]))
    winner = write_partition(task(pg_database), batches([1, 2]))
    assert sink.commit(support.voted([winner], epoch()), ONE) is CommitOutcome.COMMITTED
    assert stored(pg_database) == [(1, 1), (1, 2)]
    assert visible(pg_database) == [1, 2]
    assert registered(pg_database) == []


def test_a_publish_waits_for_a_twin_that_has_looked_and_deletes_it(pg_database: str) -> None:
    sink = ready(pg_database)
    winner = write_partition(task(pg_database), batches([1, 2]))
    support.observe(
        pg_database,
        "CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END';"
        " CREATE CONSTRAINT TRIGGER linger AFTER INSERT ON epochal.attempts DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION linger()",
    )
    twin = threading.Thread(target=write_partition, args=(task(pg_database), batches([1, 2])))
    twin.start()
    lingering = "SELECT 1 FROM pg_stat_activity WHERE query = 'COMMIT' AND wait_event = 'PgSleep'"
    deadline = time.monotonic() + 120
    while not support.observe(pg_database, lingering):
        assert time.monotonic() < deadline
    assert sink.commit(support.voted([winner], epoch()), ONE) is CommitOutcome.COMMITTED
    twin.join(120)
    assert visible(pg_database) == [1, 2]
    assert stored(pg_database) == [(1, 1), (1, 2)]


def test_text_that_is_none_is_counted_by_column(pg_database: str) -> None:
    ready(pg_database)
    raw = [b"a\0", b"\xc3(", b"fine", b"\xed\xa0\x80", None]
    column = pa.array(raw, pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array(range(5), pa.int64()), column], names=["c0", "c1"])
    assert write_partition(task(pg_database), iter([batch, batch])) == {"unholdable": {"attempt": 6}}
    assert stored(pg_database) == []


def test_a_task_that_fails_after_its_commit_is_tried_again(pg_database: str) -> None:
    sink = ready(pg_database)
    with failpoints.armed("before-vote@out:0#1=raise"):
        with pytest.raises(FailpointError):
            write_partition(task(pg_database), batches([1, 2]))
        winner = write_partition(task(pg_database), batches([1, 2]))
    assert registered(pg_database) == [(1, 2), (1, 2)]
    sink.commit(support.voted([winner], epoch()), ONE)
    assert visible(pg_database) == [1, 2]


def test_a_task_that_fails_between_rows_leaves_nothing(pg_database: str) -> None:
    ready(pg_database)
    hits: list[tuple[Point, str, int]] = []

    def strike(*where: object) -> None:
        hits.append(where)  # type: ignore[arg-type]
        if len(hits) == 2:
            raise FailpointError("here")

    with failpoints.handler(strike), pytest.raises(FailpointError):
        write_partition(task(pg_database), batches([1], [2], [3]))
    assert hits == [(Point.IN_WRITE, "out", 0)] * 2
    assert stored(pg_database) == []


@pytest.mark.remedy(
    "… did not complete the statement: …",
    "start the server or make it reachable (its log says why it broke off), and restart the query",
)
def test_the_server_dies_under_a_copy(pg_database: str) -> None:
    ready(pg_database)

    def dying() -> Iterator[pa.RecordBatch]:
        yield from batches([1])
        support.observe(
            pg_database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'epochal out %' AND state = 'active' AND datname = current_database()",
        )
        yield from batches(*[range(n, n + 1000) for n in range(0, 100_000, 1000)])

    with pytest.raises(SinkUnavailable, match=r"sink 'out': Postgres at 127\.0\.0\.1"):
        write_partition(task(pg_database), dying())
    assert stored(pg_database) == []
    support.sink(pg_database).fence(QUERY, TWO)
    assert write_partition(task(pg_database, TWO), batches([1]))["rows"] == 1


def test_a_server_that_is_down_is_named_within_the_limit() -> None:
    with pytest.raises(SinkUnavailable, match=r"cannot connect to Postgres at 127\.0\.0\.1:1,") as error:
        write_partition(task("postgresql://postgres@127.0.0.1:1/x"), batches([1]))
    assert support.PASSWORD not in str(error.value)


@pytest.mark.remedy(
    "the Postgres client is missing here: …", "pip install 'epochal[postgres]' on the driver and on every executor"
)
def test_a_driver_without_the_client_goes_on_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch, pg_database: str
) -> None:
    ready(pg_database)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "epochal.sinks.postgres.session", None)
        with pytest.raises(Misconfigured, match="client is missing here") as refused:
            support.sink(pg_database).look(QUERY)
    assert "psycopg" in installed_by(refused.value.help)
    assert support.sink(pg_database).look(QUERY).fence == ONE


@pytest.mark.parametrize(
    ("module", "what"),
    [("epochal.sinks.postgres.session", "the Postgres client is missing here"), ("numpy", "numpy is missing here")],
)
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, pg_database: str, module: str, what: str) -> None:
    monkeypatch.delitem(sys.modules, "epochal.sinks.postgres.binary", raising=False)  # a worker that has just started
    monkeypatch.setitem(sys.modules, module, None)
    vote = write_partition(task(pg_database), batches([1]))
    assert what in vote["client"]


def test_a_constraint_is_a_no_with_the_servers_words(pg_database: str) -> None:
    ready(pg_database)
    support.observe(pg_database, "ALTER TABLE flights__rows ADD CONSTRAINT small CHECK (id < 3)")
    vote = write_partition(task(pg_database), batches([1, 2, 3]))
    assert "small" in vote["refused"]
    assert "23514" in vote["state"]
    assert stored(pg_database) == []


def test_a_table_that_was_altered_meanwhile_takes_no_row(pg_database: str) -> None:
    """Eight bytes are a number of either type."""
    ready(pg_database)
    meant = tuple(Way.made(PgColumn(*each)) for each in (("id", ("double precision",)), ("attempt", ("text",))))
    vote = write_partition(task(pg_database, columns=meant), batches([1, 2]))
    assert vote["refused"] == 'column "id" of flights__rows is bigint, the rows need double precision'
    assert (stored(pg_database), registered(pg_database)) == ([], [])
