"""A storm on three brokers: a query whose Kafka sink votes, while brokers, drivers and Python workers are struck,
and an administrator ends its transactions, also between the decision and the commit.

    python -m tests.storm.votes --minutes 30 --seed 1

Readers of both isolation levels follow the topic all the time.  At the end nothing is struck any more, the query comes
to the end of its input, and all is compared: each id once, rows in order per partition, epochs in order, the marker at
the last epoch, each record of the marker topic right, no transaction open.  A long storm must also have met epochs that
were written again after their decision.  Exit status 0: all is right.  If not, the folder with everything is kept.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from epochal.chaos.job import jvm
from epochal.chaos.servers.kafka_nodes import KafkaNodes
from epochal.chaos.servers.process import wait_until
from epochal.chaos.strike.standby import Standby
from epochal.coordinator.model.epoch import Query
from epochal.sinks.kafka import KafkaSink
from tests.real.sinks.kafka.support import hanging
from tests.storm.administrator import Administrator, AtAnyTime
from tests.storm.feed import FILES, Feed
from tests.storm.readers import (
    COMMITTED,
    UNCOMMITTED,
    Follower,
    Reader,
    audited,
    differences,
    ends_of,
    faults,
    strangers,
)
from tests.storm.strikes import Brokers, Drivers

PARTITIONS = 6
TOPIC = "storm"
FIRST_EPOCH_S = 300.0
END_S = 600.0
QUIET_S = 60.0
"""So long at most no driver is struck."""
LONG_S = 600.0
"""A storm of this length that met no redo has not shown what it is for."""
OPTIONS = {"batch.num.messages": 500, "batch.size": 50_000}
"""Options with which a large epoch gets some dozens of batches."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.storm.votes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30, help="how long things are struck (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the strikes and of the input")
    asked = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="epochal-storm-"))
    print(f"seed {asked.seed}, {asked.minutes:g} minutes, {folder}", flush=True)
    jvm.short_lived()  # makes the archive of classes, where it has to be, before a driver is waited for
    wrong = storm(folder, asked.minutes * 60, asked.seed)
    print(*wrong, sep="\n")
    print(f"seed {asked.seed}: {f'WRONG, see {folder}' if wrong else 'all is right'}", flush=True)
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0


def storm(folder: Path, seconds: float, seed: int) -> list[str]:
    """Run it; return what is wrong."""
    tally: Counter[str] = Counter()
    feed = Feed(folder, random.Random(f"feed {seed}"))
    with ExitStack() as opened:
        nodes = opened.enter_context(KafkaNodes())
        drivers = Standby(["-m", "tests.storm.driver"], folder / "drivers")
        opened.callback(drivers.close)
        settings = {
            "bootstrap": nodes.bootstrap,
            "topic": TOPIC,
            "partitions": PARTITIONS,
            "files": FILES,
            "options": OPTIONS,
            "source": str(feed.source / "*"),
            "checkpoint": str(folder / "checkpoint"),
            "events": str(folder / "events.jsonl"),
        }
        feed.keep_ahead(0)
        administrator = Administrator(nodes.bootstrap, f"epochal-{TOPIC}-kafka")
        struck = Drivers(drivers, folder, settings, random.Random(f"drivers {seed}"), tally, feed, administrator)
        if not struck.await_epochs(1, FIRST_EPOCH_S):
            return [f"the first epoch was not done within {FIRST_EPOCH_S:g} s", struck.start.tail()]
        followers = [Follower(Reader(nodes.bootstrap, TOPIC, PARTITIONS, level)) for level in (COMMITTED, UNCOMMITTED)]
        for follower in followers:
            follower.start()
        brokers = Brokers(nodes, random.Random(f"brokers {seed}"), tally)
        brokers.start()
        ender = AtAnyTime(administrator, random.Random(f"administrator {seed}"), tally)
        ender.start()
        _strike_until(time.monotonic() + seconds, struck, brokers, tally)
        ender.end()
        if ender.failure is not None or ender.is_alive():
            return [f"the administrator did not end: {ender.failure}"]
        wrong = _calm(nodes, brokers, struck, feed)
        wrong += _compared(nodes, followers, feed, struck, tally, settings)
        _count_events(folder / "events.jsonl", tally)
        if seconds >= LONG_S and not tally["event redo"]:
            wrong.append("no epoch was written again after its decision")
    _print(tally, struck)
    return wrong


