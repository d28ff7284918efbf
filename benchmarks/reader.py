"""An outside reader that looks at a sink all the time, in its own process with its own connections.

    python -m benchmarks.reader KIND ADDRESS NAME

It prints ``ready`` when it begins to look, then a line of JSON for each change: ``[when, [id, ...]]``, with the time of
the wall clock.  It ends when its standard input ends.  ``NAME`` is the table or view, or the topic; it is ignored for a
Delta table.

:class:`Reader` starts this process and reads its lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

LOOK_S = 0.01  # between two looks
READY_S = 60.0
END_S = 20.0

Look = Callable[[], Sequence[int]]
"""Returns the ids that were not seen before."""


class Reader:
    """A process that reads while the context is entered; :attr:`seen` grows meanwhile."""

    def __init__(self, kind: str, address: str, name: str) -> None:
        self.seen: dict[int, float] = {}
        """Id -> the time when it was first seen, in seconds of the wall clock."""
        self.twice = 0
        """How many rows were seen again, for example from a writer that writes at least once."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.reader", kind, address, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True, name=f"reader-{kind}")
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "ready":
                self._ready.set()
                continue
            when, ids = json.loads(line)
            for number in ids:
                self.twice += number in self.seen
                self.seen.setdefault(number, when)

    def __enter__(self) -> Reader:
        if not self._ready.wait(READY_S):
            self._end()
            raise TimeoutError(f"a reader was not ready within {READY_S:.0f} s: {self._process.args!r}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join(END_S)

    def check(self) -> None:
        """Raise RuntimeError if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"a reader ended with {self._process.returncode}: {self._process.args!r}")


# --- in the process ---------------------------------------------------------------------------------


def main(kind: str, address: str, name: str) -> None:
    with LOOKS[kind](address, name) as look:
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], LOOK_S)[0]:
            if ids := look():
                print(json.dumps([time.time(), list(ids)]), flush=True)


@contextlib.contextmanager
def postgres(dsn: str, name: str) -> Iterator[Look]:
    """Count the rows, and read them only if the count has changed."""
    import psycopg

    known: set[int] = set()

    with psycopg.connect(dsn, autocommit=True) as connection:

        def look() -> Sequence[int]:
            counted = connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchone()
            if counted == (len(known),):
                return []
            rows = connection.execute(f"SELECT id FROM {name}".encode()).fetchall()
            new = [number for (number,) in rows if number not in known]
            known.update(new)
            return new

        yield look


@contextlib.contextmanager
def kafka(bootstrap: str, name: str) -> Iterator[Look]:
    """Read committed records from the beginning; a record's key is its id."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "epochal-bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )

    def look() -> Sequence[int]:
        messages = consumer.consume(10_000, timeout=LOOK_S)
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
        return [int(message.key() or b"") for message in messages]

    try:
        partitions = consumer.list_topics(name, timeout=10).topics[name].partitions
        consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for number in partitions])
        yield look
    finally:
        consumer.close()


@contextlib.contextmanager
def delta(path: str, _: str) -> Iterator[Look]:
    """Look for new versions in the table's log, and read the files that they add."""
    from pyarrow import parquet

    log = Path(path, "_delta_log")
    following = sum(1 for _ in log.glob("*.json"))

    def look() -> Sequence[int]:
        nonlocal following
        found: list[int] = []
        while (version := log / f"{following:020}.json").exists():
            following += 1
            for line in version.read_text(encoding="utf-8").splitlines():
                if added := json.loads(line).get("add"):
                    found += parquet.read_table(os.path.join(path, added["path"]), columns=["id"])["id"].to_pylist()
        return found

    yield look


LOOKS: Mapping[str, Callable[[str, str], contextlib.AbstractContextManager[Look]]] = {
    "postgres": postgres,
    "kafka": kafka,
    "delta": delta,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
