"""Start, stop, crash, restart of the embedded servers, seen from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from epochal.chaos.servers import guard, kafka
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.kafka import KafkaServer
from epochal.chaos.servers.postgres import PostgresServer
from epochal.chaos.servers.process import Command, Server, wait_until
from epochal.chaos.servers.toxiproxy import ToxiproxyServer
from epochal.coordinator.environment.versions import KAFKA_BROKER
from tests.real.sinks.kafka.support import await_markers, read_topic

GONE_S = 60


class Sleeper(Server):
    """A server that answers at once and does nothing."""

    kind = "sleeper"
    argv: tuple[str, ...] = ("sleep", "600")

    def _prepare(self) -> None:
        pass

    def _command(self) -> Command:
        return Command(self.argv)

    def _ready(self) -> bool:
        return True


class Failing(Sleeper):
    """Ends at once, and says why."""

    argv = ("sh", "-c", "echo disk on fire; exit 3")

    def _ready(self) -> bool:
        return False


def pid_of(server: Server) -> int:
    assert server.pid is not None
    return server.pid


def listening(pid: int) -> set[str]:
    """The addresses, in /proc's notation, on which a process and its children listen."""
    sockets = set()
    for process in (pid, *guard.descendants(pid)):
        with contextlib.suppress(FileNotFoundError):  # a child that ended meanwhile
            sockets |= {os.readlink(descriptor) for descriptor in Path(f"/proc/{process}/fd").iterdir()}
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                addresses.add(fields[1].rpartition(":")[0])
    return addresses


def assert_loopback_only(server: Server) -> None:
    addresses = listening(pid_of(server))
    assert addresses
    assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.mark.parametrize("version", ["16", "18"])
def test_postgres_keeps_committed_rows_through_crash_and_restart(version: str) -> None:
    with PostgresServer(version=version) as server:
        assert_loopback_only(server)
        dsn = server.create_database("kept")
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE t AS SELECT 7 AS n")
        with psycopg.connect(dsn) as open_session:
            children = guard.descendants(pid_of(server))
            assert len(children) > 3
            server.crash()
            assert not any(map(guard.alive, children))
            assert not server.running()
            with pytest.raises(psycopg.OperationalError):
                open_session.execute("SELECT 1")
        server.start()
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT n FROM t").fetchone() == (7,)
            assert connection.execute("SHOW server_version").fetchone()[0].startswith(version)  # type: ignore[index]
        children = guard.descendants(pid_of(server))
        server.restart()
        assert not any(map(guard.alive, children))
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT n FROM t").fetchone() == (7,)


@pytest.mark.wide
def test_kafka_keeps_committed_messages_through_crash_and_restart() -> None:
    with KafkaServer(settings={"message.max.bytes": "2000000"}) as server:
        assert_loopback_only(server)
        server.create_topic("t")
        producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "a", "log_level": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"kept")
        producer.commit_transaction(30)
        pid = pid_of(server)
        server.crash()
        assert not guard.alive(pid)
        server.start()
        await_markers(server.bootstrap, "t")
        assert [r.value for r in read_topic(server.bootstrap, "t")] == [b"kept"]
        server.restart()
        assert [r.value for r in read_topic(server.bootstrap, "t")] == [b"kept"]
        assert "message.max.bytes=2000000" in (server.directory / "server.properties").read_text()


@pytest.mark.wide
def test_a_broker_starts_with_the_archive_of_its_classes_unless_it_lives_long(tmp_path: Path) -> None:
    archive = kafka.make_archive()
    assert KafkaServer(long_lived=True)._options == list(kafka.JVM_OPTIONS)
    with KafkaServer() as server:
        options = server._options
        if archive is None:
            return  # a Java that makes none: told as a warning, once
        assert f"-XX:SharedArchiveFile={archive}" in options
        server.stop()
        options.append(f"-Xlog:class+load:file={tmp_path / 'loaded'}")
        server.start()
        loaded = (tmp_path / "loaded").read_text().splitlines()
    assert any(" kafka.server.KafkaRaftServer " in line and "(top)" in line for line in loaded)


def test_a_broker_of_which_no_archive_can_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "JVM_OPTIONS", ("-Xss1k",))
    why = kafka._make(KAFKA_BROKER, tmp_path / "never.jsa")
    assert why is not None
    assert "stack size specified is too small" in why
    assert list(tmp_path.iterdir()) == []


def test_toxiproxy_is_on_loopback_and_gone_after_close() -> None:
    with ToxiproxyServer() as server:
        assert_loopback_only(server)
        pid = pid_of(server)
    assert not guard.alive(pid)


def test_close_ends_the_process_and_removes_its_temporary_directory() -> None:
    server = Sleeper().start()
    pid = pid_of(server)
    assert guard.alive(pid)
    server.close()
    assert not guard.alive(pid)
    assert not server.directory.exists()


def test_close_keeps_a_directory_that_the_caller_named(tmp_path: Path) -> None:
    with Sleeper(directory=tmp_path / "here"):
        pass
    assert (tmp_path / "here").is_dir()


def test_a_server_that_does_not_start_is_an_error_with_the_end_of_its_log() -> None:
    with pytest.raises(ServerUnavailable, match=r"(?s)failing|sleeper.*disk on fire.*Help:"):
        Failing().start()


def test_starting_twice_and_crashing_what_is_down_are_refused() -> None:
    with Sleeper() as server:
        with pytest.raises(ServerUnavailable, match="running already"):
            server.start()
        server.stop()
        server.stop()
        with pytest.raises(ServerUnavailable, match="is not running"):
            server.crash()


PARENT = """
import sys, time
from epochal.chaos.servers.postgres import PostgresServer
server = PostgresServer().start()
if sys.argv[1] == "detach":
    pid, directory = server.pid, server.directory
    print(pid, directory, server.detach(), flush=True)
else:
    print(server.pid, server.directory, 0, flush=True)
    time.sleep(600)
"""


def start_in_child(mode: str) -> tuple[subprocess.Popen[str], int, Path, int]:
    """A Python process that starts a Postgres; the server's id, directory and guard."""
    child = subprocess.Popen([sys.executable, "-c", PARENT, mode], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pid, directory, guard_pid = child.stdout.readline().split()
    child.stdout.close()
    return child, int(pid), Path(directory), int(guard_pid)


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_does_not_outlive_the_process_that_started_it(death: signal.Signals) -> None:
    child, pid, directory, _ = start_in_child("wait")
    family = [pid, *guard.descendants(pid)]
    child.send_signal(death)
    assert child.wait(GONE_S) == -death
    assert wait_until(lambda: None if any(map(guard.alive, family)) else True, GONE_S)
    assert wait_until(lambda: None if directory.exists() else True, GONE_S)


def test_a_detached_server_outlives_it_until_its_guard_is_told_to_stop() -> None:
    child, pid, _, guard_pid = start_in_child("detach")
    assert child.wait(GONE_S) == 0
    assert wait_until(lambda: None if guard.alive(pid) else True, 2) is None
    family = [pid, *guard.descendants(pid)]
    os.kill(guard_pid, signal.SIGTERM)
    assert wait_until(lambda: None if any(map(guard.alive, family)) else True, GONE_S)
