"""A job of a test's own, on the servers of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from epochal.chaos import servers
from epochal.chaos.strike.standby import Standby
from tests.real.kills.support import LOCAL, SINKS, Job, MakeJob, drivers


@pytest.fixture(scope="session")
def local_drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standby]:
    """Those that no test has killed serve the next one."""
    with drivers(LOCAL, tmp_path_factory.mktemp("drivers")) as local:
        yield local


@pytest.fixture
def make_job(
    tmp_path: Path, pg_database: str, kafka_server: servers.Kafka, topic_name: str, local_drivers: Standby
) -> Iterator[MakeJob]:
    """``make_job(epochs, master=..., format=..., sinks=...)``; nothing is started yet."""
    with ExitStack() as others:

        def make(epochs: int, master: str = LOCAL, format: str = "json", sinks: Sequence[str] = SINKS) -> Job:
            them = local_drivers if master == LOCAL else others.enter_context(drivers(master, tmp_path / "drivers"))
            return Job(them, tmp_path, pg_database, kafka_server.bootstrap, topic_name, epochs, format, sinks)

        yield make
