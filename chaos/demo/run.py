"""The demo from its first server to its verdict."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochal.chaos.demo import data, kept, readers, votes
from epochal.chaos.demo.failure import Failed, report
from epochal.chaos.demo.jobs import APP, Settings
from epochal.chaos.demo.page import page
from epochal.chaos.demo.plan import FULL, SHORT, Plan
from epochal.chaos.demo.record import Attack, record
from epochal.chaos.demo.show import Screen, Seen
from epochal.chaos.demo.strikes import Campaign, Job, Struck
from epochal.chaos.demo.verdict import ABORTED, COMMITTED, from_log, replayed
from epochal.chaos.job import jvm
from epochal.chaos.servers import jars
from epochal.chaos.servers.kafka import KafkaServer, class_path
from epochal.chaos.servers.postgres import PostgresServer
from epochal.chaos.servers.spark import jars_of_sessions
from epochal.coordinator.console.cli import exit_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

SOURCE = "flights-in"
SOURCE_PARTITIONS = 2
SEND_TIMEOUT_S = 60
FLUSH_EVERY = 50_000
DATABASE = "flights"
JOBS = ("naive", "ours")


class Servers:
    """A Postgres and a Kafka for each job, so that a strike on one job does not disturb the other."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.postgres = {job: PostgresServer(directory=work / f"{job}-postgres") for job in JOBS}
        self.kafka = {job: KafkaServer(directory=work / f"{job}-kafka") for job in JOBS}

    def _all(self) -> list[PostgresServer | KafkaServer]:
        return [*self.kafka.values(), *self.postgres.values()]

    def start(self) -> None:
        """Start all servers in parallel, and create the databases and the source topics."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.start(), self._all()))
        for job in JOBS:
            self.postgres[job].create_database(DATABASE)
            self.kafka[job].create_topic(SOURCE, SOURCE_PARTITIONS)

    def close(self) -> None:
        """Stop all running servers.  The folder stays."""
        with contextlib.ExitStack() as stack:
            for server in self._all():
                stack.callback(server.close)

    def detach(self) -> list[int]:
        """Let all servers outlive this process.  Return the process ids to `kill` to stop them."""
        return [server.detach() for server in self._all()]

    def __str__(self) -> str:
        states = {
            f"{server.kind} of {job}": f"runs as process {server.pid}" if server.running() else "does not run"
            for job in JOBS
            for server in (self.postgres[job], self.kafka[job])
        }
        return ", ".join(f"{name} {state}" for name, state in states.items())

    def settings(self, job: str, rows_per_epoch: int = SHORT.rows_per_epoch) -> Settings:
        """Return the settings of a job.  Each job has its own servers, table, topic, Delta table and checkpoint."""
        return Settings(
            bootstrap=self.kafka[job].bootstrap,
            source_topic=SOURCE,
            dimensions=str(self.work / "dimensions"),
            checkpoint=str(self.work / f"{job}-checkpoint"),
            rows_per_epoch=rows_per_epoch,
            dsn=self.postgres[job].database_dsn(DATABASE),
            table=f"{APP}_{job}",
            topic=f"{APP}-{job}",
            lake=str(self.work / f"{job}-lake"),
        )

    def job(self, name: str, plan: Plan) -> Job:
        """Return one of the two jobs, ready to be run and struck."""
        settings = self.settings(name, plan.rows_per_epoch)
        checkpoint = Path(settings.checkpoint)
        return Job(
            name=name,
            settings=settings,
            judge=partial(from_log, checkpoint) if name == "ours" else replayed,
            counts={
                "postgres": partial(readers.count_postgres, settings.dsn, settings.table),
                "delta": partial(readers.count_delta, settings.lake),
            },
            servers={"postgres": self.postgres[name], "kafka": self.kafka[name]},
        )


def produce(bootstraps: Sequence[str], rows: pa.Table) -> None:
    """Write all flights in order to the source topic of each broker, evenly over its partitions."""
    from confluent_kafka import Producer

    options = {"enable.idempotence": True, "log_level": 0}
    producers = {each: Producer({"bootstrap.servers": each, **options}) for each in bootstraps}
    for number, value in enumerate(data.json_lines(rows), start=1):
        for each, producer in producers.items():
            producer.produce(SOURCE, value, partition=number % SOURCE_PARTITIONS)
            if (number % FLUSH_EVERY == 0 or number == len(rows)) and producer.flush(SEND_TIMEOUT_S):
                raise TimeoutError(f"{each} did not take all flights up to {number} within {SEND_TIMEOUT_S} s")


class Attacks:
    """Both jobs side by side, each under its strikes.  Their drivers start Spark as soon as this is made."""

    def __init__(self, plan: Plan, work: Path, screen: Screen) -> None:
        self._plan = plan
        self._expected: pa.Table | None = None
        self._screen = screen
        self._struck: dict[str, list[Struck]] = {name: [] for name in JOBS}
        self._campaigns = {name: Campaign(name, plan.of(name), work, partial(self._note, name)) for name in JOBS}

    def _note(self, name: str, one: Struck) -> None:
        self._struck[name].append(one)
        self._screen.strike(name, one)

    def run(self, jobs: Mapping[str, Job], expected: pa.Table) -> dict[str, Attack]:
        """Run both jobs to their ends, and count what each has written.  Return the result of each."""
        self._expected = expected
        began = time.monotonic()
        looks = {name: partial(self._look, job) for name, job in jobs.items()}
        with self._screen.watch(looks), ThreadPoolExecutor() as pool:
            running = {name: pool.submit(self._run_one, job, began) for name, job in jobs.items()}
            try:
                return {name: future.result() for name, future in running.items()}
            except BaseException:
                self.end()
                raise

    def end(self) -> None:
        """End the drivers of both jobs."""
        for campaign in self._campaigns.values():
            campaign.end()

    def _look(self, job: Job) -> Seen:
        done = job.checkpoint.epochs()
        rows = job.checkpoint.rows_through(done - 1)
        return Seen(done, self._plan.epochs, rows, len(self._struck[job.name]), self._campaigns[job.name].doing)

    def _run_one(self, job: Job, began: float) -> Attack:
        name = job.name
        self._campaigns[name].run(job)
        epochs, struck = job.checkpoint.epochs(), self._struck[name]
        self._screen.say(f"{name:5}   all {data.TOTAL:,} flights are done in {epochs} epochs, {len(struck)} strikes")
        if epochs < self._plan.epochs:
            raise ValueError(f"{name}: {epochs} epochs are too few, {self._plan.epochs} were meant")
        ended = time.monotonic()
        self._campaigns[name].doing = "is counted by independent readers"
        return Attack(began, ended, epochs, struck, count(job, self._expected), votes.read(job.settings.checkpoint))


def count(job: Job, expected: pa.Table) -> dict[tuple[str, str], readers.Count]:
    """Return what independent readers find in the sinks of a job."""
    settings = job.settings
    read = {
        "Postgres": partial(readers.read_postgres, settings.dsn, settings.table),
        "Kafka": partial(readers.read_kafka, settings.bootstrap, settings.topic),
        "Delta": partial(readers.read_delta, settings.lake),
    }
    return {(job.name, sink): readers.compare(expected, look()) for sink, look in read.items()}


def demo(servers: Servers, screen: Screen, plan: Plan, pages: Path) -> bool:
    """Run the whole demo; return whether it showed what it should show."""
    screen.step("fetching jars of Spark's Kafka source, Delta and the JDBC driver (the first time only)")
    with screen.busy(jars.progress):
        jars_of_sessions()
        class_path()
    screen.step("making an archive of Spark's classes, so that drivers start in half the time (the first time only)")
    with screen.busy():
        jvm.short_lived()
    screen.step("starting Postgres, Kafka and Spark, reading the flights")
    attacks = Attacks(plan, servers.work, screen)
    try:
        return attacked(attacks, servers, screen, plan, pages)
    finally:
        attacks.end()


def attacked(attacks: Attacks, servers: Servers, screen: Screen, plan: Plan, pages: Path) -> bool:
    """Run the demo from the start of its servers to its verdict, while the first drivers start Spark."""
    with screen.busy():
        flights = data.flights()
        data.check(flights)
        data.write_dimensions(servers.work / "dimensions")
        servers.start()
        produce([broker.bootstrap for broker in servers.kafka.values()], flights)
        expected = data.expected(flights)
    screen.say(f"{len(flights):,} flights are in topic {SOURCE!r} of two brokers, one for each job")

    screen.step("two jobs side by side: naive is a plain foreachBatch, ours is one Epochal pipeline")
    screen.say("(naive writes with Spark's JDBC, Kafka and Delta writers, which cannot be held from outside: its")
    screen.say(" barriers stand in its own code, between two writes, and before a write that is struck in the middle)")
    screen.say("(each job is counted at its end: psycopg through the view, a read_committed consumer, delta-rs)")
    jobs = {name: servers.job(name, plan) for name in JOBS}
    servers.kafka["naive"].create_topic(jobs["naive"].settings.topic, SOURCE_PARTITIONS)
    seen = attacks.run(jobs, expected)

    counts = {key: found for each in seen.values() for key, found in each.counts.items()}
    screen.table(counts)
    for attack in seen.values():
        if attack.votes is not None:
            screen.say(votes.told(attack.votes, attack.epochs))
    shown = judge(counts, seen["naive"].struck, seen["ours"].struck, screen)
    tell_pages(record(seen), pages, screen)
    return shown


def tell_pages(run: Mapping[str, Any], pages: Path, screen: Screen) -> None:
    """Write the page of the run, and say where it is."""
    pages.mkdir(parents=True, exist_ok=True)
    (pages / "demo.json").write_text(json.dumps(run, indent=1) + "\n")
    (pages / "demo.html").write_text(page(run), encoding="utf-8")
    screen.plain(f"\nThe run as a page: {pages / 'demo.html'}")


def judge(
    counts: dict[tuple[str, str], readers.Count],
    naive: Sequence[Struck],
    ours: Sequence[Struck],
    screen: Screen,
) -> bool:
    """Print each condition and whether it holds; return whether all hold, so that the demo has shown something."""
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
    """Let the servers go on running, and print how to look at the results and how to stop the servers."""
    lines = (
        "\nRows and different rows per sink with Epochal (replace ours by naive to see those of the plain job):",
        *(f"  {command}" for command in kept.look(servers.settings("ours"))),
        f"\nCheckpoints, what jobs and servers printed: {servers.work}",
        "\nStop the servers and remove everything:",
        f"  {kept.stop(servers.detach(), servers.work)}",
    )
    for line in lines:
        screen.plain(line)


def with_servers(work: Path, screen: Screen, keep: bool, plan: Plan, pages: Path) -> bool:
    """Run the demo on its own servers.  They are always stopped, unless it reaches its end and ``keep`` is set."""
    servers = Servers(work)
    try:
        shown = demo(servers, screen, plan, pages)
        if keep:
            tell_kept(servers, screen)
        return shown
    except Exception as error:
        raise Failed(str(servers)) from error
    finally:
        servers.close()


def run(*, keep: bool, full: bool = False, pages: Path = Path("artifacts")) -> int:
    """Run the demo; return the exit code, as `--help` lists them."""
    screen = Screen()
    exit_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix="epochal-demo-"))
    work.chmod(0o755)  # Postgres may have to run as another user, who needs access to its data
    remove = True
    try:
        shown = with_servers(work, screen, keep, FULL if full else SHORT, pages.absolute())
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
