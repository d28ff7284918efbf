"""The log on HDFS keeps the contract, on a real name node and data node, and everything that is special about them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext

from epochal.chaos.contract.logs import ProcessContract, commit, fence, filled
from epochal.chaos.servers.hdfs import HadoopClient, HdfsServer
from epochal.chaos.servers.process import wait_until
from epochal.checkpoints.files import FilesLog
from epochal.checkpoints.hadoop import ATOMIC, OBJECT_STORES, Hadoop, HadoopLog, check_scheme, of_session
from epochal.checkpoints.log import Entry, EpochLog, encode
from epochal.checkpoints.postgres import PostgresLog
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import LogCorrupt, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import Point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATE = commit(77, token=99)
NO_PATIENCE = {"ipc.client.connect.max.retries": "1", "ipc.client.connect.retry.interval": "100"}


@pytest.fixture(scope="module")
def hadoop() -> Iterator[Hadoop]:
    with HadoopClient(NO_PATIENCE) as client:
        yield client


@pytest.fixture
def folder(hdfs_server: HdfsServer) -> str:
    """Where the log of a checkpoint lies; not there yet."""
    return f"{hdfs_server.uri}/{uuid.uuid4().hex}/epochal/log"


@pytest.fixture
def log(folder: str, hadoop: Hadoop) -> HadoopLog:
    return HadoopLog(folder, lambda: hadoop)


def opening(folder: str) -> str:
    """Python that opens it as ``log``, in a JVM of its own."""
    return (
        "from epochal.chaos.servers.hdfs import HadoopClient; from epochal.checkpoints.hadoop import HadoopLog\n"
        f"client = HadoopClient(); hadoop = client.__enter__(); log = HadoopLog({folder!r}, lambda: hadoop)"
    )


@pytest.mark.wide
class TestHadoopLog(ProcessContract):
    @pytest.fixture
    def open_log(self, folder: str, hadoop: Hadoop) -> Callable[[], EpochLog]:
        return lambda: HadoopLog(folder, lambda: hadoop)

    @pytest.fixture
    def source(self, folder: str) -> str:
        return opening(folder)


class Folder:
    """The folder of a log as anybody else sees it."""

    def __init__(self, folder: str, hadoop: Hadoop) -> None:
        self.jvm, conf = hadoop
        self.path = self.jvm.org.apache.hadoop.fs.Path(folder)
        self.system: Any = self.path.getFileSystem(conf)

    def names(self) -> list[str]:
        return [status.getPath().getName() for status in self.system.listStatus(self.path)]

    def write(self, name: str, data: bytes) -> None:
        stream = self.system.create(self.file(name), True)
        stream.write(data)
        stream.close()

    def file(self, name: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(self.path, name)

    def edits(self) -> int:
        """How much the name node's edit log holds."""
        return int(self.system.getClient().getNamenode().getCurrentEditLogTxid())

    @contextmanager
    def safe_mode(self) -> Iterator[None]:
        action = self.jvm.org.apache.hadoop.fs.SafeModeAction
        self.system.setSafeMode(action.ENTER)
        try:
            yield
        finally:
            self.system.setSafeMode(action.LEAVE)


@pytest.fixture
def seen(folder: str, hadoop: Hadoop) -> Folder:
    return Folder(folder, hadoop)


# --- what is in the folder ------------------------------------------------------------------------


def test_what_lies_there_after_all_is_done(log: HadoopLog, seen: Folder) -> None:
    entries = filled(log, 4)
    log.compact(3, entries[:1])
    assert seen.names() == [f"{3:020}.floor", f"{3:020}.record"]


def test_a_loser_leaves_no_draft(log: HadoopLog, folder: str, hadoop: Hadoop, seen: Folder) -> None:
    def faster(at: Point, _sink: str, epoch: int) -> None:
        if at is Point.LOG_BEFORE_APPEND and epoch == LATE.epoch:
            assert log.append(0, fence())

    with failpoints.handler(faster):
        assert not HadoopLog(folder, lambda: hadoop).append(0, LATE)
    assert seen.names() == [f"{0:020}.record"]


