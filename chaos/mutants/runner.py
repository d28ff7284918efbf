"""Runs chosen tests in a copy of the checkout, each run in a fork of one process that has pytest loaded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from epochal.chaos.mutants import checkout, zygote


@dataclass(frozen=True)
class Answer:
    """``code``: pytest's, ``zygote.HUNG``, or 99 when it did not run; ``red``: test, phase and text of the first."""

    code: int
    seconds: float
    ran: int
    red: tuple[str, str, str] | None = None
    all_red: Sequence[str] = ()
    modules: Sequence[str] = ()
    outside: Sequence[str] = ()
    trouble: str = ""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Answer:
        red = data.get("red")
        return cls(**{**data, "red": tuple(red) if red else None})


class Runner:
    """One process in one copy; ``modules`` are loaded before anything is run."""

    def __init__(self, root: Path, tree: Path, modules: Sequence[str] = ()) -> None:
        if trouble := checkout.what_is_imported(root, tree):
            raise RuntimeError(trouble)
        self.tree = tree
        self._process = subprocess.Popen(
            [sys.executable, zygote.__file__],
            cwd=tree,
            env={**checkout.environment(root, tree), "EPOCHAL_MUTANTS_OUTPUT": str(tree / ".output")},
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
        each: float,
        record: Path | None = None,
    ) -> Answer:
        """``tests`` in this order up to the first red one, or all below ``paths``; ``each``: seconds for one test."""
        order = {
            "tests": tests,
            "paths": list(paths) if paths is not None else sorted({t.partition("::")[0] for t in tests or ()}),
            "seconds": seconds,
            "each": each,
            "record": str(record) if record is not None else None,
        }
        return Answer.from_json(self._say(order))

    def close(self) -> None:
        """End the process and what it started, also a run that is under way."""
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
