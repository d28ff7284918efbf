"""The harness: how the sink contract reaches one kind of sink.  The sink's author fills it in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from epochal.coordinator.model.epoch import Actor, Copy, Epoch, Json, Query
from epochal.sinks.protocol import Rows, Sink

ABORTED = "ABORTED"
"""What ``in_another_process`` returns after an abort."""

PROCESS_S = 150  # time limit for one action in another process


def query(app: str) -> Query:
    """Return the query for all starts of the contract's tests; each start passes it to ``look``."""
    return Query(app, "q1", "r1", "memory:/checkpoint")


class SinkHarness:
    """One target of one sink, empty at first.  All methods but ``neighbour`` are about one app.

    The author must define ``named``, ``visible``, ``restart_server`` and ``source``.  The other methods fit a sink that
    takes its rows as mappings, and whose targets may be shared by apps.
    """

    app: str = "flights"
    schema: Any = None  # the schema for `create`: columns id (string), attempt (string), n (long)
    secrets: Sequence[str] = ()  # strings that must never be in a committable or an error
    prepare_is_fenced: bool = True  # whether prepare refuses a fenced actor; if False, only commit does
    replaces: bool = False  # whether readers see only the newest epoch, and not all epochs

    def sink(self) -> Sink:
        """Return a new sink object, as a fresh process would make it."""
        return self.named("out")

    def named(self, name: str) -> Sink:
        """Return a new sink object with that sink name and the same target."""
        raise NotImplementedError

    def neighbour(self) -> Sink:
        """Return a new sink object with the *same* sink name for another app, with its own target if necessary."""
        return self.sink()

    def rows(self, ids: Sequence[str], attempt: str) -> Rows:
        """Return rows with those ids, all with that attempt.  ``n`` may be anything."""
        return [{"id": key, "attempt": attempt, "n": n} for n, key in enumerate(ids)]

    def reordered(self, rows: Rows) -> Rows:
        """Return the same rows in another order."""
        return list(reversed(rows))

    def no_partitions(self) -> Rows:
        """Return rows with the same columns and without any partition."""
        return []

    def evaluated(self, ids: Sequence[str]) -> int:
        """Return how many rows :meth:`rows` returns for ``ids``, including rows that the sink leaves out."""
        return len(ids)

    def copy(self, rows: Rows, epoch: int, by: Actor) -> Copy | None:  # noqa: ARG002
        """Return the durable copy of ``rows`` for a sink that needs one, else None."""
        return None

    def staged(self, sink: Sink, rows: Rows, epoch: Epoch, by: Actor) -> Copy | None:  # noqa: ARG002
        """Return the copy that ``sink`` itself writes, if it is to; else None.

        See ``StagingSink`` and ``CopyingSink`` of ``sinks.protocol``.
        """
        return None

    def read(self, copy: Copy) -> Rows:  # noqa: ARG002
        """Return the rows of a copy that a ``CopyingSink`` wrote.  None: only its sink reads it."""
        return None

    def after(self, *epochs: Sequence[str]) -> list[str]:
        """Return the sorted ids that readers see after these epochs were committed in order."""
        shown = epochs[-1:] if self.replaces else epochs
        return sorted(key for epoch in shown for key in epoch)

    def visible(self) -> list[tuple[str, str]]:
        """Return (id, attempt) of every row that an independent reader sees now."""
        raise NotImplementedError

    def restart_server(self) -> None:
        """Crash the server and start it again on the same data."""
        raise NotImplementedError

    def source(self) -> str:
        """Return Python code for another process.  It assigns what :meth:`sink` returns to the variable ``sink``."""
        raise NotImplementedError

    def in_another_process(self, committable: Json | None, by: Json) -> str:
        """Look and commit in another process that gets only the JSON.  Without a committable, abort there instead.

        Returns the outcome's name, ``ABORTED``, or the class name of the error.
        """
        return act_in_another_process(self.source(), self.app, committable, by, secrets=self.secrets)


_ACT = """
import json, sys
from epochal.coordinator.model.epoch import Actor, Committable, Query
from epochal.coordinator.model.errors import EpochalError
{source}
request = json.loads(sys.stdin.read())
query, by = Query(request["app"], "q1", "r2", "file:/checkpoint"), Actor.from_json(request["by"])
sink.look(query)
try:
    if request["committable"] is None:
        sink.abort(query, by)
        answer = "ABORTED"
    else:
        answer = sink.commit(Committable.from_json(request["committable"]), by).name
except EpochalError as error:
    print(error, file=sys.stderr)
    answer = type(error).__name__
print("ANSWER", answer)
"""


def act_in_another_process(
    source: str,
    app: str,
    committable: Json | None,
    by: Json,
    *,
    secrets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> str:
    """Commit, or abort without a committable, in another process; return the outcome's or error's name, or ABORTED.

    ``source`` is Python code that assigns the variable ``sink``.  Raises AssertionError if the process gives no answer,
    or prints one of the ``secrets``.
    """
    done = subprocess.run(
        [sys.executable, "-c", _ACT.format(source=source)],
        input=json.dumps({"app": app, "committable": committable, "by": by}),
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    answers = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    if not answers:
        raise AssertionError(f"the process ended with {done.returncode} and no answer: {done.stderr[-3000:]}")
    told = [secret for secret in secrets if secret in done.stdout + done.stderr]
    if told:
        raise AssertionError(f"the process printed {len(told)} of the secrets")
    return answers[0]
