"""Three nodes of Kafka: who leads and coordinates is known, and nothing that was acknowledged is lost with a node."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from epochal.chaos.servers import guard
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.kafka_nodes import NODES, KafkaNodes
from epochal.chaos.servers.process import wait_until
from epochal.sinks.kafka.wire.cluster import Cluster
from epochal.sinks.kafka.wire.reach import reach_of
from tests.real.sinks.kafka.support import read_topic

pytestmark = pytest.mark.wide
GONE_S = 60
PARENT = """
import time
from epochal.chaos.servers.kafka_nodes import KafkaNodes
nodes = KafkaNodes().start()
nodes.pause(2)
print(nodes.directory, *[node.pid for node in nodes.nodes.values()], flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[KafkaNodes]:
    with KafkaNodes() as cluster:
        yield cluster


def transactional(nodes: KafkaNodes, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(60)
    return producer


def shows(nodes: KafkaNodes, topic: str, rows: int) -> bool | None:
    return len(read_topic(nodes.bootstrap, topic)) == rows or None


def test_rows_that_were_committed_outlive_any_one_node(nodes: KafkaNodes, topic_name: str) -> None:
    nodes.create_topic(topic_name, partitions=1)
    producer = transactional(nodes, topic_name)
    for number in NODES:
        producer.begin_transaction()
        producer.produce(topic_name, str(number).encode())
        producer.commit_transaction(60)
        leader = nodes.leader_of(topic_name)
        with nodes.without(leader):
            assert not nodes.running()
            assert nodes.await_leader_other_than(leader, topic_name) in set(NODES) - {leader}
            # a leader that was just elected may show less for a moment
            assert wait_until(partial(shows, nodes, topic_name, number), 60)
    nodes.await_preferred()
    assert [r.value for r in read_topic(nodes.bootstrap, topic_name)] == [b"1", b"2", b"3"]


def test_the_coordinator_is_the_one_that_kafka_names(nodes: KafkaNodes, topic_name: str) -> None:
    transactional(nodes, topic_name)
    with Cluster(reach_of(nodes.bootstrap, {}, 60)) as cluster:
        for name in (topic_name, f"{topic_name}-ä", "x" * 200):
            cluster.init_producer(name, 1000, time.monotonic() + 60)
            assert cluster._coordinators[name] == nodes.coordinator_of(name)


def test_a_paused_node_loses_its_partitions_and_comes_back(nodes: KafkaNodes, topic_name: str) -> None:
    nodes.create_topic(topic_name, partitions=1)
    leader = nodes.leader_of(topic_name)
    nodes.pause(leader)
    assert nodes.await_leader_other_than(leader, topic_name) != leader
    nodes.resume(leader)
    nodes.await_in_sync()
    nodes.pause(leader)
    nodes.kill(leader)  # also while it is paused
    with pytest.raises(ServerUnavailable, match="is not running"):
        nodes.pause(leader)
    nodes.restart(leader)
    nodes.await_in_sync()


def test_the_nodes_do_not_outlive_the_process_that_started_them() -> None:
    child = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    directory, *pids = child.stdout.readline().split()
    child.stdout.close()
    child.kill()
    assert child.wait(GONE_S) == -signal.SIGKILL
    assert wait_until(lambda: None if any(guard.alive(int(pid)) for pid in pids) else True, GONE_S)
    assert wait_until(lambda: None if Path(directory).exists() else True, GONE_S)
