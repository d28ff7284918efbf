"""Two live drivers: at most one goes on, the other ends with a named error, and nothing is lost or doubled."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.log import Fence
from tests.kills.support import END_S, SEEN_S, MakeJob, ends_named, finish

pytestmark = pytest.mark.timeout(1800)

TAKEN_OVER = ("errors.Fenced:", "CONCURRENT_STREAM_LOG_UPDATE")
BEFORE_ITS_DECISION = "before-decide:1=barrier"
IN_COMMIT = "before-publish@postgres:3=barrier"
BETWEEN_EPOCHS = "after-identify:5=barrier"


def test_the_older_of_two_drivers_on_one_checkpoint_ends(make_job: MakeJob) -> None:
    """Paused before its decision, in commit and between epochs; each newcomer is the next one's older driver."""
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

        third = drivers.enter_context(job.start(BETWEEN_EPOCHS))
        third.see_blocked(BETWEEN_EPOCHS, SEEN_S)
        second.resume()
        ends_named(second, *TAKEN_OVER)
        third.pause()
        third.go(BETWEEN_EPOCHS)

        finish(job)
        third.resume()
        ends_named(third, *TAKEN_OVER)
    job.check_exact()


def test_a_copy_and_a_new_checkpoint_are_refused_and_the_healthy_query_goes_on(make_job: MakeJob) -> None:
    job = make_job(5)
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