class Interrupted:
    """A ``FileContext`` that lets something else happen between a file's creation and its first byte, once."""

    def __init__(self, context: Any, between: Callable[[], object]) -> None:
        self._context = context
        self._between: Callable[[], object] | None = between

    def create(self, *how: Any) -> Any:
        stream = self._context.create(*how)
        between, self._between = self._between, None
        if between is not None:
            between()
        return stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def interrupt(log: HadoopLog, between: Callable[[], object]) -> None:
    """The next draft of ``log`` meets ``between`` half made."""
    log.read()  # opens it
    opened = log._files._opened
    assert opened is not None
    jvm, context, folder = opened
    log._files._opened = (jvm, Interrupted(context, between), folder)


@pytest.mark.parametrize("how", ["compaction", "append"])
def test_a_draft_that_a_higher_compaction_deletes_while_it_is_written_has_lost(
    log: HadoopLog, folder: str, hadoop: Hadoop, seen: Folder, how: str
) -> None:
    entries = filled(log, 6)
    slow = HadoopLog(folder, lambda: hadoop)

    def overtake() -> None:
        log.append(6, LATE)
        log.compact(7, entries[:1])

    interrupt(slow, overtake)
    if how == "compaction":
        slow.compact(5, entries[:1])
    else:
        assert not slow.append(6, fence())
    assert seen.names() == [f"{7:020}.floor"]


def test_a_draft_that_somebody_else_deletes_is_named(log: HadoopLog, folder: str, hadoop: Hadoop, seen: Folder) -> None:
    filled(log, 2)
    slow = HadoopLog(folder, lambda: hadoop)

    interrupt(slow, lambda: delete_drafts(seen))
    with pytest.raises(SinkUnavailable, match=r"append at position 2 of the epoch log failed: FileNotFoundException"):
        slow.append(2, LATE)
    assert [entry.position for entry in log.read()] == [0, 1]


@pytest.mark.remedy(
    "the … of the epoch log has no answer: …",
    "make the file system answer (data nodes up? quota?); the same request may be repeated",
)
def test_a_whole_draft_that_somebody_else_deletes_is_not_taken_for_a_record(log: HadoopLog, seen: Folder) -> None:
    """The log cannot tell that from a rename whose answer was lost."""
    filled(log, 2)

    def delete(point: Point, *_: object) -> None:
        if point is Point.LOG_BEFORE_APPEND:
            delete_drafts(seen)

    with failpoints.handler(delete), pytest.raises(OutcomeUnknown, match="has no answer: FileNotFoundException"):
        log.append(2, LATE)
    assert [entry.position for entry in log.read()] == [0, 1]
    assert log.append(2, LATE)


def delete_drafts(seen: Folder) -> None:
    for name in seen.names():
        if name.endswith(".tmp"):
            seen.system.delete(seen.file(name), False)


