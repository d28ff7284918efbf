"""What the demo prints: one live view of both jobs, each strike, and the table at the end.

On a terminal the view is one table that is drawn again and again.  Elsewhere it is a line whenever something has
changed, and at least every few seconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from epochal.chaos.demo.readers import Count
    from epochal.chaos.demo.strikes import Struck

REFRESH_S = 0.5
SILENT_S = 5.0
"""If the output is not a terminal, a line comes at least once in so many seconds."""
LINE_EVERY_EPOCHS = 2
COLOURS = {"committed": "green", "aborted": "yellow", "written again": "red"}


@dataclass(frozen=True)
class Seen:
    """The state of a running job: finished epochs of ``total``, their rows, strikes so far, and what it does now."""

    epochs: int
    total: int
    rows: int
    strikes: int
    doing: str

    def __str__(self) -> str:
        return f"epoch {self.epochs} of {self.total}, {self.rows:,} rows, {self.strikes} strikes, {self.doing}"


Look = Callable[[], Seen]


class Screen:
    """One console, used by several threads."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.began = time.monotonic()
        self.doing = "starting"
        self._lock = threading.RLock()
        self._said = time.monotonic()

    def step(self, text: str) -> None:
        """Print in bold what is done from now on."""
        self.doing = text
        self.say(text, style="bold")

    def plain(self, line: str) -> None:
        """Print a line that may be copied: it is not wrapped, and nothing in it is read as markup."""
        self.console.print(line, soft_wrap=True, markup=False)

    def say(self, text: str, style: str = "") -> None:
        """Print one line, with the seconds since the start in front of it."""
        self._print(Text(text, style=style))

    def _print(self, text: Text) -> None:
        with self._lock:
            at = Text(f"{time.monotonic() - self.began:5.0f} s  ", style="dim")
            self.console.print(at + text, soft_wrap=True)
            self._said = time.monotonic()

    def strike(self, job: str, struck: Struck) -> None:
        """Print one strike: where, the victim, the signal, the epoch, and what recovery did."""
        seen = struck.sighting
        where = f"{seen.point}@{seen.sink}" if seen.sink else seen.point
        pids = "+".join(str(death.pid) for death in struck.deaths)
        signals = {death.signal for death in struck.deaths}
        line = Text(f"{job:5} ✗ {struck.strike.when}: ", style="bold")
        line.append(f"{where}, ", style="")
        line.append(f"{struck.strike.victim} pid {pids} died of signal {', '.join(map(str, signals))}, ", style="")
        line.append(f"epoch {struck.strike.epoch} ({struck.rows:,} rows): ", style="")
        line.append(struck.outcome, style=f"bold {COLOURS.get(struck.outcome, '')}")
        self._print(line)

    @contextlib.contextmanager
    def busy(self, about: Callable[[], str] = lambda: "") -> Iterator[None]:
        """Show that the current step is running until the block is left; ``about`` returns its progress."""
        began = time.monotonic()
        if self.console.is_terminal:
            spinner = Spinner("dots", self.doing)

            def draw() -> None:
                spinner.update(text=f"{self.doing} {about()}")

            with Live(spinner, console=self.console, transient=True), _repeat(draw):
                yield
        else:

            def look() -> None:
                if time.monotonic() - self._said > SILENT_S:
                    self.say(f"still {self.doing} ({time.monotonic() - began:.0f} s) {about()}".rstrip())

            with _repeat(look):
                yield

    @contextlib.contextmanager
    def watch(self, jobs: Mapping[str, Look]) -> Iterator[None]:
        """Show the progress of each job until the block is left."""
        if self.console.is_terminal:
            with (
                Live(_view(jobs), console=self.console, transient=True) as live,
                _repeat(lambda: live.update(_view(jobs))),
            ):
                yield
        else:
            with _repeat(_Lines(self, jobs).look):
                yield

    def silent(self) -> bool:
        """Return whether nothing was printed for ``SILENT_S`` seconds."""
        return time.monotonic() - self._said > SILENT_S

    def table(self, counts: Mapping[tuple[str, str], Count]) -> None:
        """Print the table of results, with one line per job and sink."""
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


def _view(jobs: Mapping[str, Look]) -> Group:
    table = Table(box=None, padding=(0, 2))
    for heading in ("job", "", "epoch", "rows", "strikes", "now"):
        table.add_column(heading, justify="right" if heading in ("epoch", "rows", "strikes") else "left")
    for name, look in jobs.items():
        seen = look()
        bar = ProgressBar(total=seen.total, completed=seen.epochs, width=24)
        table.add_row(name, bar, f"{seen.epochs} of {seen.total}", f"{seen.rows:,}", str(seen.strikes), seen.doing)
    return Group(table)


class _Lines:
    """The view as lines: a line when a job has finished some more epochs, or when nothing was printed for a while."""

    def __init__(self, screen: Screen, jobs: Mapping[str, Look]) -> None:
        self._screen, self._jobs = screen, jobs
        self._reported = dict.fromkeys(jobs, 0)

    def look(self) -> None:
        due = [name for name, look in self._jobs.items() if look().epochs >= self._reported[name] + LINE_EVERY_EPOCHS]
        for name in due or (self._jobs if self._screen.silent() else ()):
            seen = self._jobs[name]()
            self._reported[name] = seen.epochs
            self._screen.say(f"{name:5}   {seen}")


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
