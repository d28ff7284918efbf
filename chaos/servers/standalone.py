"""A standalone Spark cluster on loopback: a master and workers, started with `spark-class` of the installed PySpark."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from epochal.chaos.servers import guard, jars, java
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.process import LOOPBACK, Command, Server, free_port, wait_until

EXECUTOR_TIMEOUT_S = 180.0
NOT_INHERITED = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS")
SIZE = ("--cores", "1", "--memory", "1024m")  # of a worker
HOSTS = ("127.0.0.1", "127.0.0.2")
"""One loopback address per worker.  Spark starts no speculative copy of a task on the host where the task runs."""
DAEMON = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class _Daemon(Server):
    """A daemon of Spark. Its environment has none of this process's Python settings, so its executors get none."""

    def __init__(self, host: str = LOOPBACK) -> None:
        super().__init__()
        self._host = host
        self.web_port = free_port()

    def _prepare(self) -> None:
        pass

    def _run(self, main: str, *arguments: str) -> Command:
        home = jars.of_pyspark().parent
        environment = {
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(java.java_home()),
            "SPARK_LOCAL_IP": self._host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": DAEMON,
        }
        without = [part for name in NOT_INHERITED for part in ("-u", name)]
        settings = [f"{name}={value}" for name, value in environment.items()]
        places = ["--host", self._host, "--port", str(self.port), "--webui-port", str(self.web_port)]
        return Command(["env", *without, *settings, str(home / "bin" / "spark-class"), main, *places, *arguments])


class SparkMaster(_Daemon):
    """The master. Drivers and workers connect to `url`."""

    kind = "spark-master"

    @property
    def url(self) -> str:
        return f"spark://{self.address}"

    def _command(self) -> Command:
        return self._run("org.apache.spark.deploy.master.Master")

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return bool(self.state()["status"] == "ALIVE")
        return False

    def state(self) -> dict[str, Any]:
        """Return the JSON of its web page."""
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.web_port}/json/", timeout=2) as page:
            found: dict[str, Any] = json.load(page)
            return found


class SparkWorker(_Daemon):
    """A worker of a running master. Its executors are its child processes."""

    kind = "spark-worker"

    def __init__(self, master: SparkMaster, host: str = LOOPBACK) -> None:
        super().__init__(host)
        self._master = master

    def _command(self) -> Command:
        work = ["--work-dir", str(self.directory / "work")]
        return self._run("org.apache.spark.deploy.worker.Worker", *SIZE, *work, self._master.url)

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            alive = [w["port"] for w in self._master.state()["workers"] if w["state"] == "ALIVE"]
            return self.port in alive
        return False

    def executors(self) -> list[int]:
        """Return the process ids of its executors."""
        below = guard.descendants(self.pid) if self.pid is not None else []
        return [pid for pid in below if b"CoarseGrainedExecutorBackend" in _arguments(pid)]


class StandaloneCluster:
    """A master and its workers. As a context manager it is started on entry and closed on exit."""

    def __init__(self) -> None:
        self.master = SparkMaster()
        self.workers: Sequence[SparkWorker] = [SparkWorker(self.master, host) for host in HOSTS]

    @property
    def url(self) -> str:
        return self.master.url

    def executors(self) -> list[int]:
        """Return the process ids of all present executors."""
        return [pid for worker in self.workers for pid in worker.executors()]

    def wait_for_executors(self, count: int) -> list[int]:
        """Wait for so many executors; return their process ids. Raises ServerUnavailable after a timeout."""
        found = wait_until(lambda: there if len(there := self.executors()) >= count else None, EXECUTOR_TIMEOUT_S)
        if found is None:
            raise ServerUnavailable(
                f"no {count} executors within {EXECUTOR_TIMEOUT_S:.0f} s", "the log above says why", self.log_tail()
            )
        return found

    def wait_for_no_executors(self) -> None:
        """Wait until no executor is left.  Raises ServerUnavailable after a timeout."""
        if wait_until(lambda: None if self.executors() else True, EXECUTOR_TIMEOUT_S) is None:
            raise ServerUnavailable(
                f"executors are left after {EXECUTOR_TIMEOUT_S:.0f} s", "the log above says why", self.log_tail()
            )

    def log_tail(self) -> str:
        """Return the last lines of all logs."""
        return "\n".join(server.log_tail() for server in (self.master, *self.workers))

    def start(self) -> StandaloneCluster:
        try:
            self.master.start()
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda worker: worker.start(), self.workers))
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        for server in (*self.workers, self.master):
            server.close()

    def __enter__(self) -> StandaloneCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def spark_submit() -> str:
    """Return the path of PySpark's `spark-submit`. It needs SPARK_HOME in its environment."""
    return os.fspath(jars.of_pyspark().parent / "bin" / "spark-submit")


def _arguments(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
