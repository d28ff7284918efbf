"""Two live drivers: at most one goes on, the other ends with a named error, and nothing is lost or doubled."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Fence
from tests.real.kills.support import END_S, SEEN_S, MakeJob, ends_named, finish

pytestmark = pytest.mark.timeout(1800)

ONE = ("postgres",)  # where what is asked is who may go on, not what the sinks do
TAKEN_OVER = ("errors.Fenced:", "CONCURRENT_STREAM_LOG_UPDATE")
BEFORE_ITS_DECISION = "before-decide:1=barrier"
IN_COMMIT = "before-publish@postgres:3=barrier"
IDENTIFIED = "after-identify:5=barrier"


@pytest.mark.wide
def test_the_older_of_two_drivers_on_one_checkpoint_ends(make_job: MakeJob) -> None:
    """Paused before its decision, in commit and as an epoch begins; each newcomer is the next one's older driver."""
    job = make_job(7)
    with ExitStack() as drivers:
        first = drivers.enter_context(job.start(BEFORE_ITS_DECISION))
        first.see_blocked(BEFORE_ITS_DECISION, SEEN_S)
        first.pause()
        first.go(BEFORE_ITS_DECISION)

        second = drivers.enter_context(job.start(IN_COMMIT))
        second.see_blocked(IN_COMMIT, SEEN_S)
        first.resume()
        ends_named(first, *TAKEN_OVER)
        second.pause()
        second.go(IN_COMMIT)

        third = drivers.enter_context(job.start(IDENTIFIED))
        third.see_blocked(IDENTIFIED, SEEN_S)
        second.resume()
        ends_named(second, *TAKEN_OVER)
        third.pause()
        third.go(IDENTIFIED)

        finish(job)
        third.resume()
        ends_named(third, *TAKEN_OVER)
    job.check_exact()


@pytest.mark.wide
@pytest.mark.parametrize(
    ("format", "end"),
    [
        ("delta", "CONCURRENT_STREAM_LOG_UPDATE"),
        # Spark's file source keeps a log of its own, and finds there what Spark would find in offsets/N.
        ("json", "Concurrent update to the log. Multiple streaming jobs detected"),
    ],
    ids=["delta", "json"],
)
def test_a_driver_that_slept_between_two_epochs_ends_when_it_wakes(make_job: MakeJob, format: str, end: str) -> None:
    """Halted while it waits for input: no epoch of its own is under way when the newer one takes over."""
    job = make_job(2, format=format, sinks=ONE)
    with job.start(waits=True) as older:
        job.wait_done(1, older)
        older.pause()
        assert job.idle()
        with job.start(waits=True) as newer:
            job.feed()
            job.wait_done(2, newer)
            job.feed()
            older.resume()
            ends_named(older, end)
            job.wait_done(3, newer)
            job.check_exact()


@pytest.mark.wide
def test_a_copy_and_a_new_checkpoint_are_refused_and_the_healthy_query_goes_on(make_job: MakeJob) -> None:
    job = make_job(5, sinks=ONE)
    early, late = "before-return:1=barrier", "before-decide:3=barrier"
    with job.start(early, late) as healthy:
        healthy.see_blocked(early, SEEN_S)
        copied = job.with_checkpoint("copy", copied=True)
        healthy.go(early)
        healthy.see_blocked(late, SEEN_S)
        for newcomer in (copied, job.with_checkpoint("another", copied=False)):
            with newcomer.start() as driver:
                ends_named(driver, "errors.CheckpointMismatch:")
        healthy.go(late)
        assert healthy.wait(END_S) == 0, healthy.tail()
    log = FilesLog(job.checkpoint_path / "epochal" / "log")
    assert [entry.record.actor.generation for entry in log.read() if isinstance(entry.record, Fence)] == [1]
    job.check_exact()
