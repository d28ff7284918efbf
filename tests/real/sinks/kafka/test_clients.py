"""Clients of librdkafka are gone when their use is over, whatever came of it."""

from __future__ import annotations

import subprocess
import sys

from epochal.chaos import servers

TIMES = 400
PROGRAM = """
import gc, sys, time
from epochal.sinks.kafka import topics
from epochal.sinks.kafka.client import Link
from epochal.sinks.kafka.marker import MarkerTopic

bootstrap, times = sys.argv[1], int(sys.argv[2])
link, topics.HEARD_S = Link(bootstrap, "kafka", 60), 0
gc.disable()
for number in range(times):
    assert not topics.has_marker(link, MarkerTopic("flights", "missing"))  # an error that refers to what it met
    gc.set_threshold(gc.get_count()[0] + number % 20)  # whoever makes some objects now collects the garbage
    gc.enable()
    time.sleep(0.003)
    gc.disable()
print("alive")
"""


def test_a_client_with_an_answer_to_come_is_not_left_to_the_garbage_collector(kafka_server: servers.Kafka) -> None:
    """Answers become objects in a thread of the client, where Python may collect garbage.

    A client that is destroyed in its own thread ends the process with SIGABRT.
    """
    argv = [sys.executable, "-c", PROGRAM, kafka_server.bootstrap, str(TIMES)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]
