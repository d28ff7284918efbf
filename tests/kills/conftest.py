"""A job of a test's own, on the servers of the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.chaos import jvm, servers
from tests.kills.support import LOCAL, SINKS, Job, MakeJob


@pytest.fixture
def make_job(tmp_path: Path, pg_database: str, kafka_server: servers.Kafka, topic_name: str) -> MakeJob:
    """``make_job(epochs, master=..., format=..., sinks=...)``; nothing is started yet."""
    jvm.short_lived()  # made, where it has to be, before a driver is waited for

    def make(epochs: int, master: str = LOCAL, format: str = "json", sinks: Sequence[str] = SINKS) -> Job:
        return Job(tmp_path, pg_database, kafka_server.bootstrap, topic_name, epochs, master, format, sinks)

    return make
