"""The driver processes of one run, one after the other, each told to the history as it begins and ends."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

from epochal.chaos import program
from epochal.chaos.history import Ended, Started
from epochal.chaos.nemesis import Driver, NotCounted
from epochal.chaos.roles import Listener, Strike

END_S = 300.0


class CannotTell(Exception):
    """The run proves nothing; the verdict is unknown."""


class Starts:
    """Makes starts of the query, in folders below ``folder``; one stands by with its session up.

    ``settings`` are those of every start; ``stateful`` says whether a start without faults tells the operator
    state; ``ours`` promises names for its errors.
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
        self._standby: tuple[Strike | None, Driver] | None = None
        self._live: list[Driver] = []

    # --- beginning ------------------------------------------------------------------------------

    def new(self, *strikes: Strike, create: bool = False, restarts: int = 0, checkpoint: Path | None = None) -> Driver:
        """A process that stands by, armed with these strikes."""
        self._number += 1
        settings = replace(
            self._settings,
            create=create,
            restarts=restarts,
            state=not strikes and not create and self._stateful and checkpoint is None,
            checkpoint=str(checkpoint) if checkpoint is not None else self._settings.checkpoint,
        )
        path = self._folder / f"start-{self._number}.json"
        settings.write(path)
        driver = Driver(
            ["-m", "epochal.chaos.program", str(path)],
            self._folder / f"start-{self._number}",
            failpoints_armed=[strike.rule for strike in strikes],
        )
        self._live.append(driver)
        return driver

    def stand_by(self, strike: Strike | None) -> None:
        """Have the start for this strike ready; None for one without faults."""
        self._standby = strike, self._armed(strike)

    def standing_by(self, strike: Strike | None) -> Driver:
        """The start that was made for this strike, or a new one."""
        if self._standby is not None:
            made_for, driver = self._standby
            if made_for == strike and driver.exit_status is None:
                self._standby = None
                return driver
        return self._armed(strike)

    def _armed(self, strike: Strike | None) -> Driver:
        return self.new(strike) if strike is not None else self.new()

    def begin(self, driver: Driver) -> Driver:
        """Let it start its query."""
        self._history.add(Started(driver.folder.name))
        (driver.folder / program.BEGIN).touch()
        return driver

    def is_live(self, driver: Driver) -> bool:
        """Whether nobody has told how it ended."""
        return driver in self._live

    # --- ending ---------------------------------------------------------------------------------

    def wait_end(self, driver: Driver, timeout: float = END_S) -> program.End:
        """How it ended; CannotTell if it does not."""
        try:
            driver.wait(timeout)
        except NotCounted as error:
            raise CannotTell(str(error)) from error
        return self.ended(driver)

    def ended(self, driver: Driver) -> program.End:
        """How a start ended that was not killed, told to the history."""
        try:
            end = program.End(**json.loads((driver.folder / program.END).read_text()))
        except FileNotFoundError:
            end = program.End("unknown", named=not self._ours, definite=False, text=driver.tail(5))
        self.tell_end(driver, end)
        return end

    def tell_end(self, driver: Driver, end: program.End) -> None:
        self._history.add(Ended(driver.folder.name, end.outcome, end.named, end.definite))
        driver.close()
        self._live.remove(driver)

    def close(self) -> None:
        """End all that still runs."""
        for driver in self._live:
            with contextlib.suppress(NotCounted):
                driver.close()
