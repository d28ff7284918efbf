"""`python -m epochal.chaos.demo`: the same job twice under the same kind of fire, plain and with Epochal.

KEEP=1 in the environment leaves servers and data behind.  Status 0: ours is exact everywhere, the plain one
is not, and recovery both finished decided epochs and dropped undecided ones.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from epochal.chaos.demo import data, readers
from epochal.chaos.demo.jobs import APP, Settings
from epochal.chaos.demo.show import Screen
from epochal.chaos.demo.strikes import NAIVE, OURS, Campaign, Job, Strike, Struck
from epochal.chaos.demo.verdict import ABORTED, COMMITTED, from_log, replayed
from epochal.chaos.nemesis import NotCounted
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.kafka import KafkaServer
from epochal.chaos.servers.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

SOURCE = "flights-in"
SOURCE_PARTITIONS = 2
ROWS_PER_EPOCH = 11_200
EPOCHS = 30
SEND_TIMEOUT_S = 60
FLUSH_EVERY = 50_000
DATABASE = "flights"


class Servers:
    """Postgres and Kafka in folders below one working folder."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.postgres = PostgresServer(directory=work / "postgres")
        self.kafka = KafkaServer(directory=work / "kafka")

    def start(self) -> None:
        """Both at once."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.start(), [self.postgres, self.kafka]))
        self.postgres.create_database(DATABASE)
        self.kafka.create_topic(SOURCE, SOURCE_PARTITIONS)

    def close(self) -> None:
        """Stop both and remove everything."""
        self.kafka.close()
        self.postgres.close()
        shutil.rmtree(self.work, ignore_errors=True)

    def settings(self, job: str) -> Settings:
        """Every job has its own table, topic, Delta table and checkpoint."""
        return Settings(
            bootstrap=self.kafka.bootstrap,
            source_topic=SOURCE,
            dimensions=str(self.work / "dimensions"),
            checkpoint=str(self.work / f"{job}-checkpoint"),
            rows_per_epoch=ROWS_PER_EPOCH,
            dsn=self.postgres.database_dsn(DATABASE),
            table=f"{APP}_{job}",
            topic=f"{APP}-{job}",
            lake=str(self.work / f"{job}-lake"),
        )

    def job(self, name: str, plan: Sequence[Strike]) -> Job:
        """One of the two jobs, ready to be run and struck."""
        settings = self.settings(name)
        checkpoint = Path(settings.checkpoint)
        return Job(
            name=name,
            settings=settings,
            plan=plan,
            judge=partial(from_log, checkpoint) if name == "ours" else replayed,
            counts={
                "postgres": partial(readers.count_postgres, settings.dsn, settings.table),
                "delta": partial(readers.count_delta, settings.lake),
            },
            servers={"postgres": self.postgres, "kafka": self.kafka},
        )


def produce(bootstrap: str, rows: pa.Table) -> None:
    """All flights into the source topic, evenly over its partitions, in order."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for number, value in enumerate(data.json_lines(rows), start=1):
        producer.produce(SOURCE, value, partition=number % SOURCE_PARTITIONS)
        if (number % FLUSH_EVERY == 0 or number == len(rows)) and producer.flush(SEND_TIMEOUT_S):
            raise TimeoutError(f"the broker did not take all flights up to {number} within {SEND_TIMEOUT_S} s")


