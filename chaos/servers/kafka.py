"""A real one-node Kafka broker (KRaft) on loopback, from its Maven jars."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from epochal.chaos.servers import classes, jars, java
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.process import LOOPBACK, START_TIMEOUT_S, Command, Server, free_port, wait_until
from epochal.coordinator.environment.versions import KAFKA_BROKER, kafka_broker_jars

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A machine that pauses for some seconds must not count as a dead broker. A broker that the controller considers
    # dead loses leadership for a moment, and a marker that is due then is skipped (see `await_fencing`).
    "broker.session.timeout.ms": "60000",
    # A transaction whose time is over is ended within a second; by default within ten.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}
# Before Kafka 4, a controller fences no broker that never contacted it. It accepts a crashed broker again only after
# the old session has expired, and then the broker is fenced. A restart waits for that long.
BEFORE_4: Mapping[str, str] = {"broker.session.timeout.ms": "6000"}
LIBRARIES = "EPOCHAL_KAFKA_LIBRARIES"
"""Environment variable with the folder from which a broker takes its logger and its Scala library."""
JVM_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-Xshare:auto")
QUICK = "-XX:TieredStopAtLevel=1"
# Settings of a controller without a broker. It fences a dead broker at once instead of after 9 s.
CONTROLLER_ONLY: Mapping[str, str | None] = {
    "process.roles": "controller",
    "inter.broker.listener.name": None,
    "advertised.listeners": None,
    "broker.session.timeout.ms": "100",
    "broker.heartbeat.interval.ms": "20",
}
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
CONTROLLER_ACTIVE = "Performing controller activation"
FENCED = "Fencing broker 1 "
FENCING = re.compile(FENCED + r"[\s\S]*?Read-write operation (maybeFenceStaleBroker\(\d+\)) will be completed")
FENCE_TIMEOUT_S = 120
FORMAT_TIMEOUT_S = 180
LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = warn
logger.fencing.name = org.apache.kafka.controller.ReplicationControlManager
logger.fencing.level = info
logger.commits.name = org.apache.kafka.controller.QuorumController
logger.commits.level = debug
rootLogger.appenderRef.out.ref = out
"""


TOPIC_S = 120.0
"""How long a broker may take to show what its controller has done to a topic."""


def _shows(admin: Any, name: str) -> bool:
    """Return whether the broker shows the topic, with a leader for each partition."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    try:
        topic = admin.describe_topics(TopicCollection([name]), request_timeout=120)[name].result(timeout=130)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise
    return all(partition.leader is not None for partition in topic.partitions)


class Topics:
    """What every Kafka at `address` can do."""

    address: str
    replicas = 1  # of a new topic

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients, the same as `address`."""
        return self.address

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until the broker shows it: the controller answers some milliseconds earlier."""
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        with self._admin() as admin:
            made = admin.create_topics(
                [NewTopic(name, partitions, self.replicas, config=dict(config or {}))], request_timeout=120
            )
            made[name].result(timeout=130)
            self._await_topic(admin, name, shown=True)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until the broker shows it no more.  The disk space is freed within a minute."""
        with self._admin() as admin:
            admin.delete_topics([name], request_timeout=120)[name].result(timeout=130)
            self._await_topic(admin, name, shown=False)

    @contextlib.contextmanager
    def _admin(self, **options: Any) -> Iterator[Any]:
        """Yield a new client; afterwards it is destroyed.

        The garbage collector may run in a thread of the client, and must not destroy it there.
        """
        from confluent_kafka.admin import AdminClient

        with AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **options}) as admin:
            yield admin

    def _await_topic(self, admin: Any, name: str, *, shown: bool) -> None:
        if not wait_until(lambda: _shows(admin, name) is shown or None, TOPIC_S):
            raise ServerUnavailable(
                f"Kafka at {self.bootstrap} took the request, and {'does not show' if shown else 'still shows'} topic"
                f" {name!r} after {TOPIC_S:g} s",
                "see the broker's log",
            )

    def answers(self) -> bool:
        """Return whether a broker answers. Blocks for some seconds at most."""
        from confluent_kafka import KafkaException

        with contextlib.suppress(KafkaException), self._admin(**{"reconnect.backoff.max.ms": 200}) as admin:
            return bool(admin.list_topics(timeout=2).brokers)
        return False