def _strike_until(end: float, struck: Drivers, brokers: Brokers, tally: Counter[str]) -> None:
    told = time.monotonic()
    while time.monotonic() < end and brokers.failure is None:
        struck.await_epochs(struck.dice.randint(1, 6), QUIET_S)
        if struck.start.exit_status is None:
            struck.strike()
        else:
            struck.replace()
        if time.monotonic() > told + 60:
            told = time.monotonic()
            left = (end - told) / 60
            print(f"{left:.0f} minutes left, {struck.checkpoint.epochs()} epochs, {struck.starts} starts", flush=True)
    tally["starts"] = struck.starts


def _calm(nodes: KafkaNodes, brokers: Brokers, struck: Drivers, feed: Feed) -> list[str]:
    """Strike nothing any more; let the query come to the end of its input."""
    brokers.end()
    if brokers.failure is not None:
        return [f"the brokers did not come back: {brokers.failure}"]
    if brokers.is_alive():
        return ["the brokers did not come back within 300 s"]
    nodes.await_in_sync()
    limit = time.monotonic() + END_S
    while struck.groups() < feed.groups and time.monotonic() < limit:
        if struck.start.exit_status is not None:
            struck.replace()
        time.sleep(0.5)
    done = struck.groups()
    struck.start.close()
    return [] if done == feed.groups else [f"{done} of {feed.groups} groups are done after {END_S:g} s of calm"]


def _compared(
    nodes: KafkaNodes,
    followers: Sequence[Follower],
    feed: Feed,
    struck: Drivers,
    tally: Counter[str],
    settings: dict[str, Any],
) -> list[str]:
    marker = f"__epochal.{TOPIC}.kafka"
    open_ones = wait_until(lambda: None if hanging(nodes.bootstrap, TOPIC, marker) else list[str](), 60)
    wrong = [] if open_ones == [] else [f"open transactions: {hanging(nodes.bootstrap, TOPIC, marker)}"]
    ends = ends_of(nodes.bootstrap, TOPIC, PARTITIONS)
    last = Follower(Reader(nodes.bootstrap, TOPIC, PARTITIONS, COMMITTED))
    last.start()
    readers = {"the last reader": last, "the follower": followers[0], "the uncommitted follower": followers[1]}
    seen, wanted = {}, feed.ids()
    for what, reader in readers.items():
        wrong += _tried(lambda what=what, reader=reader: seen.update({what: reader.read_to(ends)}))  # type: ignore[misc]
        wrong += [f"{what}: {each}" for each in reader.reader.wrong[:5]]
    if len(seen) == len(readers):
        final, following, uncommitted = seen.values()
        wrong += faults(wanted, final, struck.ends())
        wrong += differences(final, following, "seen by the follower") + differences(following, final, "seen last")
        wrong += differences(final, uncommitted, "seen uncommitted") + strangers(wanted, uncommitted)
        tally["rows"] = sum(len(its.ids) for its in final.values())
        tally["rows in aborted transactions"] = sum(len(its.ids) for its in uncommitted.values()) - tally["rows"]
    tally["epochs"] = struck.checkpoint.epochs()
    query = Query(TOPIC, "storm", "storm", settings["checkpoint"])
    sink = KafkaSink(nodes.bootstrap, topic=TOPIC, name="kafka")
    found = sink.look(query).marker
    if found is None or found.position != tally["epochs"]:
        wrong.append(f"the marker is at {found}, and {tally['epochs']} epochs are done")
    shown = [(each.position, each.epoch, each.rows) for each in sink.epochs(TOPIC).rows]
    tally["epochs in the audit"] = len(shown)
    return wrong + audited(feed.sizes, struck.ends(), shown)


def _tried(act: Callable[[], object]) -> list[str]:
    try:
        act()
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def _count_events(path: Path, tally: Counter[str]) -> None:
    for line in path.read_text().splitlines():
        event = json.loads(line)
        kind = (event.get("error") or "").partition(":")[0]
        tally[f"event {event['what']}{f' {kind}' if kind else ''}{' replayed' if event.get('replayed') else ''}"] += 1


def _print(tally: Counter[str], struck: Drivers) -> None:
    tally["starts"] = struck.starts
    print(*(f"{count:9,} {what}" for what, count in sorted(tally.items())), sep="\n", flush=True)


if __name__ == "__main__":
    logging.getLogger("epochal").setLevel(logging.CRITICAL)
    sys.exit(main(sys.argv[1:]))
