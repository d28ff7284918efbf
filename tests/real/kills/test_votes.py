"""SIGKILL of a real driver whose Kafka sink votes: an epoch that is decided is finished, not written again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from epochal.chaos import servers
from epochal.chaos.demo.verdict import ABORTED, COMMITTED
from epochal.chaos.strike.standby import Standby
from tests.real.kills.support import ROWS, Job, Kill, kill_in_turn
from tests.real.sinks.kafka.support import read_topic

pytestmark = [pytest.mark.wide, pytest.mark.timeout(1800)]

AFTER_THE_DECISION = (
    Kill("after-decide", 1, COMMITTED),
    Kill("before-publish@kafka", 2, COMMITTED),  # the end of the transaction is not asked for yet
    Kill("after-publish@kafka", 3, COMMITTED),  # it was asked for
    Kill("after-decide", 4, COMMITTED),
    Kill("after-fence-record", None, None),  # of the start that finishes it; it has not
    Kill("before-sink-fence@kafka", None, None),  # it has
)
BEFORE_THE_DECISION = (
    Kill("in-write@kafka", 1, ABORTED),
    Kill("before-vote@kafka", 2, ABORTED),
    Kill("before-decide", 3, ABORTED),
)


@pytest.fixture
def job(tmp_path: Path, kafka_server: servers.Kafka, topic_name: str, local_drivers: Standby) -> Job:
    return Job(local_drivers, tmp_path, "", kafka_server.bootstrap, topic_name, 6, sinks=("kafka",), votes=True)


def ids(job: Job, isolation: str) -> Counter[int]:
    found = [json.loads(record.value or b"") for record in read_topic(job.bootstrap, job.topic, isolation)]
    return Counter(int(row["id"]) for row in found)


def test_killed_after_the_decision_an_epoch_is_finished_and_never_written_again(job: Job) -> None:
    kill_in_turn(job, AFTER_THE_DECISION)
    assert job.done() == job.epochs
    for isolation in ("read_committed", "read_uncommitted"):  # the latter would see what was written again
        assert ids(job, isolation) == Counter(range(job.epochs * ROWS)), isolation


def test_killed_before_the_decision_an_epoch_is_aborted_and_done_anew(job: Job) -> None:
    kill_in_turn(job, BEFORE_THE_DECISION)
    assert job.done() == job.epochs
    assert ids(job, "read_committed") == Counter(range(job.epochs * ROWS))