class KafkaServer(Server, Topics):
    """One broker. Clients connect to `bootstrap`.

    `settings` override SETTINGS, for example `transaction.max.timeout.ms`. A second listener at `proxied_upstream`
    tells its clients to connect to 127.0.0.1:`proxied_port`. It is for a proxy that listens there and forwards to it.
    `long_lived` uses Java's second compiler, which makes the broker faster later; without it, the start takes less
    than half the time. `features` are set when the storage is formatted, for example `transaction.version`; others
    have the broker's newest level. Brokers before 3.9 have none.
    """

    kind = "kafka"

    def __init__(
        self,
        *,
        directory: Path | None = None,
        version: str = KAFKA_BROKER,
        settings: Mapping[str, str] | None = None,
        features: Mapping[str, int] | None = None,
        long_lived: bool = False,
    ) -> None:
        self._features = [f"--feature={name}={level}" for name, level in (features or {}).items()]
        self._class_path = _joined(version)
        self._java = java.java_home() / "bin" / "java"
        self._options = list(JVM_OPTIONS)
        if not long_lived:
            archive = classes.known(classes.name("kafka", self._class_path))
            self._options += [QUICK, *classes.options(archive)]
        super().__init__(directory=directory)
        self.proxied_port = free_port()
        self._proxied_listen = free_port()
        self._controller_port = free_port()
        self._cluster_id = new_cluster_id()
        self._controller_fences = int(version.split(".")[0]) >= 4
        self._overrides = {**({} if self._controller_fences else BEFORE_4), **(settings or {})}
        self._properties = self.directory / "server.properties"
        self._controller_properties = self.directory / "controller.properties"
        self._log4j = self.directory / "log4j2.properties"

    @property
    def proxied_upstream(self) -> str:
        """The address to which the proxy must forward."""
        return f"{LOOPBACK}:{self._proxied_listen}"

    def _prepare(self) -> None:
        self._log4j.write_text(LOG4J)
        settings = self._settings()
        controller = f"CONTROLLER://{LOOPBACK}:{self._controller_port}"
        _write(self._properties, settings)
        _write(self._controller_properties, controller_only(settings, controller))
        if (self.directory / "data" / "meta.properties").exists():
            return
        argv = self._run_java(
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={self._cluster_id}",
            "-c",
            str(self._properties),
            *self._features,
        )
        done = subprocess.run(argv, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise ServerUnavailable(
                f"Kafka's storage could not be formatted, status {done.returncode}",
                "the output above says why",
                done.stdout + done.stderr,
            )

    def _recover(self) -> None:
        """Let a controller without a broker fence the crashed broker; `await_fencing` says why."""
        data = self.directory / "data"
        if (
            not self._controller_fences
            or not (data / "__cluster_metadata-0").exists()
            or (data / CLEAN_SHUTDOWN).exists()
        ):
            return
        seen = self.log_file.stat().st_size
        self._spawn(Command(self._run_java("kafka.Kafka", str(self._controller_properties))))
        try:
            await_fencing(lambda: self.log_file.read_bytes()[seen:].decode(errors="replace"))
        finally:
            self.stop()

    def _settings(self) -> dict[str, str]:
        plain, controller = f"PLAINTEXT://{self.address}", f"CONTROLLER://{LOOPBACK}:{self._controller_port}"
        return {
            **SETTINGS,
            "controller.quorum.voters": f"1@{LOOPBACK}:{self._controller_port}",
            "listeners": f"{plain},PROXIED://{self.proxied_upstream},{controller}",
            "advertised.listeners": f"{plain},PROXIED://{LOOPBACK}:{self.proxied_port}",
            "log.dirs": str(self.directory / "data"),
            **self._overrides,
        }

    def _run_java(self, main: str, *arguments: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self._log4j}"
        return [str(self._java), *self._options, log4j, "-cp", self._class_path, main, *arguments]

    def _command(self) -> Command:
        return Command(self._run_java("kafka.Kafka", str(self._properties)))

    def _ready(self) -> bool:
        return self.answers()


def new_cluster_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def controller_only(settings: Mapping[str, str], listener: str) -> dict[str, str]:
    """Return these settings for a controller without a broker."""
    changed = {**settings, **CONTROLLER_ONLY, "listeners": listener}
    return {name: value for name, value in changed.items() if value is not None}


def await_fencing(log: Callable[[], str]) -> None:
    """Wait until the log of a controller without a broker shows that it committed the fencing of the crashed broker.

    This must happen before a crashed broker starts again. Here controller and broker are one process and die together,
    so in the metadata the dead broker is still the leader of everything. If a broker starts from such metadata, it acts
    as transaction coordinator at once, and cannot reach itself yet. When it is fenced a moment later, it assumes that
    the partitions were deleted, and records a transaction in PREPARE_COMMIT as complete without its markers. Then the
    last stable offset never moves again.
    """
    if wait_until(lambda: True if CONTROLLER_ACTIVE in log() else None, START_TIMEOUT_S) is None:
        raise ServerUnavailable(
            f"Kafka's controller without a broker did not become active in {START_TIMEOUT_S:.0f} s",
            "the log above says why",
            log()[-3000:],
        )
    if wait_until(lambda: True if FENCED in log() else None, FENCE_TIMEOUT_S) is None:
        return  # the broker was fenced already when it crashed
    if wait_until(lambda: True if _fencing_committed(log()) else None, FENCE_TIMEOUT_S) is None:
        raise ServerUnavailable(
            f"Kafka's controller did not commit the fencing of the crashed broker within {FENCE_TIMEOUT_S} s",
            "the log above says why",
            log()[-3000:],
        )


def _fencing_committed(log: str) -> bool:
    """Whether the fencing is committed.

    The controller writes a log line about the fencing first. If it stops before the record is committed, the fencing is
    lost.
    """
    asked = FENCING.search(log)
    return asked is not None and f"Processed {asked[1]} in " in log


def _write(file: Path, settings: Mapping[str, str]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def make_archive(version: str = KAFKA_BROKER) -> Path | None:
    """Make the archive with which brokers of this version start from then on; see `classes.made`."""
    name = classes.name("kafka", _joined(version))
    return classes.made(name, f"the classes of Kafka {version}", lambda archive: _make(version, archive))


def _joined(version: str) -> str:
    return ":".join(map(str, class_path(version)))


def _make(version: str, archive: Path) -> str | None:
    """Make the archive with a broker that starts, serves a transaction and ends; return why it failed, else None."""
    from confluent_kafka import Producer

    partial = archive.with_suffix(".partial")
    server = KafkaServer(version=version)
    server._options += [f"-XX:ArchiveClassesAtExit={partial}"]
    try:
        with server:
            server.create_topic("one")
            producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "one", "log_level": 0})
            producer.init_transactions(START_TIMEOUT_S)
            producer.begin_transaction()
            producer.produce("one", b"1")
            producer.commit_transaction(START_TIMEOUT_S)
            server.stop()
            told = server.log_tail()
    except ServerUnavailable as error:
        return str(error)
    if not partial.exists():
        return f"a broker wrote none when it ended\n{told}"
    partial.rename(archive)
    return None


def class_path(version: str = KAFKA_BROKER) -> list[Path]:
    """Return the broker's jars, and from PySpark a working logger and the Scala library, which Ivy leaves out.

    ``LIBRARIES`` names the jars of another PySpark, where this one has another Scala than the broker.
    """
    patterns = ("slf4j-api-2*.jar", "log4j-slf4j2-impl-*.jar", "log4j-*.jar", "scala-library-*.jar")
    libraries = Path(os.environ.get(LIBRARIES) or jars.of_pyspark())
    borrowed = [jar for pattern in patterns for jar in sorted(libraries.glob(pattern))]
    return [*borrowed, *jars.resolve(kafka_broker_jars(version))]
