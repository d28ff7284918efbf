"""A COMMIT that no standby has confirmed counts for nothing, also where it became visible.

While its synchronous standby is away, a primary writes a COMMIT to its own disk and waits.  If it crashes meanwhile, it
shows after its restart what no standby has.  A fail-over would lose it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from epochal.chaos.contract.logs import commit, fence
from epochal.chaos.strike.nemesis import poll
from epochal.checkpoints.postgres import PostgresLog
from epochal.coordinator.model.errors import OutcomeUnknown, SinkUnavailable
from epochal.sinks.protocol import CommitOutcome
from tests.real.failover.conftest import Pair
from tests.real.sinks.postgres.support import HASTY, ONE, PATIENT, epoch, observe, ready, rows, set_limits, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEN_S = 300.0
NOT_CONFIRMED = (OutcomeUnknown, SinkUnavailable)


def waiting(pair: Pair) -> list[tuple[Any, ...]]:
    """The back-ends whose COMMIT waits for the standby."""
    return observe(pair.primary.dsn, "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")


@contextmanager
def cancelled(pair: Pair) -> Iterator[None]:
    """Somebody cancels the first COMMIT that waits for the standby: the server answers it, with a warning."""

    def cancel() -> None:
        ((pid,),) = poll(lambda: waiting(pair) or None, SEEN_S, "a COMMIT that waits for the standby")
        observe(pair.primary.dsn, "SELECT pg_cancel_backend(%s)", pid)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(cancel)
        yield
        done.result()


@pytest.mark.remedy(
    "… answered COMMIT with a warning: …",
    "restart the query if it has ended: Epochal reads the marker, and waits for the standby again",
)
@pytest.mark.wide  # the row's lock, which another test shows, is also what makes the COMMIT wait
def test_an_epoch_that_no_standby_has_is_not_committed(pair: Pair, spark: SparkSession) -> None:
    sink = ready(pair.primary.dsn)
    limits = sink._core.limits
    vote = sink.prepare(epoch(), rows(spark, [1, 2]), ONE)
    pair.standby.stop()
    set_limits(limits, **HASTY)
    with cancelled(pair), pytest.raises(OutcomeUnknown, match="answered COMMIT with a warning"):
        sink.commit(vote, ONE)
    pair.primary.crash()
    pair.primary.start()
    assert visible(pair.primary.dsn) == [1, 2], "on the disk of the primary alone"
    for _ in range(2):
        with pytest.raises(NOT_CONFIRMED):
            sink.commit(vote, ONE)
    pair.standby.start()
    set_limits(limits, connect=PATIENT.connect, lock=PATIENT.lock, answer=PATIENT.answer, bulk=PATIENT.bulk)
    assert sink.commit(vote, ONE) is CommitOutcome.ALREADY_COMMITTED
    pair.primary.crash()
    pair.standby.promote()
    assert visible(pair.standby.dsn) == [1, 2]


@pytest.mark.remedy(
    "the COMMIT of the … was answered with a warning: …",
    "repeat the same request: it waits again for the synchronous standby",
)
@pytest.mark.remedy(
    "no synchronous standby has what the … of the epoch log has read: …",
    "start the standby, or take it out of synchronous_standby_names, then repeat the request",
)
def test_a_record_that_no_standby_has_is_neither_read_nor_appended(pair: Pair) -> None:
    log, patient = (PostgresLog(pair.primary.dsn, "flights", timeout=seconds) for seconds in (1, 60))
    log.create()
    decided = commit(0)
    assert log.append(0, fence(1))
    pair.standby.stop()
    with cancelled(pair), pytest.raises(OutcomeUnknown, match="was answered with a warning"):
        patient.append(1, decided)
    pair.primary.crash()
    pair.primary.start()
    seen = observe(pair.primary.dsn, "SELECT count(*) FROM epochal.log")
    assert seen == [(2,)], "the second is on the disk of the primary alone"
    with pytest.raises(SinkUnavailable, match="no synchronous standby has what the append at position 1"):
        log.append(1, decided)
    with pytest.raises(SinkUnavailable, match="no synchronous standby has what the read"):
        log.read()
    assert waiting(pair) == [], "a wait that is given up leaves no back-end behind"
    pair.standby.start()
    assert not patient.append(1, decided)
    assert [entry.record for entry in patient.read()] == [fence(1), decided]
    pair.primary.crash()
    pair.standby.promote()
    assert [entry.record for entry in PostgresLog(pair.standby.dsn, "flights").read()] == [fence(1), decided]
