"""What the demo prints: progress, each strike, and the table at the end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from epochal.chaos.demo.readers import Count
    from epochal.chaos.demo.strikes import Struck

REFRESH_S = 0.5
LINE_EVERY_EPOCHS = 5
COLOURS = {"committed": "green", "aborted": "yellow", "written again": "red"}


class Screen:
    """One console.  On a terminal progress is a bar, elsewhere a line every few epochs."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._began = time.monotonic()
        self.doing = "starting"

    def step(self, text: str) -> None:
        """One line in bold: what is done from now on."""
        self.doing = text
        self.say(text, style="bold")

    def plain(self, line: str) -> None:
        """A line as it is, to be copied: never wrapped, nothing in it taken for markup."""
        self.console.print(line, soft_wrap=True, markup=False)

    def say(self, text: str, style: str = "") -> None:
        """One line, with the seconds since the start in front of it."""
        at = Text(f"{time.monotonic() - self._began:5.0f} s  ", style="dim")
        self.console.print(at + Text(text, style=style), soft_wrap=True)

    def strike(self, struck: Struck) -> None:
        """Where, who, how, in which epoch, and what recovery did."""
        seen = struck.sighting
        where = f"{seen.point}@{seen.sink}" if seen.sink else seen.point
        pids = "+".join(str(death.pid) for death in struck.deaths)
        signals = {death.signal for death in struck.deaths}
        line = Text(f"  ✗ {struck.strike.when}: ", style="bold")
        line.append(f"{where}, ", style="")
        line.append(f"{struck.strike.victim} pid {pids} died of signal {', '.join(map(str, signals))}, ", style="")
        line.append(f"epoch {struck.strike.epoch} ({struck.rows:,} rows): ", style="")
        line.append(struck.outcome, style=f"bold {COLOURS.get(struck.outcome, '')}")
        self.console.print(line, soft_wrap=True)

    @contextlib.contextmanager
    def watch(self, job: str, done: Callable[[], int], total: int) -> Iterator[None]:
        """Show how many epochs are done until the block is left."""
        if self.console.is_terminal:
            columns = (TextColumn("  {task.description}"), BarColumn(), TextColumn("epoch {task.completed:.0f}"))
            with Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True) as bar:
                task = bar.add_task(job, total=total)
                with _repeat(lambda: bar.update(task, completed=done())):
                    yield
        else:
            with _repeat(_Lines(self, job, done).look):
                yield

    def table(self, counts: Mapping[tuple[str, str], Count]) -> None:
        """The verdict: one line per job and sink."""
        table = Table(title="336,776 flights, counted by independent readers over all columns", title_style="bold")
        for heading in ("job", "sink"):
            table.add_column(heading)
        for heading in ("expected", "found", "lost", "duplicated", "wrong"):
            table.add_column(heading, justify="right")
        last = ""
        for (job, sink), count in counts.items():
            if last and job != last:
                table.add_section()
            numbers = (count.expected, count.found, count.lost, count.duplicated, count.wrong)
            cells = [f"{number:,}" for number in numbers]
            table.add_row(job if job != last else "", sink, *cells, style="green" if count.exact else "red")
            last = job
        self.console.print()
        self.console.print(table)


class _Lines:
    def __init__(self, screen: Screen, job: str, done: Callable[[], int]) -> None:
        self._screen, self._job, self._done = screen, job, done
        self._told = 0

    def look(self) -> None:
        done = self._done()
        if done >= self._told + LINE_EVERY_EPOCHS:
            self._told = done
            self._screen.say(f"{self._job}: {done} epochs done")


@contextlib.contextmanager
def _repeat(action: Callable[[], None]) -> Iterator[None]:
    """Call ``action`` every REFRESH_S in a thread, until the block is left."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(REFRESH_S):
            action()

    thread = threading.Thread(target=loop, daemon=True, name="progress")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
