"""Three brokers are restarted one after another under a query that goes on: every row is there once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from epochal.chaos.servers.kafka_nodes import NODES, KafkaNodes
from tests.real.kills.conftest import local_drivers, make_job
from tests.real.kills.support import MakeJob, finish

__all__ = ["local_drivers", "make_job"]
pytestmark = [pytest.mark.wide, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[KafkaNodes]:
    with KafkaNodes() as started:
        yield started


@pytest.mark.parametrize("votes", [False, True], ids=["after the decision", "votes"])
def test_brokers_are_restarted_one_after_another(nodes: KafkaNodes, make_job: MakeJob, votes: bool) -> None:
    """Each as an upgrade does it: stopped in good order, away for an epoch, started, awaited.

    The query survives all of it.
    """
    nodes.await_in_sync()
    job = replace(make_job(1), bootstrap=nodes.bootstrap, votes=votes)
    with job.start(waits=True) as driver:
        job.wait_done(0, driver)
        for number in NODES:
            nodes.nodes[number].stop()
            job.feed()
            job.wait_done(job.epochs - 1, driver)
            job.feed()  # while the node starts
            nodes.restart(number)
            nodes.await_in_sync()
            job.wait_done(job.epochs - 1, driver)
        driver.kill()
    finish(job)
    job.check_exact()
