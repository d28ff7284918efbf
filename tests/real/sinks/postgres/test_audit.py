"""What ``epochal.epochs`` keeps: bounded by number and age, where the role may delete there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from epochal.coordinator.model.epoch import Digest
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.epochs import KEPT_ALWAYS
from epochal.sinks.postgres import PostgresSink, audit
from epochal.sinks.postgres.session import Session
from epochal.sinks.postgres.write import write_partition
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, SCHEMA, batches, epoch, observe, ready, task, voted

GRANTS = (
    "USAGE ON SCHEMA epochal",
    "SELECT, UPDATE ON epochal.sinks",
    "SELECT, INSERT ON epochal.epochs",
    "SELECT, INSERT, DELETE ON epochal.attempts, flights__rows",
    "USAGE ON SEQUENCE epochal.attempt",
)
"""What an older Epochal asked for."""


def show(sink: PostgresSink, dsn: str, *positions: int) -> None:
    for position in positions:
        votes = [write_partition(task(dsn, position=position), batches([position]))]
        assert sink.commit(voted(votes, epoch(position - 1)), ONE) is CommitOutcome.COMMITTED


def stand_at(dsn: str, position: int, *, days: float = 0) -> None:
    """As many epochs as if a sink had shown them, a day between any two, the newest so many days ago."""
    observe(
        dsn,
        "INSERT INTO epochal.epochs"
        " (app, sink, position, epoch, incarnation, decision, offsets, row_count, committed_at)"
        f" SELECT 'flights', 'out', n, n - 1, 'q1', n, '', 1, now() - ({position} - n + {days}) * interval '1 day'"
        f" FROM generate_series(1, {position}) n",
    )
    observe(dsn, f"UPDATE epochal.sinks SET published = {position}, decision = {position}")


def told(sink: PostgresSink, **asked: Any) -> list[int]:
    return [row.position for row in sink.epochs("flights", **asked)]


def test_as_many_as_is_said_are_kept_and_the_rows_of_all(pg_database: str) -> None:
    sink = ready(pg_database, keep_epochs=10)
    show(sink, pg_database, *range(1, 14))
    assert told(sink) == list(range(4, 14))
    assert told(sink, limit=1) == [13]
    assert support.visible(pg_database) == list(range(1, 14))


@pytest.mark.parametrize("why", ["protected", "locked"])
def test_an_audit_that_cannot_be_shortened_keeps_no_epoch_from_its_readers(
    pg_database: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ready(pg_database, keep_epochs=10)
    stand_at(pg_database, 20)
    with psycopg.connect(pg_database) as other:
        if why == "locked":
            other.execute("SELECT FROM epochal.epochs FOR UPDATE")
        else:
            observe(
                pg_database,
                "CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'kept for ever'; END$$;"
                " CREATE TRIGGER never BEFORE DELETE ON epochal.epochs FOR EACH ROW EXECUTE FUNCTION never()",
            )
        show(sink, pg_database, 21)
    assert told(sink) == list(range(1, 22))
    assert support.visible(pg_database) == [21]
    assert "could not be shortened" in caplog.text


def test_a_long_audit_is_shortened_epoch_by_epoch_and_others_are_let_alone(pg_database: str) -> None:
    sink = ready(pg_database, keep_epochs=10)
    count = audit.DELETED_AT_MOST + 50
    stand_at(pg_database, count)
    observe(
        pg_database,
        "INSERT INTO epochal.epochs (app, sink, position, epoch, incarnation, decision, offsets, row_count)"
        " VALUES ('flights', 'other', 1, 0, 'q', 1, '', 0), ('others', 'out', 1, 0, 'q', 1, '', 0)",
    )
    show(sink, pg_database, count + 1)
    assert told(sink) == list(range(audit.DELETED_AT_MOST + 1, count + 2))
    show(sink, pg_database, count + 2)
    assert told(sink) == list(range(count - 7, count + 3))
    assert observe(pg_database, "SELECT count(*) FROM epochal.epochs WHERE (app, sink) <> ('flights', 'out')") == [(2,)]


@pytest.mark.parametrize(
    ("keep", "first"),
    [
        ({"keep_epochs": None, "keep_days": 14.5}, 17),
        ({"keep_epochs": 12, "keep_days": 14.5}, 20),
        ({"keep_epochs": None, "keep_days": 0.5}, 31 - KEPT_ALWAYS + 1),
        ({"keep_epochs": None}, 1),
    ],
)
def test_age_bounds_it_too_and_the_newest_stay(pg_database: str, keep: dict[str, Any], first: int) -> None:
    sink = ready(pg_database, **keep)
    stand_at(pg_database, 30, days=0.75)
    show(sink, pg_database, 31)
    assert told(sink) == list(range(first, 32))


def test_the_digest_of_the_newest_epoch_stays(pg_database: str) -> None:
    """Idempotent mode holds the next evaluation against it."""
    sink = ready(pg_database, keep_epochs=10, keep_days=0.000001)
    stand_at(pg_database, 30, days=400)
    observe(pg_database, "UPDATE epochal.epochs SET digest_rows = 7, digest_sum = 77")
    show(sink, pg_database, 31)
    observe(pg_database, "UPDATE epochal.sinks SET published = 30, decision = 30")
    marker = sink.look(QUERY).marker
    assert marker is not None
    assert (marker.position, marker.digest) == (30, Digest(7, 77))
    assert sink.epochs("flights", last=30, limit=1).rows[0].digest == Digest(7, 77)


def test_what_is_deleted_is_found_by_the_key(pg_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the length of the audit."""
    sink = ready(pg_database, keep_epochs=4_990, keep_days=100)
    stand_at(pg_database, 5_000, days=0.5)
    plans: list[str] = []

    def explained(session: Session, statement: str, *values: object) -> int:
        plans.extend(line for (line,) in session.run(f"EXPLAIN (ANALYZE, COSTS OFF) {statement}", *values))
        return 0

    monkeypatch.setattr(Session, "change", explained)
    show(sink, pg_database, 5_001)
    text = "\n".join(plans)
    assert "Seq Scan" not in text, text
    assert text.count("Index Cond: ((app = 'flights'::text) AND (sink = 'out'::text)") == 2, text
    assert '"position" = ANY' in text, text