def attack(job: Job, work: Path, screen: Screen) -> list[Struck]:
    """Run a job to its end under all its strikes."""
    with screen.watch(job.name, job.checkpoint.epochs, total=data.TOTAL // ROWS_PER_EPOCH + 1):
        struck = Campaign(job, work, screen.strike).run()
    epochs = job.checkpoint.epochs()
    screen.say(f"{job.name}: all {data.TOTAL:,} flights done in {epochs} epochs, {len(struck)} strikes")
    if epochs < EPOCHS:
        raise ValueError(f"{epochs} epochs are too few, {EPOCHS} were meant")
    return struck


def count(job: Job, expected: pa.Table) -> dict[tuple[str, str], readers.Count]:
    """What independent readers find in the sinks of a job."""
    settings = job.settings
    read = {
        "Postgres": partial(readers.read_postgres, settings.dsn, settings.table),
        "Kafka": partial(readers.read_kafka, settings.bootstrap, settings.topic),
        "Delta": partial(readers.read_delta, settings.lake),
    }
    return {(job.name, sink): readers.compare(expected, look()) for sink, look in read.items()}


def demo(servers: Servers, screen: Screen) -> bool:
    """The whole of it; whether it showed what it is there to show."""
    screen.say("starting Postgres and Kafka, reading the flights")
    flights = data.flights()
    data.check(flights)
    data.write_dimensions(servers.work / "dimensions")
    servers.start()
    produce(servers.kafka.bootstrap, flights)
    expected = data.expected(flights)
    screen.say(f"{len(flights):,} flights are in topic {SOURCE!r}")

    screen.say("plain foreachBatch: JDBC append, Kafka sink, Delta append", style="bold")
    screen.say("(Spark's writers cannot be held from outside: its barriers stand in its own code, between two")
    screen.say(" writes, and in a pass-through in front of a write that is struck in the middle)")
    naive = servers.job("naive", NAIVE)
    servers.kafka.create_topic(naive.settings.topic, SOURCE_PARTITIONS)
    naive_struck = attack(naive, servers.work, screen)

    screen.say("Epochal: one pipeline over Postgres, Kafka and Delta", style="bold")
    ours = servers.job("ours", OURS)
    ours_struck = attack(ours, servers.work, screen)

    screen.say("counting: psycopg through the view, a read_committed consumer, delta-rs")
    counts = {**count(naive, expected), **count(ours, expected)}
    screen.table(counts)
    return judge(counts, naive_struck, ours_struck, screen)


def judge(
    counts: dict[tuple[str, str], readers.Count],
    naive: Sequence[Struck],
    ours: Sequence[Struck],
    screen: Screen,
) -> bool:
    """Every condition under which the demo has shown something, each failing one printed."""
    outcomes = {struck.outcome for struck in ours}
    conditions = {
        "ours is exact in every sink": all(c.exact for (job, _), c in counts.items() if job == "ours"),
        "the plain job is not": not all(c.exact for (job, _), c in counts.items() if job == "naive"),
        "the plain job was struck no more often than ours": len(naive) <= len(ours),
        "recovery finished decided epochs and dropped undecided ones": {COMMITTED, ABORTED} <= outcomes,
    }
    for condition, holds in conditions.items():
        screen.say(f"{'yes' if holds else 'NO '}  {condition}", style="green" if holds else "bold red")
    return all(conditions.values())


def keep(servers: Servers, screen: Screen) -> None:
    """Let the servers live on, and say how to reach and how to stop them."""
    pids = [servers.postgres.detach(), servers.kafka.detach()]
    how_to_look(servers, screen)
    stop = f"kill {' '.join(map(str, pids))}; sleep 5; rm -r {servers.work}"
    screen.console.print(f"\nStop the servers and remove everything:\n  {stop}", soft_wrap=True)


def how_to_look(servers: Servers, screen: Screen) -> None:
    """The results, by one's own eyes."""
    settings = servers.settings("ours")
    distinct = "count(*), count(distinct (time_hour, carrier, flight))"
    lines = (
        "Look at the results (naive: the same names ending in naive):",
        f"  psql {settings.dsn} -c 'select {distinct} from {settings.table}'",
        f"  psql {settings.dsn} -c 'select * from epochal.epochs order by position desc limit 5'",
        f"  kcat -b {settings.bootstrap} -t {settings.topic} -C -e -q -X isolation.level=read_committed | wc -l",
        f"  {sys.executable} -c \"from deltalake import DeltaTable as T; print(T('{settings.lake}').to_pandas())\"",
        f"  ls {servers.work}    # checkpoints, what the drivers printed, server logs",
    )
    screen.console.print()
    for line in lines:
        screen.console.print(line, soft_wrap=True)


def main() -> int:
    """Exit status: 0 shown, 1 not shown or failed, 130 interrupted."""
    kept = os.environ.get("KEEP", "") not in ("", "0")
    screen = Screen()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(prefix="epochal-demo-"))
    work.chmod(0o755)  # where Postgres must run as another user, that user has to get at its data
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, work, ignore_errors=True)
        servers = Servers(work)
        cleanup.callback(servers.close)
        try:
            shown = demo(servers, screen)
        except KeyboardInterrupt:
            screen.say("interrupted; stopping everything", style="bold")
            return 130
        except (NotCounted, ServerUnavailable) as error:
            screen.say(f"failed: {error}", style="bold red")
            return 1
        if kept:
            keep(servers, screen)
            cleanup.pop_all()
        else:
            screen.console.print("\nEverything is removed now; `make demo KEEP=1` leaves it to be looked at.")
        return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
