"""Epochs of these tests are small, so what counts as many rows is smaller than for users."""

from __future__ import annotations

import pytest

from epochal.sinks.kafka.delivery import encoding


@pytest.fixture(autouse=True)
def tasks_write_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks write files, and deliver, if an epoch has more than 64 kB."""
    monkeypatch.setattr(encoding, "INLINE_BYTES", 64 << 10)
