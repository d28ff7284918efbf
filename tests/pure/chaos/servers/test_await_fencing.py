"""A crashed broker starts again only after its fencing is in the controller's log."""

from __future__ import annotations

import pytest

from epochal.chaos.servers import kafka
from epochal.chaos.servers.errors import ServerUnavailable

ACTIVE = "WARN QuorumController [QuorumController id=1] Performing controller activation.\n"
TOLD = "INFO ReplicationControlManager Fencing broker 1 at epoch 11 because its session has timed out.\n"
APPENDED = "DEBUG Read-write operation maybeFenceStaleBroker(7) will be completed when the log reaches offset 19.\n"
EARLIER = "DEBUG QuorumController Processed maybeFenceStaleBroker(6) in 485 us\n"
COMMITTED = "DEBUG QuorumController Processed maybeFenceStaleBroker(7) in 900 us\n"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "FENCE_TIMEOUT_S", 0.2)


def test_a_committed_fencing_is_enough() -> None:
    kafka.await_fencing(lambda: ACTIVE + EARLIER + TOLD + APPENDED + COMMITTED)


def test_a_broker_that_is_fenced_already_is_not_fenced_again() -> None:
    kafka.await_fencing(lambda: ACTIVE + EARLIER)


@pytest.mark.parametrize("log", [TOLD, TOLD + EARLIER, TOLD + APPENDED, TOLD + APPENDED + EARLIER])
def test_a_fencing_that_is_told_and_not_committed_is_refused(log: str) -> None:
    with pytest.raises(ServerUnavailable, match="did not commit the fencing of the crashed broker within"):
        kafka.await_fencing(lambda: ACTIVE + log)


def test_it_waits_for_the_commit() -> None:
    logs = iter([ACTIVE, ACTIVE + TOLD, ACTIVE + TOLD + APPENDED, ACTIVE + TOLD + APPENDED + COMMITTED])
    kafka.await_fencing(lambda: next(logs))
    assert next(logs, None) is None