def test_an_error_of_pythons_side_of_the_gateway_is_one_of_the_file_system(
    log: HadoopLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        raise Py4JNetworkError("the JVM is gone")

    log.read()
    monkeypatch.setattr(log._files, "_opened", None)
    monkeypatch.setattr(log._files, "_hadoop", broken)
    with pytest.raises(SinkUnavailable, match="read of the epoch log failed: Py4JNetworkError: the JVM is gone"):
        log.read()


def test_a_foreign_file_a_gap_and_a_torn_record_are_named(log: HadoopLog, seen: Folder) -> None:
    filled(log, 4)
    seen.write("notes.txt", b"")
    with pytest.raises(LogCorrupt, match=r"foreign file: 'notes.txt'"):
        log.read()
    seen.system.delete(seen.file("notes.txt"), False)
    seen.write(f"{2:020}.record", encode(commit(1))[:100])
    with pytest.raises(LogCorrupt, match=rf"{2:020}.record is not a whole record"):
        log.read()
    seen.system.delete(seen.file(f"{2:020}.record"), False)
    with pytest.raises(LogCorrupt, match="has no record at position 2, but one at 3"):
        log.read()


def test_a_folder_that_was_written_to_and_is_gone_is_no_empty_log(log: HadoopLog, seen: Folder) -> None:
    filled(log, 2)
    seen.system.delete(seen.path.getParent(), True)
    for verb in (log.read, lambda: log.append(2, commit(1))):
        with pytest.raises(LogCorrupt, match=r"the folder of the epoch log hadoop:hdfs:.* is gone"):
            verb()


@pytest.mark.usefixtures("spark")
def test_an_error_of_the_kits_client_is_not_looked_up_in_sparks_jvm(
    hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark asks its own JVM about the id of any Java exception; there it may be another object's."""
    jvm, _ = hadoop
    monkeypatch.setattr(SparkContext, "_gateway", object())
    with pytest.raises(Py4JJavaError, match="NumberFormatException"):
        jvm.java.lang.Integer.parseInt("none")


def test_what_is_read_is_in_the_edit_log_before_the_answer(log: HadoopLog, seen: Folder) -> None:
    """Else a name node that dies could take back what was answered."""
    filled(log, 2)
    before = seen.edits()
    log.read()
    assert seen.edits() > before


def test_a_draft_is_on_a_disk_before_it_has_its_name(log: HadoopLog, hdfs_server: HdfsServer) -> None:
    filled(log, 1)
    seen = [hdfs_server.synced()]

    def still() -> bool | None:
        """What the data node says is some seconds old."""
        seen.append(hdfs_server.synced())
        return True if len(seen) > 3 and len(set(seen[-4:])) == 1 else None

    assert wait_until(still, 120, pause=1)
    before = seen[-1]
    with failpoints.armed("log-before-append=raise"), pytest.raises(failpoints.FailpointError):
        log.append(1, LATE)
    assert wait_until(lambda: True if hdfs_server.synced() > before else None, 120, pause=1)


# --- appends and compactions that overlap -------------------------------------------------------------


def test_an_append_below_a_floor_is_told_taken_also_where_its_draft_is_left(
    log: HadoopLog, folder: str, hadoop: Hadoop, seen: Folder
) -> None:
    """The compaction that overtook it died before it came to the drafts."""
    entries = filled(log, 2)

    def others_go_on(at: Point, _sink: str, epoch: int) -> None:
        if at is Point.LOG_BEFORE_APPEND and epoch == LATE.epoch:
            (draft,) = [name for name in seen.names() if name.endswith(".tmp")]
            aside = seen.file(f"../{draft}")
            seen.system.rename(seen.file(draft), aside)
            assert log.append(2, commit(1))
            log.compact(3, entries[:1])
            seen.system.rename(aside, seen.file(draft))

    with failpoints.handler(others_go_on):
        assert not HadoopLog(folder, lambda: hadoop).append(2, LATE)
    assert f"{2:020}.record" in seen.names()
    assert list(log.read()) == entries[:1]
    assert log.append(3, commit(2))


def test_a_compaction_without_its_floor_has_deleted_nothing(log: HadoopLog, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = filled(log, 4)

    def unanswered(*_: object) -> None:
        raise OSError("EOFException: the name node died")

    with monkeypatch.context() as patch:
        patch.setattr("epochal.checkpoints.hadoop._Hdfs.rename", unanswered)
        with pytest.raises(OutcomeUnknown, match="compaction to floor 3"):
            log.compact(3, entries[:1])
    assert list(log.read()) == entries


# --- writers that die ---------------------------------------------------------------------------------

_DIES = "{source}\nfrom epochal.chaos.contract.logs import commit\nlog.append(2, commit(1, token=5))"


def dies(folder: str, rule: str) -> None:
    """A process that appends at position 2 and is killed where the failpoint says."""
    done = subprocess.run(
        [sys.executable, "-c", _DIES.format(source=opening(folder))],
        env={**os.environ, failpoints.ENVIRONMENT: rule},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.wide
def test_a_writer_killed_between_draft_and_name_leaves_nothing_that_counts(
    log: HadoopLog, folder: str, seen: Folder
) -> None:
    entries = filled(log, 2)
    dies(folder, "log-before-append=kill")
    (draft,) = [name for name in seen.names() if name.endswith(".tmp")]
    assert list(log.read()) == entries
    assert log.append(2, commit(1))
    log.compact(2, entries[:1])
    assert draft in seen.names(), "its position is above the floor, so its writer may live"
    assert log.append(3, commit(2))
    log.compact(3, entries[:1])
    assert draft not in seen.names()
    assert [entry.position for entry in log.read()] == [0, 3]


@pytest.mark.wide
def test_a_writer_killed_after_the_rename_has_decided(log: HadoopLog, folder: str) -> None:
    entries = filled(log, 2)
    dies(folder, "log-after-append=kill")
    assert not log.append(2, commit(1))
    assert list(log.read()) == [*entries, Entry(2, commit(1, token=5))]


def test_a_draft_that_nobody_closed_is_in_nobodys_way(log: HadoopLog, seen: Folder) -> None:
    entries = filled(log, 3)
    stream = seen.system.create(seen.file(f".{1:020}.record.{7:016x}.tmp"), False)
    stream.write(b"half a rec")
    stream.hflush()
    assert list(log.read()) == entries
    log.compact(2, entries[:1])
    assert seen.names() == [f"{2:020}.floor", f"{2:020}.record"]


def test_a_draft_that_a_compaction_has_taken_means_taken(log: HadoopLog, folder: str, hadoop: Hadoop) -> None:
    entries = filled(log, 2)

    def others_go_on(at: Point, _sink: str, epoch: int) -> None:
        if at is Point.LOG_BEFORE_APPEND and epoch == LATE.epoch:
            assert log.append(2, commit(1))
            log.compact(3, entries[:1])

    with failpoints.handler(others_go_on):
        assert not HadoopLog(folder, lambda: hadoop).append(2, LATE)
    assert list(log.read()) == entries[:1]


# --- a name node that dies ----------------------------------------------------------------------------


@pytest.mark.wide
def test_a_name_node_that_dies_is_named_and_takes_nothing_back(log: HadoopLog, hdfs_server: HdfsServer) -> None:
    """It dies between a draft and its rename, and before the answer to one; the handle stays the same."""
    entries = filled(log, 2)
    with failpoints.handler(crashing(hdfs_server, Point.LOG_BEFORE_APPEND)), pytest.raises(OutcomeUnknown):
        log.append(2, LATE)
    for verb in (log.read, lambda: log.append(2, LATE), lambda: log.compact(1, [])):
        with pytest.raises(
            SinkUnavailable, match=r"(Connect|EOF)Exception: [\s\S]*had no effect\n  Help: start the name"
        ):
            verb()
    hdfs_server.start()
    assert list(log.read()) == entries
    assert log.append(2, LATE)

    with failpoints.handler(crashing(hdfs_server, Point.LOG_AFTER_APPEND)), pytest.raises(OutcomeUnknown):
        log.append(3, commit(78))
    hdfs_server.start()
    assert not log.append(3, commit(78))
    assert list(log.read()) == [*entries, Entry(2, LATE), Entry(3, commit(78))]


def crashing(server: HdfsServer, point: Point) -> failpoints.Handler:
    def crash(at: Point, _sink: str, _epoch: int) -> None:
        if at is point:
            server.crash()

    return crash


@pytest.mark.remedy(
    "the … of the epoch log failed: …",
    "wait until the name node has left safe mode, or see why it does not (hdfs dfsadmin -safemode get); the same"
    " request may be repeated",
)
def test_safe_mode_is_named(log: HadoopLog, seen: Folder) -> None:
    filled(log, 2)
    with seen.safe_mode():
        for verb in (log.read, lambda: log.append(2, LATE)):
            with pytest.raises(SinkUnavailable, match=r"in safe mode[\s\S]*Help: wait until the name node has left"):
                verb()
    assert log.append(2, LATE)


@pytest.mark.remedy(
    "the … of the epoch log has no answer: …",
    "wait until the name node has left safe mode, or see why it does not (hdfs dfsadmin -safemode get); the same"
    " request may be repeated",
)
def test_safe_mode_that_begins_after_the_draft_is_unknown_and_the_repeat_settles_it(
    log: HadoopLog, seen: Folder
) -> None:
    action = seen.jvm.org.apache.hadoop.fs.SafeModeAction

    def enter(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.LOG_BEFORE_APPEND:
            seen.system.setSafeMode(action.ENTER)

    try:
        with failpoints.handler(enter), pytest.raises(OutcomeUnknown, match="in safe mode"):
            log.append(0, LATE)
    finally:
        seen.system.setSafeMode(action.LEAVE)
    assert log.append(0, LATE)


@pytest.mark.remedy("the … of the epoch log failed: …", "correct the host's name, or the name service in hdfs-site.xml")
def test_a_name_node_that_is_not_there_and_a_host_that_is_none(folder: str, hadoop: Hadoop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    absent = HadoopLog(f"hdfs://127.0.0.1:{port}/log", lambda: hadoop)
    with pytest.raises(SinkUnavailable, match=rf"the read of the epoch log failed: ConnectException.*{port}"):
        absent.read()
    with pytest.raises(SinkUnavailable, match=r"UnknownHostException: no-such.invalid[\s\S]*Help: correct the host"):
        HadoopLog("hdfs://no-such.invalid/log", lambda: hadoop).read()
    assert list(HadoopLog(folder, lambda: hadoop).read()) == []


@pytest.mark.remedy(
    "the … of the epoch log has no answer: …", "correct the host's name, or the name service in hdfs-site.xml"
)
def test_a_host_that_is_none_any_more_when_a_draft_gets_its_name(log: HadoopLog, hadoop: Hadoop) -> None:
    files, lost = log._files, HadoopLog("hdfs://no-such.invalid/log", lambda: hadoop)._files

    def forget(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.LOG_BEFORE_APPEND:
            log._files = lost

    with failpoints.handler(forget), pytest.raises(OutcomeUnknown, match=r"UnknownHostException: no-such\.invalid"):
        log.append(0, LATE)
    log._files = files
    assert log.append(0, LATE)


@pytest.mark.remedy(
    "the … of the epoch log failed: …",
    "make the file system answer (data nodes up? quota?); the same request may be repeated",
)
def test_a_quota_that_is_used_up(log: HadoopLog, seen: Folder) -> None:
    entries = filled(log, 2)
    no_limit = seen.jvm.java.lang.Long.MAX_VALUE
    seen.system.setQuota(seen.path, 3, no_limit)  # the folder and two records
    with pytest.raises(SinkUnavailable, match="append at position 2 of the epoch log failed: NSQuotaExceeded"):
        log.append(2, LATE)
    seen.system.setQuota(seen.path, 10, no_limit)
    assert log.append(2, LATE)
    assert list(log.read()) == [*entries, Entry(2, LATE)]


@pytest.mark.remedy(
    "the epoch log may not be used (…): …",
    "give the user of the query the rights to read, write and enter this folder",
)
def test_a_user_without_rights_is_told_so(log: HadoopLog, folder: str, seen: Folder) -> None:
    filled(log, 1)
    jvm = seen.jvm
    user = jvm.org.apache.hadoop.security.UserGroupInformation.createRemoteUser("stranger")
    jvm.org.apache.hadoop.security.UserGroupInformation.setLoginUser(user)
    try:
        stranger = HadoopLog(folder, lambda: (jvm, seen.system.getConf()))
        for verb in (stranger.read, lambda: stranger.append(1, LATE)):
            with pytest.raises(Misconfigured, match=r"AccessControlException: Permission denied: user=stranger"):
                verb()
        seen.system.setPermission(seen.path, jvm.org.apache.hadoop.fs.permission.FsPermission("777"))
        assert stranger.append(1, LATE)
        assert [entry.position for entry in stranger.read()] == [0, 1]
    finally:
        jvm.org.apache.hadoop.security.UserGroupInformation.reset()
    assert log.append(2, commit(0))


# --- where it may lie -----------------------------------------------------------------------------------


@pytest.fixture
def mounted(hdfs_server: HdfsServer, hadoop: Hadoop) -> Hadoop:
    """A client that knows ``viewfs://table``: ``/far`` leads to HDFS, ``/near`` to the local disk."""
    jvm, conf = hadoop
    settings = jvm.org.apache.hadoop.conf.Configuration(conf)
    settings.set("fs.viewfs.mounttable.table.link./far", f"{hdfs_server.uri}/")
    settings.set("fs.viewfs.mounttable.table.link./near", "file:///tmp")
    return jvm, settings


def test_viewfs_is_followed_to_hdfs(mounted: Hadoop, folder: str, hadoop: Hadoop, hdfs_server: HdfsServer) -> None:
    viewed = HadoopLog(folder.replace(hdfs_server.uri, "viewfs://table/far"), lambda: mounted)
    assert list(viewed.read()) == []
    entries = filled(viewed, 3)
    assert list(HadoopLog(folder, lambda: hadoop).read()) == entries


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("near/log", "cannot lie on file://"),
        pytest.param(
            "log",
            "known .* once: it leads to viewfs://table/log",
            marks=pytest.mark.remedy(
                "the epoch log cannot lie on a file system that is not known to create a name at most once: …",
                "pass log=PostgresLog(dsn, name) from epochal.checkpoints.postgres, or put the checkpoint on HDFS or a"
                " local disk",
            ),
        ),
    ],
)
def test_viewfs_that_leads_elsewhere_is_refused(
    mounted: Hadoop, folder: str, pg_database: str, tmp_path: Path, hdfs_server: HdfsServer, path: str, why: str
) -> None:
    log = HadoopLog(f"viewfs://table/{path}", lambda: mounted)
    for verb in (log.read, lambda: log.append(0, LATE)):
        with pytest.raises(Misconfigured, match=why):
            verb()
    on_hdfs = HadoopLog(folder.replace(hdfs_server.uri, "viewfs://table/far"), lambda: mounted)
    in_postgres = PostgresLog(pg_database, "flights")
    in_postgres.create()
    for other in (on_hdfs, in_postgres, FilesLog(tmp_path / "epochal" / "log")):
        assert other.append(0, LATE)


def test_a_file_system_of_another_class_is_refused(log: HadoopLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a configuration calls ``hdfs``."""
    monkeypatch.setitem(ATOMIC, "hdfs", "org.example.Hdfs")
    with pytest.raises(Misconfigured, match=r"its class is org\.apache\.hadoop\.fs\.Hdfs"):
        log.read()


@pytest.mark.parametrize("scheme", sorted(OBJECT_STORES))
def test_an_object_store_is_refused_with_the_remedy(scheme: str) -> None:
    with pytest.raises(Misconfigured, match=f"cannot lie on {scheme}://, which is an object store") as refused:
        HadoopLog(f"{scheme}://bucket/checkpoint/epochal/log")
    assert "log=PostgresLog" in refused.value.help


@pytest.mark.parametrize(
    ("scheme", "why"), [("ofs", r"not known to create .* \(known: hdfs, viewfs\)"), ("file", "cannot create a name")]
)
def test_what_is_not_known_is_refused(scheme: str, why: str) -> None:
    with pytest.raises(Misconfigured, match=why):
        check_scheme(f"{scheme}://there/log")


def test_what_is_atomic_is_no_object_store() -> None:
    assert not ATOMIC.keys() & OBJECT_STORES


def test_without_a_spark_session_it_is_told_what_is_missing() -> None:
    code = (
        "from epochal.checkpoints.hadoop import HadoopLog\n"
        "try:\n    HadoopLog('hdfs://there/log').read()\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "Misconfigured an epoch log on HDFS is reached through Spark, and no Spark session runs" in done.stdout


@pytest.mark.wide
@pytest.mark.remedy(
    "an epoch log on HDFS is reached through Spark, and no Spark session runs in this process",
    "start the session first, or pass hadoop=lambda: of_session(spark)",
)
def test_a_session_that_is_started_first_or_passed(
    spark: SparkSession, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, passed = HadoopLog(folder), HadoopLog(folder, hadoop=lambda: of_session(spark))
    with monkeypatch.context() as patch:
        patch.setattr(SparkContext, "_active_spark_context", None)
        with pytest.raises(Misconfigured, match="no Spark session runs in this process"):
            first.read()
        assert list(passed.read()) == []
    assert first.append(0, LATE)
    assert list(passed.read()) == [Entry(0, LATE)]
