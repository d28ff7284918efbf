"""A job of a test's own, on the servers of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.chaos import servers
from tests.kills.support import LOCAL, Job, MakeJob


@pytest.fixture
def make_job(tmp_path: Path, pg_database: str, kafka_server: servers.Kafka, topic_name: str) -> MakeJob:
    """``make_job(epochs, master=..., format=...)``; nothing is started yet."""

    def make(epochs: int, master: str = LOCAL, format: str = "json") -> Job:
        return Job(tmp_path, pg_database, kafka_server.bootstrap, topic_name, epochs, master, format)

    return make
