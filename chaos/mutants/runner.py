"""Runs chosen tests in a copy of the checkout.  Each run is a fork of one process that has pytest loaded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from epochal.chaos.mutants import checkout, zygote
from epochal.chaos.mutants.warm import Java


@dataclass(frozen=True)
class Answer:
    """The result of one run.

    ``code`` is pytest's exit code, ``zygote.HUNG``, or 99 if it did not run.  ``red`` is (test, phase, text) of the
    first failure.
    """

    code: int
    seconds: float
    ran: int
    red: tuple[str, str, str] | None = None
    all_red: Sequence[tuple[str, str]] = ()
    modules: Sequence[str] = ()
    outside: Sequence[str] = ()
    trouble: str = ""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Answer:
        red = data.get("red")
        return cls(
            **{**data, "red": tuple(red) if red else None, "all_red": [tuple(r) for r in data.get("all_red", ())]}
        )


class Runner:
    """One process in one copy of the checkout.  It imports ``modules`` before it runs anything.

    ``servers``: environment variables of servers that run already.  With them, Spark sessions share one Java process,
    too.
    """

    def __init__(
        self, root: Path, tree: Path, modules: Sequence[str] = (), servers: Mapping[str, str] | None = None
    ) -> None:
        if trouble := checkout.what_is_imported(root, tree):
            raise RuntimeError(trouble)
        self.tree = tree
        self._root = root
        self._shares = servers is not None
        self._java: Java | None = None
        output = {"EPOCHAL_MUTANTS_OUTPUT": str(tree / ".output")}
        self._process = subprocess.Popen(
            [sys.executable, zygote.__file__],
            cwd=tree,
            env={**checkout.environment(root, tree), **output, **(servers or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._say(list(modules))

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self,
        tests: Sequence[str] | None,
        paths: Sequence[str] | None = None,
        *,
        seconds: float,
        each: Sequence[float] = (),
        record: Path | None = None,
        spark: bool = False,
        options: Sequence[str] = (),
    ) -> Answer:
        """Run ``tests`` in this order up to the first failure, or all tests below ``paths``.

        ``seconds`` limits the run, and ``each`` has a limit in seconds for each test.  ``record`` is the file for the
        recording.  ``options`` are more options of pytest.
        """
        if spark and self._shares and self._java is None:
            self._java = Java(self._root, self.tree)
        order = {
            "tests": tests,
            "paths": list(paths) if paths is not None else sorted({t.partition("::")[0] for t in tests or ()}),
            "seconds": seconds,
            "each": list(each),
            "record": str(record) if record is not None else None,
            "options": list(options),
            "java": self._java.address if spark and self._java is not None else None,
        }
        answer = Answer.from_json(self._say(order))
        if answer.code not in (0, 1):  # the run may have left the Java process in any state
            self._end_java()
        return answer

    def _end_java(self) -> None:
        if self._java is not None:
            self._java.close()
            self._java = None

    def close(self) -> None:
        """End the process and everything that it started, even during a run."""
        self._end_java()
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(timeout=5)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _say(self, line: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that runs the tests ended with {self._process.wait()}")
        return dict(json.loads(answer))
