"""One Flink process for all turns, so that its JVM is as warm as Spark's."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.peers.flink import environment

LIMIT_S = 900
END_S = 20
PROGRAM = Path(__file__).with_name("job.py")


class FlinkFailed(Exception):
    """The program ended, or gave no answer.  The message has the end of its output."""


@dataclass(frozen=True)
class Told:
    """The answer for one job: seconds from RUNNING to FINISHED, and the number of completed checkpoints."""

    seconds: float
    checkpoints: int

    @classmethod
    def read(cls, line: str) -> Told:
        told = json.loads(line)
        made = cls(float(told["seconds"]), int(told["checkpoints"]))
        if made.seconds <= 0 or made.checkpoints < 1:
            raise FlinkFailed(f"no job that can be measured: {line.strip()!r}; it has to have a time and a checkpoint")
        return made


class Flink:
    """A Flink process as a context manager.  It also ends by itself when its parent process is gone.

    ``command`` and ``variables`` are those of the program; by default Flink's, whose environment is made at first use.
    """

    def __init__(
        self, folder: Path, command: Sequence[str] | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir()
        if command is None:
            command = [str(environment.python()), str(PROGRAM), *map(str, environment.connectors())]
            variables = environment.variables(folder)
        self._printed = folder / "printed.log"
        with self._printed.open("wb") as printed:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Flink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the process and its JVM, which end when their input ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(END_S)
        self._process.stdout.close()

    def write(self, source: Path, bootstrap: str, topic: str, guarantee: str) -> Told:
        """Write the rows of ``source`` to ``topic``.  ``guarantee``: ``exactly-once`` or ``at-least-once``."""
        return self._ask(LIMIT_S, source=str(source), bootstrap=bootstrap, topic=topic, guarantee=guarantee)

    def read(self, source: Path, *, limit: float = LIMIT_S) -> Told:
        """Run the same job, but discard its rows."""
        return self._ask(limit, source=str(source), bootstrap=None, topic=None, guarantee=None)

    def _ask(self, limit: float, **asked: str | None) -> Told:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process is gone, so no answer will come
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], limit)[0]:
            raise FlinkFailed(f"Flink gave no answer to {asked} within {limit} s{self._tail()}")
        line = self._process.stdout.readline()
        if not line:
            raise FlinkFailed(f"Flink ended and gave no answer to {asked}{self._tail()}")
        return Told.read(line)

    def _tail(self) -> str:
        return f"\n--- end of what it printed ---\n{self._printed.read_text(errors='replace')[-4000:]}"
