"""The storm's administrator, who ends the open transaction of the sink: at any time, or when a driver is at a point."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.errors import BrokerError
from epochal.sinks.kafka.wire.messages import TransactionState
from epochal.sinks.kafka.wire.reach import reach_of

ANSWER_S = 90.0
"""So long a broker may be away, and the transaction's coordinator be another one."""
OPEN_S = 10.0
LATER_S = (0.0, 0.02, 0.1, 0.4, 1.0)
"""How long after a transaction began it is ended, if it is still open then."""
WAYS = ("fenced", "aborted")


class Administrator:
    """Ends transactions of one transactional id, with clients of its own."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._bootstrap, self._id = bootstrap, transactional_id

    def end(self, way: str) -> bool:
        """End the transaction, which may be committed by now; return whether the sink can commit it no more.

        ``fenced``: by the InitProducerId of a released client, as ``kafka-transactions.sh`` terminates one.
        ``aborted``: by EndTxn under the producer epoch of the sink, which goes on with that epoch.
        """
        if way == "fenced":
            client = {"bootstrap.servers": self._bootstrap, "transactional.id": self._id, "log_level": 0}
            Producer(client).init_transactions(ANSWER_S)
            return True
        was = self.look()
        if was.state != "Ongoing":
            return False
        with Cluster(reach_of(self._bootstrap, {}, ANSWER_S)) as cluster:
            return cluster.end_transaction(self._id, was.producer, time.monotonic() + ANSWER_S, commit=False) == 0

    def await_expiry(self, seconds: float) -> bool:
        """Return whether the brokers end an open transaction within this time."""
        return self._await(lambda state: state != "Ongoing", seconds)

    def await_open(self, seconds: float) -> bool:
        return self._await(lambda state: state == "Ongoing", seconds)

    def look(self) -> TransactionState:
        with Cluster(reach_of(self._bootstrap, {}, ANSWER_S)) as cluster:
            return cluster.describe_transaction(self._id, time.monotonic() + ANSWER_S)

    def _await(self, holds: Callable[[str], bool], seconds: float) -> bool:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if holds(self.look().state):
                return True
            time.sleep(0.02)
        return False


class AtAnyTime(threading.Thread):
    """Waits for an open transaction now and then, and ends it."""

    def __init__(self, administrator: Administrator, dice: random.Random, tally: Counter[str]) -> None:
        super().__init__(daemon=True, name="administrator")
        self._administrator, self._dice, self._tally = administrator, dice, tally
        self._is_over = threading.Event()
        self.failure: str | None = None

    def run(self) -> None:
        try:
            while not self._is_over.wait(self._dice.uniform(2, 20)):
                self._strike()
        except Exception:
            self.failure = traceback.format_exc()

    def end(self) -> None:
        self._is_over.set()
        self.join(4 * ANSWER_S)

    def _strike(self) -> None:
        way = self._dice.choice(WAYS)
        try:
            if not self._administrator.await_open(OPEN_S):
                return
            self._is_over.wait(self._dice.choice(LATER_S))
            if self._administrator.end(way):
                self._tally[f"transactions {way} at any time"] += 1
        except (OSError, BrokerError, KafkaException):
            self._tally["ends that brokers did not answer"] += 1
