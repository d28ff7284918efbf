"""A slow task gets a speculative copy, and executors come and go: rows are there once, and nothing is left behind.

On a standalone cluster of two hosts, without an external shuffle service.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.chaos.servers.standalone import StandaloneCluster
from epochal.chaos.strike.standby import Standby
from tests.real.kills.conftest import local_drivers, make_job
from tests.real.kills.support import END_S, SEEN_S, MakeJob, drivers
from tests.real.standalone.test_cluster import ancestors

__all__ = ["local_drivers", "make_job"]
pytestmark = [pytest.mark.wide, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
EXECUTORS = {
    "spark.executor.memory": "768m",
    "spark.executor.cores": "1",
    "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.task.duration.threshold": "2s",
}
"""A task that takes 1.1 times the median gets a speculative copy once half of the tasks have ended.

A lone task gets one after two seconds.
"""
COME_AND_GO = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    with StandaloneCluster() as started:
        yield started


@contextmanager
def on(cluster: StandaloneCluster, folder: Path, settings: Mapping[str, str]) -> Iterator[Standby]:
    conf = json.dumps({**EXECUTORS, **settings})
    with drivers(cluster.url, folder, ("tests.real.kills.driver", conf)) as them:
        yield them


@pytest.mark.parametrize(
    ("point", "votes"),
    [("in-write@postgres", False), ("in-write@delta", False), ("in-write@kafka", True)],
)
def test_a_speculative_copy_ends_first_and_the_slow_task_wakes_up(
    cluster: StandaloneCluster, make_job: MakeJob, tmp_path: Path, point: str, votes: bool
) -> None:
    rule = f"{point}:1=barrier"
    with on(cluster, tmp_path / "drivers", SPECULATION) as them:
        job = replace(make_job(4), drivers=them, votes=votes)
        with job.start(rule) as driver:
            slow = driver.see_hit(rule, SEEN_S)
            assert set(cluster.executors()) & set(ancestors(slow.pid))
            job.wait_done(1, driver)
            driver.go(rule)
            assert driver.wait(END_S) == 0, driver.tail()
    job.check_exact()


def test_executors_come_and_go(cluster: StandaloneCluster, make_job: MakeJob, tmp_path: Path) -> None:
    """They are decommissioned as soon as they are idle, also while a driver holds an epoch."""
    held = "before-decide:1=barrier"
    with on(cluster, tmp_path / "drivers", COME_AND_GO) as them:
        job = replace(make_job(4), drivers=them, votes=True)
        with job.start(held) as driver:
            driver.see_blocked(held, SEEN_S)
            first = set(cluster.executors())
            cluster.wait_for_no_executors()
            driver.go(held)
            assert driver.wait(END_S) == 0, driver.tail()
        assert first
    job.check_exact()
