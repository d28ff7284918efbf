"""The strikes of the storm: one thread for the brokers, one loop for the drivers and their Python workers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from epochal.chaos.demo.strikes import Checkpoint
from epochal.chaos.servers import guard
from epochal.chaos.servers.kafka_nodes import NODES, KafkaNodes
from epochal.chaos.strike.nemesis import NotCounted
from epochal.chaos.strike.standby import Standby, Start
from epochal.sinks.kafka.wire.errors import BrokerError
from tests.storm.administrator import WAYS, Administrator
from tests.storm.feed import Feed

POINTS = (
    "in-write#3", "in-write#20", "before-vote#1", "before-vote#3", "before-decide#2", "after-decide#1",
    "after-decide#3", "before-publish#1", "before-publish#3", "after-publish#1", "after-publish#3", "before-return#2",
    "after-fence-record#1", "before-sink-fence#1", "after-sink-fence#1", "before-redo#1", "after-redo-decided#1",
)  # fmt: skip
"""Where a driver, or with in-write one of its workers, is killed, and at which pass."""
TIMEOUTS = (6, 20, 120)
"""Of transactions; the shortest end some epochs between vote and commit."""
ENDED_AT = (
    "before-vote#1", "before-vote#2", "before-decide#1", "before-decide#2", "after-decide#1", "after-decide#2",
    "after-decide#3", "before-sink-commit#1", "before-sink-commit#2", "before-publish#1", "before-publish#2",
    "after-publish#1", "after-publish#2",
)  # fmt: skip
"""Where a driver stands while its transaction, which has every row by then, is ended.  At the last it is committed, and
its driver, which asks once more, is told that somebody has fenced it."""
SHORT = 2
"""The timeout of a transaction that shall end by it."""
EXPIRED_S = 60.0
AT_POINT_S = 45.0
TAKEN_OVER_S = 90.0


class Brokers(threading.Thread):
    """Kills or pauses one broker after another.  All others are in sync when one is struck."""

    def __init__(self, nodes: KafkaNodes, dice: random.Random, tally: Counter[str]) -> None:
        super().__init__(daemon=True, name="brokers")
        self._nodes, self._dice, self._tally = nodes, dice, tally
        self._is_over = threading.Event()
        self.failure: str | None = None

    def run(self) -> None:
        try:
            while not self._is_over.wait(self._dice.uniform(0.5, 8)):
                self._strike(self._dice.choice(NODES))
                self._nodes.await_in_sync()
        except Exception:
            self.failure = traceback.format_exc()

    def end(self) -> None:
        self._is_over.set()
        self.join(300)

    def _strike(self, number: int) -> None:
        nodes = self._nodes
        if self._dice.random() < 0.5:
            nodes.kill(number)
            self._tally["brokers killed"] += 1
            self._is_over.wait(self._dice.choice([0, 1, 5, 20]))
            nodes.restart(number)
            return
        nodes.pause(number)
        self._tally["brokers paused"] += 1
        self._is_over.wait(self._dice.choice([0.3, 2, 5, 15]))
        nodes.resume(number)


class Drivers:
    """Runs one start after another and strikes each.  ``settings`` are those of every start."""

    def __init__(
        self,
        standby: Standby,
        folder: Path,
        settings: Mapping[str, Any],
        dice: random.Random,
        tally: Counter[str],
        feed: Feed,
        administrator: Administrator,
    ) -> None:
        self._standby, self._folder, self._settings = standby, folder, settings
        self._administrator = administrator
        self.dice, self._tally, self._feed = dice, tally, feed
        self.checkpoint = Checkpoint(Path(settings["checkpoint"]))
        self._offsets = Path(settings["checkpoint"]) / "offsets"
        self.starts = 0
        self.start = self.begin(create=True)

    def begin(self, *rules: str, create: bool = False, timeout: int | None = None) -> Start:
        self.starts += 1
        timeout = timeout or self.dice.choice(TIMEOUTS)
        settings = {**self._settings, "create": create, "transaction_timeout": timeout}
        begun = self._standby.begin(self._folder / f"start-{self.starts}", settings, rules)
        self._standby.stand_by()
        return begun

    def await_epochs(self, number: int, seconds: float) -> bool:
        """Wait until so many more epochs are done; return False if the start ends before, or the time is over."""
        wanted, limit = self.checkpoint.epochs() + number, time.monotonic() + seconds
        while self.checkpoint.epochs() < wanted:
            if self.start.exit_status is not None or time.monotonic() > limit:
                return False
            self.rest(0.2)
        return True

    def ends(self) -> list[int]:
        """Return for each finished epoch how many groups are done with it.

        Spark writes down which files it will read before it plans the epoch.  A start that is killed in between leaves
        them to the next epoch, which then has the files of two groups.
        """
        texts = (self._offsets / str(epoch) for epoch in range(self.checkpoint.epochs()))
        return [int(json.loads(path.read_text().splitlines()[-1])["logOffset"]) + 1 for path in texts]

    def groups(self) -> int:
        """Return how many groups are done."""
        newest = self.checkpoint.epochs() - 1
        if newest < 0:
            return 0
        told = json.loads((self._offsets / str(newest)).read_text().splitlines()[-1])
        return int(told["logOffset"]) + 1

    def rest(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            self._feed.keep_ahead(self.groups())
            time.sleep(min(0.2, left))

    def strike(self) -> None:
        """Strike the running start in one way; afterwards a start runs."""
        ways: list[Callable[[], None]] = [
            self._kill, self._kill_at_a_point, self._kill_at_a_point, self._kill_worker, self._kill_worker,
            self._pause, self._pause_for_good, self._end_transaction, self._end_transaction, self._end_transaction,
        ]  # fmt: skip
        self.dice.choice(ways)()
        if self.start.exit_status is not None:
            self.replace()

    def replace(self, *rules: str, timeout: int | None = None) -> None:
        self._note_end()
        self.start.close()
        self._feed.prune(self.groups())
        self.start = self.begin(*rules, timeout=timeout)

    def _note_end(self) -> None:
        status = self.start.exit_status
        if status is not None and status >= 0:
            self._tally["starts that ended by an error"] += 1

    def _kill(self) -> None:
        self.rest(self.dice.uniform(0, 12))
        with contextlib.suppress(NotCounted):
            self.start.kill()
            self._tally["drivers killed at any time"] += 1
        self.replace()

    def _kill_at_a_point(self) -> None:
        rule = f"{self.dice.choice(POINTS)}=kill"
        if self._brought_to(rule):
            self._tally[f"killed at {rule.partition('#')[0]}"] += 1
            self.rest(1)

    def _end_transaction(self) -> None:
        """End the transaction while its driver stands still; then the driver goes on, or the next start takes over."""
        rule, way = f"{self.dice.choice(ENDED_AT)}=stop", self.dice.choice([*WAYS, "expired"])
        if not self._brought_to(rule, timeout=SHORT if way == "expired" else None):
            return
        dies = self.dice.random() < 0.4
        try:
            if dies:
                self.start.kill()
            if way == "expired":
                ended = self._administrator.await_open(0.1) and self._administrator.await_expiry(EXPIRED_S)
            else:
                ended = self._administrator.end(way)
        except (NotCounted, OSError, BrokerError, KafkaException):
            ended = False
        if ended:
            then = "then killed" if dies else "then resumed"
            self._tally[f"transactions {way} at {rule.partition('#')[0]}, {then}"] += 1
        if not dies:
            with contextlib.suppress(NotCounted, ProcessLookupError):
                self.start.resume()

    def _brought_to(self, rule: str, timeout: int | None = None) -> bool:
        """Kill what runs; begin a start with this rule, and return whether it came there."""
        with contextlib.suppress(NotCounted):
            self.start.kill()
            self._tally["drivers killed at any time"] += 1
        self.replace(rule, timeout=timeout)
        limit = time.monotonic() + AT_POINT_S
        while not self.start.was_hit(rule) and self.start.exit_status is None and time.monotonic() < limit:
            self.rest(0.2)
        return self.start.was_hit(rule)

    def _kill_worker(self) -> None:
        self.rest(self.dice.uniform(0, 6))
        workers = [pid for pid in guard.descendants(self.start.pid) if _is_worker(pid)]
        for pid in self.dice.sample(workers, min(len(workers), self.dice.choice([1, 2, 9]))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._tally["workers killed"] += 1

    def _pause(self) -> None:
        self.rest(self.dice.uniform(0, 6))
        with contextlib.suppress(NotCounted, ProcessLookupError):
            self.start.pause()
            self._tally["drivers paused"] += 1
            self.rest(self.dice.choice([0.5, 3, 10]))
            self.start.resume()

    def _pause_for_good(self) -> None:
        """Another start takes over; the one that was paused goes on meanwhile, and must end by itself."""
        self.rest(self.dice.uniform(0, 6))
        zombie = self.start
        try:
            zombie.pause()
        except (NotCounted, ProcessLookupError):
            return
        self.start = self.begin()
        self.await_epochs(self.dice.choice([0, 1, 2]), TAKEN_OVER_S)
        with contextlib.suppress(NotCounted, ProcessLookupError):
            zombie.resume()
            self._tally["drivers taken over"] += 1
        limit = time.monotonic() + TAKEN_OVER_S
        while zombie.exit_status is None and time.monotonic() < limit:
            self.rest(0.2)
        self._tally["of these ended by themselves"] += zombie.exit_status is not None
        zombie.close()


def _is_worker(pid: int) -> bool:
    """Whether a process is one of Spark's Python workers, or their daemon."""
    try:
        return (
            b"daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
            or b"workers" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
    except OSError:
        return False
