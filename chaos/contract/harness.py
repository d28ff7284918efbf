"""How the sink contract reaches one kind of sink: what its author fills in, and what comes with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from epochal.coordinator.model.epoch import Actor, Copy, Json, Query
from epochal.sinks.protocol import Rows, Sink

ABORTED = "ABORTED"
"""What ``in_another_process`` answers after an abort."""

PROCESS_S = 150  # for one verb in a process of its own


def query(app: str) -> Query:
    """As whom the contract acts; the look of every start has it."""
    return Query(app, "q1", "r1", "memory:/checkpoint")


class SinkHarness:
    """One target of one sink, empty at first; all methods speak of one app.

    To be filled in: ``named``, ``visible``, ``restart_server``, ``source``.  The other methods fit a sink that
    takes its rows as mappings and can be told apart by its name.
    """

    app: str = "flights"
    schema: Any = None  # what `create` gets: columns id (string), attempt (string), n (long)
    secrets: Sequence[str] = ()  # strings that must never be in a committable or an error
    prepare_is_fenced: bool = True  # whether prepare refuses a fenced actor; if not, its commit alone does
    replaces: bool = False  # whether readers see the newest epoch alone, and not all of them

    def sink(self) -> Sink:
        """A new sink object, as a fresh process would make it."""
        return self.named("out")

    def named(self, name: str) -> Sink:
        """A new sink object with that sink name and the same target."""
        raise NotImplementedError

    def neighbour(self) -> Sink:
        """A new sink object of the *same* sink name for another app, with a target of its own if need be."""
        return self.sink()

    def rows(self, ids: Sequence[str], attempt: str) -> Rows:
        """Rows with those ids, all with that attempt, and any n."""
        return [{"id": key, "attempt": attempt, "n": n} for n, key in enumerate(ids)]

    def reordered(self, rows: Rows) -> Rows:
        """The same rows in another order."""
        return list(reversed(rows))

    def no_partitions(self) -> Rows:
        """Rows of the same columns in no partition at all."""
        return []

    def evaluated(self, ids: Sequence[str]) -> int:
        """How many rows :meth:`rows` are, those included that the sink leaves out."""
        return len(ids)

    def copy(self, rows: Rows, epoch: int, by: Actor) -> Copy | None:  # noqa: ARG002
        """The durable copy of ``rows`` for a sink that needs one, else None."""
        return None

    def after(self, *epochs: Sequence[str]) -> list[str]:
        """The ids that readers see after these epochs, one after another; sorted."""
        shown = epochs[-1:] if self.replaces else epochs
        return sorted(key for epoch in shown for key in epoch)

    def visible(self) -> list[tuple[str, str]]:
        """(id, attempt) of every row that an independent reader sees now."""
        raise NotImplementedError

    def restart_server(self) -> None:
        """Crash the server and start it again on the same data."""
        raise NotImplementedError

    def source(self) -> str:
        """Python that makes ``sink()`` as ``sink`` in a process that has nothing of this one."""
        raise NotImplementedError

    def in_another_process(self, committable: Json | None, by: Json) -> str:
        """Look, then commit in a process that has only the JSON; without a committable, abort there.

        The answer: the outcome's name, ``ABORTED``, or the error's class name.
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
    """What a process answers that has the JSON and nothing else: the outcome's or the error's name, or ABORTED.

    ``source`` is Python that makes its ``sink``; none of the ``secrets`` is in what it prints.
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
