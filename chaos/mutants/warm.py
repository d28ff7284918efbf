"""Servers and a Java process that are started once and used by many test runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from epochal.chaos.mutants import checkout
from epochal.chaos.servers.kafka import KafkaServer
from epochal.chaos.servers.postgres import PostgresServer

NOT_OURS = "is not ours to stop"
"""Part of the error for a test that tries to stop, crash or proxy a shared server (``ForeignServer``)."""


class Servers:
    """Runs a Postgres and a Kafka while its context is entered."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> dict[str, str]:
        """Start both; return the environment variables with which tests use them."""
        with ExitStack() as stack:
            postgres = stack.enter_context(PostgresServer())
            kafka = stack.enter_context(KafkaServer())
            self._stack = stack.pop_all()
        return {"EPOCHAL_POSTGRES_DSN": postgres.dsn, "EPOCHAL_KAFKA_BOOTSTRAP": kafka.bootstrap}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class Java:
    """A Java process for the Spark sessions in one copy of the checkout.  Its Python workers import the copy's code."""

    def __init__(self, root: Path, tree: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "epochal.chaos.mutants.jvm"],
            cwd=tree,
            env=checkout.environment(root, tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        if not told:
            self.close()
            raise RuntimeError("no Java process could be started for Spark")
        self.address: dict[str, object] = json.loads(told)

    def close(self) -> None:
        """End the process and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()
