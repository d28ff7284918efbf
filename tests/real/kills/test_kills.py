"""SIGKILL of a real driver, of an executor and of a Python worker at named points, with three real sinks.

A driver is its Python process and its JVM, killed together.  A kill counts only if a process of that driver was
seen blocked at the point and the victims were seen to die of signal 9: see ``epochal.chaos.strike.nemesis``.
"""

from __future__ import annotations

import signal

import pytest

from epochal.chaos.demo.verdict import ABORTED, COMMITTED, from_log
from epochal.chaos.strike.nemesis import kill_seen, parent_of
from tests.real.kills.support import SEEN_S, Kill, MakeJob, kill_in_turn

pytestmark = pytest.mark.timeout(1800)

BEFORE_THE_DECISION = (
    Kill("after-copy", 1, ABORTED),
    Kill("before-vote@postgres", 2, ABORTED),  # a worker is blocked; its rows are durable
    Kill("after-prepare", 3, ABORTED),
    Kill("before-decide", 4, ABORTED),
)
AFTER_THE_DECISION = (
    Kill("after-decide", 1, COMMITTED),
    Kill("before-publish@kafka", 2, COMMITTED),  # a worker is blocked, its transaction open
    Kill("before-publish@postgres", 3, COMMITTED, hold=("before-sink-commit@kafka",)),
    Kill("after-sink-commit@delta", 4, COMMITTED, hold=("before-sink-commit@postgres",)),
    Kill("before-return", 5, COMMITTED),
)
OF_FRAMES = (
    Kill("after-copy", 1, ABORTED),
    Kill("after-decide", 2, COMMITTED),
    Kill("before-publish@kafka", 3, COMMITTED),
    Kill("after-sink-commit@delta", 4, COMMITTED, hold=("before-sink-commit@postgres",)),
)
IN_RECOVERY = (
    Kill("after-decide", 1, COMMITTED),
    Kill("after-fence-record", None, None),
    Kill("after-sink-commit@postgres", 1, None, hold=("before-sink-commit@kafka",)),  # settling
)


@pytest.mark.wide
def test_killed_before_the_decision_an_epoch_is_dropped_and_done_anew(make_job: MakeJob) -> None:
    job = make_job(6)
    kill_in_turn(job, BEFORE_THE_DECISION)
    job.check_exact()


@pytest.mark.wide
def test_killed_after_the_decision_an_epoch_is_finished(make_job: MakeJob) -> None:
    job = make_job(7)
    kill_in_turn(job, AFTER_THE_DECISION)
    job.check_exact()


@pytest.mark.wide
def test_killed_again_in_recovery(make_job: MakeJob) -> None:
    job = make_job(3)
    kill_in_turn(job, IN_RECOVERY)
    job.check_exact()


def test_sinks_of_one_frame_show_one_evaluation_of_it(make_job: MakeJob) -> None:
    job = make_job(6)
    job.framed = True
    kill_in_turn(job, OF_FRAMES)
    job.check_exact()


def test_executors_and_a_worker_killed_in_mid_write(make_job: MakeJob) -> None:
    """The driver goes on: Spark runs the task again, and what the dead one wrote is not shown."""
    job = make_job(6, master="local-cluster[2,1,1024]")
    executor_votes, executor_produces = "in-write@postgres:1=barrier", "in-write@kafka:3=barrier"
    worker_votes = "in-write@postgres:4=barrier"
    with job.start(executor_votes, executor_produces, worker_votes) as driver:
        for epoch, rule in ((1, executor_votes), (3, executor_produces)):
            daemon = parent_of(driver.see_blocked(rule, SEEN_S).pid)
            assert daemon is not None
            executor = parent_of(daemon)
            assert executor in driver.executors()
            outcome = from_log(job.checkpoint_path, epoch)
            assert kill_seen(executor).signal == signal.SIGKILL
            job.wait_done(epoch, driver)
            assert outcome() == COMMITTED
        worker = driver.see_blocked(worker_votes, SEEN_S).pid
        assert worker not in (driver.pid, driver.jvm, *driver.executors())
        assert kill_seen(worker).signal == signal.SIGKILL
        assert driver.wait(SEEN_S) == 0, driver.tail()
    job.check_exact()
