"""Read the outputs and the log again and again while faults strike, and record what they show as events of a history.

One pass reads every output, then the log.  It records the log's decisions *before* the rows of the outputs, because
everything that was visible must have been decided by then.  The outputs are read one after the other.  If two
passes in a row see the same, all outputs showed it at one time; only then it is recorded as one read of all outputs.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from epochal.chaos.observe.history import Content, Decided, Event, History, Read, Row, TookOver, actor_name
from epochal.chaos.observe.roles import Reader
from epochal.checkpoints.log import EpochLog, Fence, LogPosition, Operator, Record

PAUSES_S = 0.1, 1.0  # between two passes: as long as the last one took, but not less and not more than this
STALE_S = 60.0  # after so long without a successful pass, the outputs count as not watched


class LockedHistory(History):
    """A history to which the watcher and the nemesis add events from several threads."""

    def __init__(self) -> None:
        super().__init__(clock=time.time)
        self._lock = threading.RLock()

    def add(self, event: Event) -> None:
        with self._lock:
            super().add(event)

    @contextmanager
    def together(self) -> Iterator[None]:
        """While this is held, no other thread can add events."""
        with self._lock:
            yield


def attempt_number(attempt: object) -> int:
    """Return a number for the attempt in a row of an output: a hash of 48 bits; 0 if the row has no attempt."""
    if attempt is None:
        return 0
    return int.from_bytes(hashlib.sha256(str(attempt).encode()).digest()[:6], "big")


class Keys:
    """Finds the epoch of an id.  Ids of other runs, which may lie in the same output, are ignored.

    The ids of this run are ``first`` to ``beyond`` - 1.  In a history the key is the id minus ``first``, so keys are
    short and the same in every run.
    """

    def __init__(self, first: int, beyond: int) -> None:
        self._range = range(first, beyond)
        self._expected: dict[int, dict[int, Row]] = {}  # key -> value -> row; an upsert writes a key several times

    def key(self, identity: int) -> int:
        return identity - self._range.start

    def rows(self, expected: Mapping[int, Sequence[Row]]) -> dict[int, tuple[Row, ...]]:
        """Return rows of a workload with the keys of the history, and remember them as expected rows."""
        rows = self.named(expected)
        for found in rows.values():
            for row in found:
                self._expected.setdefault(row.key, {})[row.value] = row
        return rows

    def named(self, rows: Mapping[int, Sequence[Row]]) -> dict[int, tuple[Row, ...]]:
        """Return rows of a workload with the keys of the history."""
        return {epoch: tuple(r._replace(key=self.key(r.key)) for r in found) for epoch, found in rows.items()}

    def row(self, data: Mapping[str, Any]) -> Row | None:
        """Return a row of an output as the history has it; None for a row of another run.

        A row that is not expected gets epoch -1.  If the output leaves ``n`` out, the newest expected value is taken.
        """
        if data["id"] not in self._range:
            return None
        key = self.key(data["id"])
        versions = self._expected.get(key) or {1: Row(-1, key, 0, 1)}
        newest = next(reversed(versions.values()))
        value = newest.value if data.get("n") is None else int(data["n"])
        unknown = newest.epoch if len(versions) == 1 else -1  # the epoch of a row with a wrong value
        epoch = versions[value].epoch if value in versions else unknown
        return Row(epoch, key, attempt_number(data.get("attempt")), value)


class Watcher:
    """Reads in a thread until it is stopped; ``passes`` counts the passes that succeeded."""

    def __init__(self, history: LockedHistory, reader: Reader, keys: Keys, log: Callable[[], EpochLog | None]) -> None:
        self.history = history
        self.passes = 0
        self.troubles: list[str] = []  # errors of passes; a reader may fail while its server is down
        self._reader = reader
        self._keys = keys
        self._log = log
        self._told: set[LogPosition] = set()
        self._before: Content = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="epochal-watcher", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(STALE_S)

    def _run(self) -> None:
        shortest, longest = PAUSES_S
        pause = shortest
        while not self._stop.wait(pause):
            began, pause = time.monotonic(), shortest
            try:
                self.look()
                pause = min(max(shortest, time.monotonic() - began), longest)
            except (Exception, SystemExit) as error:  # the reader may be the user's code
                self.troubles.append(f"{type(error).__name__}: {error}")

    def look(self) -> None:
        """Make one pass."""
        content = {sink: self._rows(rows) for sink, rows in self._reader.read().items()}
        before = self._before
        content = {sink: before[sink] if before.get(sink) == rows else rows for sink, rows in content.items()}
        with self.history.together():
            self._tell_log()
            if content == before:
                self.history.add(Read(content))
            else:
                for sink, rows in content.items():
                    self.history.add(Read({sink: rows}))
        self._before = content
        self.passes += 1

    def _rows(self, rows: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
        return tuple(sorted(row for row in map(self._keys.row, rows) if row is not None))

    def _tell_log(self) -> None:
        log = self._log()
        entries = log.read() if log is not None else ()
        for entry in entries:
            if entry.position not in self._told:
                self._told.add(entry.position)
                self._tell(entry.record)

    def _tell(self, record: Record) -> None:
        if isinstance(record, Fence):
            self.history.add(TookOver("log", actor_name(record.actor)))
        elif not isinstance(record, Operator):
            self.history.add(Decided(record.epoch, record.decision.id, actor_name(record.actor), record.supersedes))

    def wait_passes(self, number: int, timeout: float) -> bool:
        """Wait for ``number`` more successful passes; return whether they succeeded within ``timeout`` seconds."""
        goal, deadline = self.passes + number, time.monotonic() + timeout
        while self.passes < goal and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.passes >= goal
