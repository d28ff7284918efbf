"""The demo from its first server to its verdict."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from epochal.chaos.demo import data, kept, readers
from epochal.chaos.demo.failure import Failed, report
from epochal.chaos.demo.jobs import APP, Settings
from epochal.chaos.demo.show import Screen
from epochal.chaos.demo.strikes import NAIVE, OURS, Campaign, Job, Strike, Struck
from epochal.chaos.demo.verdict import ABORTED, COMMITTED, from_log, replayed
from epochal.chaos.servers.kafka import KafkaServer
from epochal.chaos.servers.postgres import PostgresServer
from epochal.coordinator.console.cli import exit_on_sigterm

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
        """Stop those that run; the folder stays."""
        try:
            self.kafka.close()
        finally:
            self.postgres.close()

    def detach(self) -> list[int]:
        """Let both outlive this process; whom to `kill` to stop them."""
        return [self.postgres.detach(), self.kafka.detach()]

    def __str__(self) -> str:
        both = (self.postgres, self.kafka)
        return ", ".join(
            f"{server.kind} {f'runs as process {server.pid}' if server.running() else 'does not run'}"
            for server in both
        )

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
    screen.step("starting Postgres and Kafka, reading the flights")
    flights = data.flights()
    data.check(flights)
    data.write_dimensions(servers.work / "dimensions")
    servers.start()
    produce(servers.kafka.bootstrap, flights)
    expected = data.expected(flights)
    screen.say(f"{len(flights):,} flights are in topic {SOURCE!r}")

    screen.step("plain foreachBatch: JDBC append, Kafka sink, Delta append")
    screen.say("(Spark's writers cannot be held from outside: its barriers stand in its own code, between two")
    screen.say(" writes, and in a pass-through in front of a write that is struck in the middle)")
    naive = servers.job("naive", NAIVE)
    servers.kafka.create_topic(naive.settings.topic, SOURCE_PARTITIONS)
    naive_struck = attack(naive, servers.work, screen)

    screen.step("Epochal: one pipeline over Postgres, Kafka and Delta")
    ours = servers.job("ours", OURS)
    ours_struck = attack(ours, servers.work, screen)

    screen.step("counting: psycopg through the view, a read_committed consumer, delta-rs")
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


def tell_kept(servers: Servers, screen: Screen) -> None:
    """Let the servers live on, and say how to look at the results and how to stop them."""
    lines = (
        "\nRows and different rows per sink with Epochal (write naive for ours to see the plain job's):",
        *(f"  {command}" for command in kept.look(servers.settings("ours"))),
        f"\nCheckpoints, what jobs and servers printed: {servers.work}",
        "\nStop the servers and remove everything:",
        f"  {kept.stop(servers.detach(), servers.work)}",
    )
    for line in lines:
        screen.plain(line)


def with_servers(work: Path, screen: Screen, keep: bool) -> bool:
    """The demo on servers of its own, which are ended however it ends; kept only at its own end, if asked."""
    servers = Servers(work)
    try:
        shown = demo(servers, screen)
        if keep:
            tell_kept(servers, screen)
        return shown
    except Exception as error:
        raise Failed(str(servers)) from error
    finally:
        servers.close()


def run(*, keep: bool) -> int:
    """The exit code, as `--help` lists them."""
    screen = Screen()
    exit_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix="epochal-demo-"))
    work.chmod(0o755)  # where Postgres must run as another user, that user has to get at its data
    remove = True
    try:
        shown = with_servers(work, screen, keep)
        remove = not keep
    except KeyboardInterrupt:
        screen.say("interrupted; everything is stopped and removed", style="bold")
        return 130
    except Exception as error:
        remove = False
        screen.say(report(error, screen.doing, work), style="bold red")
        return 2
    finally:
        if remove:
            shutil.rmtree(work, ignore_errors=True)
    if not keep:
        screen.plain("\nEverything is removed now; `make demo KEEP=1` leaves it to be looked at.")
    return 0 if shown else 1
