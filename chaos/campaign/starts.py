"""The starts of one run, one after the other.  The history gets an event when a start begins and when it ends."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from epochal.chaos.job import program
from epochal.chaos.observe.history import Ended, Started
from epochal.chaos.observe.roles import Listener
from epochal.chaos.strike.nemesis import NotCounted
from epochal.chaos.strike.standby import Standby, Start
from epochal.chaos.strike.strikes import Strike

END_S = 300.0  # how long to wait for the end of a start


class CannotTell(Exception):
    """The run proves nothing, so its verdict is unknown."""


class Starts:
    """Begins and ends starts of the query, in folders below ``folder``.

    ``settings`` are those of every start.  ``stateful``: a start without faults reports the operator state.  ``ours``:
    the target is a pipeline of ours, whose errors must all be named ones.
    """

    def __init__(
        self,
        folder: Path,
        settings: program.Settings,
        history: Listener,
        *,
        stateful: bool,
        ours: bool,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._history = history
        self._stateful = stateful
        self._ours = ours
        self._number = 0
        self._live: list[Start] = []
        path = folder / "program.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        settings.write(path)
        self._standby = Standby(["-m", "epochal.chaos.job.program", str(path)], folder)

    # --- beginning ------------------------------------------------------------------------------

    def stand_by(self) -> None:
        """Start a process for the next start unless one is ready or starting already."""
        self._standby.stand_by()

    def begin(self, *strikes: Strike, create: bool = False, restarts: int = 0, checkpoint: Path | None = None) -> Start:
        """Begin a start of the query that is armed with these strikes."""
        self._number += 1
        settings = replace(
            self._settings,
            create=create,
            restarts=restarts,
            state=not strikes and not create and self._stateful and checkpoint is None,
            checkpoint=str(checkpoint) if checkpoint is not None else self._settings.checkpoint,
        )
        folder = self._folder / f"start-{self._number}"
        self._history.add(Started(folder.name))
        start = self._standby.begin(folder, asdict(settings), [strike.rule for strike in strikes])
        self._live.append(start)
        return start

    def is_live(self, start: Start) -> bool:
        """Return whether the end of this start is not recorded yet."""
        return start in self._live

    # --- ending ---------------------------------------------------------------------------------

    def wait_end(self, start: Start, timeout: float = END_S) -> program.End:
        """Wait for the end of a start, record it and return it.  Raises CannotTell after ``timeout`` seconds."""
        try:
            start.wait(timeout)
        except NotCounted as error:
            raise CannotTell(str(error)) from error
        return self.ended(start)

    def ended(self, start: Start) -> program.End:
        """Return how a start ended that was not killed, and record it in the history."""
        try:
            end = program.End(**json.loads((start.folder / program.END).read_text()))
        except FileNotFoundError:
            end = program.End("unknown", named=not self._ours, definite=False, text=start.tail(5))
        self.tell_end(start, end)
        return end

    def tell_end(self, start: Start, end: program.End) -> None:
        self._history.add(Ended(start.folder.name, end.outcome, end.named, end.definite))
        start.close()
        self._live.remove(start)

    def close(self) -> None:
        """End all processes that still run."""
        self._standby.close()
