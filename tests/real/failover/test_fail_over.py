"""A fail-over behind one address, in the middle of an epoch: nothing is lost, nothing is there twice.

The primary dies, and the address leads to its standby.  For a while the standby answers, and takes no writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from epochal.chaos.servers.postgres import PostgresServer
from epochal.chaos.servers.postgres_standby import PostgresStandby
from epochal.chaos.servers.toxiproxy import Proxy, ToxiproxyServer
from epochal.chaos.strike.nemesis import poll
from epochal.chaos.strike.standby import Start
from tests.real.failover.conftest import Pair
from tests.real.kills.conftest import local_drivers, make_job
from tests.real.kills.support import END_S, ROWS, SEEN_S, Job, MakeJob, ends_named, finish

__all__ = ["local_drivers", "make_job"]
pytestmark = [pytest.mark.wide, pytest.mark.timeout(1800)]

FailOver = Callable[[int], Job]
BEFORE_VOTE = "before-vote@postgres:1=barrier"
PREPARED = "before-decide:1=barrier"
DECIDED = "after-decide:1=barrier"
COMMITTED = "after-sink-commit@postgres:1=barrier"


@pytest.fixture
def address(pair: Pair, toxiproxy_server: ToxiproxyServer) -> Iterator[Proxy]:
    """The one address of the two servers."""
    with toxiproxy_server.proxy(pair.primary.address) as proxy:
        yield proxy


def promote_once_asked(pair: Pair, driver: Start) -> None:
    """The driver meets the standby first, and then goes to its end, or ends with a named error."""
    poll(lambda: pair.asked_the_standby("epochal postgres"), SEEN_S, f"the standby is asked:\n{driver.tail()}")
    pair.standby.promote()
    if driver.wait(END_S) != 0:
        ends_named(driver, "errors.SinkUnavailable:", "errors.CommitPending:")


@pytest.mark.parametrize("point", [BEFORE_VOTE, PREPARED, DECIDED, COMMITTED])
def test_a_fail_over_in_mid_epoch(pair: Pair, address: Proxy, make_job: MakeJob, point: str) -> None:
    job = replace(make_job(4), dsn=pair.primary.database_dsn("postgres", port=address.port))
    with job.start(point) as driver:
        driver.see_blocked(point, SEEN_S)
        pair.primary.crash()
        address.lead_to(pair.standby.address)
        driver.go(point)
        promote_once_asked(pair, driver)
    finish(job)
    job.check_exact()


@pytest.mark.parametrize("done", [3, 11, 19])
def test_a_fail_over_under_load(pair: Pair, address: Proxy, make_job: MakeJob, done: int) -> None:
    """Epoch follows epoch without a pause, and nothing waits for the fail-over: it comes where it comes."""
    job = replace(make_job(30), dsn=pair.primary.database_dsn("postgres", port=address.port))
    with job.start() as driver:
        job.wait_done(done, driver)
        pair.primary.crash()
        address.lead_to(pair.standby.address)
        promote_once_asked(pair, driver)
    finish(job)
    job.check_exact()


@pytest.fixture
def fail_over_without(toxiproxy_server: ToxiproxyServer, make_job: MakeJob) -> Iterator[FailOver]:
    """A function: a fail-over to a standby that lacks so many epochs, as the primary did not wait for it."""
    with (
        PostgresServer() as primary,
        PostgresStandby(primary) as standby,
        toxiproxy_server.proxy(primary.address) as address,
    ):

        def fail_over(epochs: int) -> Job:
            job = replace(make_job(2), dsn=primary.database_dsn("postgres", port=address.port))
            finish(job)
            standby.wait_until_followed()
            standby.stop()
            for _ in range(epochs):
                job.feed()
            finish(job)
            primary.crash()
            standby.start()
            standby.promote()
            address.lead_to(standby.address)
            job.feed()
            return job

        yield fail_over


def test_one_lost_epoch_is_written_again(fail_over_without: FailOver) -> None:
    job = fail_over_without(1)
    finish(job)
    job.check_exact()


def test_two_lost_epochs_end_each_start_with_a_named_error(fail_over_without: FailOver) -> None:
    job = fail_over_without(2)
    for _ in range(2):
        with job.start() as driver:
            ends_named(driver, "errors.MarkerLost:", "errors.CheckpointMismatch:")
    assert job.stored_in_postgres() == 2 * ROWS
