"""A Kafka cluster of three nodes on loopback: each is broker and controller, can be killed, paused and started again.

A topic has three replicas. A row counts as written when two of them have it, so one node may be away at any time.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.kafka import KafkaServer, Topics, new_cluster_id
from epochal.chaos.servers.process import LOOPBACK, free_port, wait_until
from epochal.coordinator.environment.versions import KAFKA_BROKER

NODES = (1, 2, 3)
HEAP = ("-Xms64m", "-Xmx256m")
TRANSACTIONS = "__transaction_state"
TRANSACTION_PARTITIONS = 3
SETTINGS: Mapping[str, str] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": str(TRANSACTION_PARTITIONS),
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # A node that is killed or paused for longer than this loses its partitions to the others; by default after 9 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # A follower that does not fetch for so long is no longer in sync; by default 30 s.
    "replica.lag.time.max.ms": "5000",
    # A node that comes back gets its partitions back this soon after it is in sync; by default within 5 minutes.
    "leader.imbalance.check.interval.seconds": "5",
}
AWAIT_S = 240.0
ANSWER_S = 10.0


class KafkaNode(KafkaServer):
    """One node. The others must run, too, before it answers for the first time."""

    def __init__(self, number: int, voters: Mapping[int, int], cluster_id: str, root: Path, **options: Any) -> None:
        """`voters` are the ports of all controllers, by number. The data lies below `root`."""
        super().__init__(directory=root / f"node-{number}", **options)
        self.number = number
        self.replicas = len(voters)
        self._options += HEAP
        self._voters = ",".join(f"{each}@{LOOPBACK}:{port}" for each, port in voters.items())
        self._controller_port = voters[number]
        self._cluster_id = cluster_id
        self._root = root
        self.is_paused = False

    def stop(self) -> None:
        self.resume()
        super().stop()

    def pause(self) -> None:
        """Send SIGSTOP: the node keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Send SIGCONT. Do nothing if it is not paused."""
        if self.is_paused and self.running():
            self._signal(signal.SIGCONT)
        self.is_paused = False

    def leaders_and_replicas(self) -> Any:
        """Return the cluster as this node knows it. Raises KafkaException if it does not answer within ANSWER_S."""
        with self._admin(**{"reconnect.backoff.max.ms": 200}) as admin:
            return admin.list_topics(timeout=ANSWER_S)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is None:
            raise ServerUnavailable(f"{self.kind} on {self.address} is not running", "start() it first")
        os.kill(self.pid, number)

    def _left_behind(self) -> list[Path]:
        return [self._root]

    def _recover(self) -> None:
        """Nothing: the controllers of the other nodes fence a crashed broker."""

    def _settings(self) -> dict[str, str]:
        own = {"node.id": str(self.number), "controller.quorum.voters": self._voters}
        return {**super()._settings(), **SETTINGS, **own, **self._overrides}


class KafkaNodes(Topics):
    """Three nodes. Clients connect to `bootstrap`, which names all of them.

    As a context manager they are started on entry and closed on exit. `close` removes all their data.
    """

    replicas = len(NODES)

    def __init__(
        self, *, version: str = KAFKA_BROKER, settings: Mapping[str, str] | None = None, long_lived: bool = False
    ) -> None:
        """The arguments are those of `KafkaServer`."""
        self.directory = Path(tempfile.mkdtemp(prefix="epochal-kafka-nodes-"))
        voters, cluster_id = {number: free_port() for number in NODES}, new_cluster_id()
        options = {"version": version, "settings": settings, "long_lived": long_lived}
        self.nodes = {number: KafkaNode(number, voters, cluster_id, self.directory, **options) for number in NODES}
        self.address = ",".join(node.address for node in self.nodes.values())
        atexit.register(self.close)

    def start(self) -> KafkaNodes:
        """Start the nodes that are down, all at once, and wait until each answers."""
        with ThreadPoolExecutor(len(NODES)) as threads:
            list(threads.map(lambda node: node.start(), [each for each in self.nodes.values() if not each.running()]))
        return self

    def stop(self) -> None:
        """Stop all nodes, at once: the last one alone would wait for the others."""
        with ThreadPoolExecutor(len(NODES)) as threads:
            list(threads.map(lambda node: node.stop(), self.nodes.values()))

    def close(self) -> None:
        """Kill what runs, and remove all data."""
        atexit.unregister(self.close)
        for number in NODES:
            if self.nodes[number].running():
                self.kill(number)
            self.nodes[number].close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def running(self) -> bool:
        """Return whether all nodes run. A paused one runs."""
        return all(node.running() for node in self.nodes.values())

    def kill(self, number: int) -> None:
        """Kill a node with SIGKILL. Return when it is gone; the others may not have noticed it yet."""
        self.nodes[number].crash()
        self.nodes[number].is_paused = False

    def restart(self, number: int) -> None:
        """Stop a node if it runs, start it on the same data and ports, and wait until it answers."""
        self.nodes[number].restart()

    def pause(self, number: int) -> None:
        """Stop a node with SIGSTOP."""
        self.nodes[number].pause()

    def resume(self, number: int) -> None:
        """Let a paused node go on."""
        self.nodes[number].resume()

    @contextlib.contextmanager
    def without(self, number: int) -> Iterator[None]:
        """Kill a node for the time of the block, then start it and wait until it has everything again."""
        self.kill(number)
        try:
            yield
        finally:
            self.restart(number)
            self.await_in_sync()

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Return the number of the node that leads a partition; wait until all running nodes name the same."""
        return self._agreed(f"who leads {topic}[{partition}]", lambda seen: _leader(seen, topic, partition))

    def coordinator_of(self, transactional_id: str) -> int:
        """Return the number of the node that coordinates a transactional id."""
        return self.leader_of(TRANSACTIONS, state_partition(transactional_id))

    def await_leader_other_than(self, number: int, topic: str, partition: int = 0) -> int:
        """Wait until the running nodes agree that another node than this one leads; return its number."""

        def other(seen: Any) -> int | None:
            leader = _leader(seen, topic, partition)
            return None if leader == number else leader

        return self._agreed(f"who leads {topic}[{partition}] instead of node {number}", other)

    def await_in_sync(self) -> None:
        """Wait until every node runs and knows that all replicas of all partitions are in sync."""
        self._agreed("all replicas in sync", _in_sync, all_nodes=True)

    def await_preferred(self) -> None:
        """Wait until every partition is led by its preferred replica. Connections to the leaders before stay open."""
        self._agreed("all partitions led by their preferred replica", _led_as_preferred, all_nodes=True)

    def __enter__(self) -> KafkaNodes:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _agreed(self, what: str, look: Callable[[Any], int | None], *, all_nodes: bool = False) -> int:
        """Return what all nodes that run answer alike, and not None; wait for that."""
        found = wait_until(lambda: self._answer_of_all(look, all_nodes=all_nodes), AWAIT_S)
        if found is None:
            raise ServerUnavailable(f"Kafka at {self.address}: not known after {AWAIT_S:g} s: {what}", "see its logs")
        return found

    def _answer_of_all(self, look: Callable[[Any], int | None], *, all_nodes: bool) -> int | None:
        from confluent_kafka import KafkaException

        asked = [node for node in self.nodes.values() if all_nodes or (node.running() and not node.is_paused)]
        answers: set[int | None] = set()
        for node in asked:
            try:
                answers.add(look(node.leaders_and_replicas()))
            except KafkaException:
                return None
        return answers.pop() if len(answers) == 1 else None


def _leader(seen: Any, topic: str, partition: int) -> int | None:
    known = seen.topics[topic].partitions.get(partition) if topic in seen.topics else None
    return known.leader if known is not None and known.leader in seen.brokers else None


def _in_sync(seen: Any) -> int | None:
    """Return how many partitions there are, if each has all its replicas and all nodes are there; else None."""
    if set(seen.brokers) != set(NODES):
        return None
    partitions = [each for topic in seen.topics.values() for each in topic.partitions.values()]
    return len(partitions) if all(sorted(each.isrs) == sorted(each.replicas) for each in partitions) else None


def _led_as_preferred(seen: Any) -> int | None:
    partitions = [each for topic in seen.topics.values() for each in topic.partitions.values()]
    return len(partitions) if all(each.leader == each.replicas[0] for each in partitions) else None


def state_partition(transactional_id: str) -> int:
    """Return the partition of `TRANSACTIONS` that holds the state of this id: Java's hash of it, made positive."""
    number = 0
    for unit in memoryview(transactional_id.encode("utf-16-le")).cast("H"):
        number = (31 * number + unit) & 0xFFFFFFFF
    return (number & 0x7FFFFFFF) % TRANSACTION_PARTITIONS