def test_times_are_in_utc_whatever_the_session_says(pg_database: str) -> None:
    observe(pg_database, f"ALTER DATABASE {pg_database.rpartition('/')[2].split('?')[0]} SET timezone = 'Asia/Tokyo'")
    sink = ready(pg_database)
    show(sink, pg_database, 1)
    (row,) = sink.epochs("flights")
    ((expected,),) = observe(pg_database, "SELECT committed_at FROM epochal.epochs")
    assert expected.utcoffset() == timedelta(hours=9)
    assert (row.committed_at, row.committed_at.utcoffset()) == (expected, timedelta(0))


def test_where_nothing_was_created_it_says_so(pg_database: str) -> None:
    with pytest.raises(Misconfigured, match="there is no table"):
        support.sink(pg_database).epochs("flights")


# a role that was granted what an older Epochal asked for


@pytest.fixture
def writer(pg_database: str) -> Iterator[str]:
    """Its connection string."""
    ready(pg_database)
    name = f"writer_{pg_database.rpartition('_')[2].split('?')[0]}"
    observe(pg_database, f"CREATE ROLE {name} LOGIN; " + "; ".join(f"GRANT {right} TO {name}" for right in GRANTS))
    yield pg_database.replace("postgres@", f"{name}@")
    observe(pg_database, f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_role_that_may_not_delete_goes_on_and_is_told(
    pg_database: str, writer: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = PostgresSink(writer, table="flights", name="out", keep_epochs=10)
    stand_at(pg_database, 20)
    with caplog.at_level(logging.WARNING, "epochal.sinks.postgres"):
        sink.check(QUERY, SCHEMA)
    (warning,) = caplog.messages
    assert "sink out: the audit in epochal.epochs is not bounded" in warning
    sink.look(QUERY)
    show(sink, pg_database, 21)
    assert told(sink) == list(range(1, 22))

    observe(pg_database, warning.rpartition(": ")[2])
    show(sink, pg_database, 22)
    assert told(sink) == list(range(13, 23))
    caplog.clear()
    with caplog.at_level(logging.WARNING, "epochal.sinks.postgres"):
        sink.check(QUERY, SCHEMA)
    assert caplog.messages == []

    observe(pg_database, f"REVOKE DELETE ON epochal.epochs FROM {psycopg.conninfo.conninfo_to_dict(writer)['user']}")
    show(sink, pg_database, 23)
    assert told(sink) == list(range(13, 24))


def test_who_keeps_everything_needs_no_right_to_delete(writer: str, caplog: pytest.LogCaptureFixture) -> None:
    sink = PostgresSink(writer, table="flights", name="out", keep_epochs=None)
    with caplog.at_level(logging.WARNING, "epochal.sinks.postgres"):
        sink.check(QUERY, SCHEMA)
    assert caplog.messages == []


def test_what_a_writing_role_is_said_to_need_has_it(pg_database: str) -> None:
    said = support.sink(pg_database).create(QUERY, SCHEMA)
    assert "GRANT SELECT, INSERT, DELETE ON epochal.epochs TO <role>" in said[-1]


def test_rows_that_this_role_may_not_read_end_in_an_error_of_ours(pg_database: str, writer: str) -> None:
    """Rows are read by another way than everything else: as a stream."""
    inspection = PostgresSink(writer, table="flights", name="out").inspection(QUERY)
    assert list(inspection.rows(1, ["id"])) == []
    role = writer.partition("//")[2].partition("@")[0]
    observe(pg_database, f"REVOKE SELECT ON flights__rows FROM {role}")
    with pytest.raises(Misconfigured, match="permission denied for table flights__rows"):
        list(inspection.rows(1, ["id"]))
