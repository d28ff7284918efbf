"""The reference log keeps the contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epochal.chaos.contract.logs import LogContract, commit, filled
from epochal.checkpoints.log import EpochLog
from epochal.checkpoints.memory import MemoryLog


class TestMemoryLog(LogContract):
    @pytest.fixture
    def open_log(self) -> Callable[[], EpochLog]:
        log = MemoryLog("flights")
        return lambda: log


def test_a_copy_goes_its_own_way() -> None:
    log = MemoryLog()
    entries = filled(log, 3)
    twin = log.copy()
    assert twin.append(3, commit(2))
    assert list(log.read()) == entries
    twin.compact(2, [])
    assert log.append(3, commit(5))


def test_what_it_holds_is_not_the_callers_object() -> None:
    log = MemoryLog("flights")
    record = commit(0)
    assert log.append(0, record)
    record.participants["orders"].committable.payload["note"] = "changed"
    assert log.read()[0].record == commit(0)


def test_describe_names_it() -> None:
    assert MemoryLog("flights").describe() == "memory:flights"
