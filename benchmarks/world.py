"""What a table runs on: a folder, embedded servers and one Spark session.  Each is started when it is first used."""

from __future__ import annotations

import functools
import shutil
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from benchmarks import topics
from benchmarks.peers import delta, postgres
from benchmarks.results import file_system
from benchmarks.topics import NotAllWritten
from epochal.chaos import servers
from epochal.chaos.servers import ServerUnavailable, jars
from epochal.chaos.servers.spark import spark_conf, spark_session
from epochal.coordinator.environment import versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

DATABASE = "bench"
PARTITIONS = 4
STREAM_S = 900  # at most for all epochs of a stream
SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB"}
"""Settings of Postgres, the same for us and for peers.  fsync and all other settings of durability are unchanged."""


class World:
    """Starts and ends what a table needs; a context manager.  ``conf``: more settings of the Spark session."""

    def __init__(self, conf: Mapping[str, str] | None = None) -> None:
        self._conf = dict(conf or {})
        self._stack = ExitStack()
        self._tables: list[str] = []
        self._topics: list[str] = []
        self._folders: list[Path] = []
        self._open: list[Callable[[], None]] = []

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @functools.cached_property
    def folder(self) -> Path:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="epochal-bench-")))
        if file_system(folder) == "tmpfs":
            raise ServerUnavailable(
                f"{folder.parent} is memory, where nothing is durable", "set TMPDIR to a disk's folder"
            )
        folder.chmod(0o755)  # Postgres may run as another user, and reads files from here
        return folder

    @functools.cached_property
    def postgres(self) -> servers.Postgres:
        server = self._started(servers.choose_postgres(SETTINGS))
        if lax := postgres.not_durable(server.dsn):
            raise ServerUnavailable(f"Postgres has {lax}", "a benchmark is of durable writes: set them on")
        return server

    @functools.cached_property
    def kafka(self) -> servers.Kafka:
        return self._started(servers.choose_kafka(long_lived=True))

    @functools.cached_property
    def dsn(self) -> str:
        return self.postgres.create_database(DATABASE)

    def jdbc(self, **options: str) -> str:
        self.dsn  # noqa: B018  # makes the database
        more = "".join(f"&{key}={value}" for key, value in options.items())
        return f"jdbc:postgresql://{self.postgres.address}/{DATABASE}?user=postgres{more}"

    @functools.cached_property
    def spark(self) -> SparkSession:
        spark = session("3g", **self._conf)
        self._stack.callback(spark.stop)
        return spark

    # --- targets, until they are cleared --------------------------------------------------------

    def table(self) -> str:
        """Create an empty table for a peer; return its name."""
        name = self.named_table(new_name("peer"))
        postgres.create(self.dsn, name)
        return name

    def named_table(self, name: str) -> str:
        """Note the name of a table that somebody else creates, so that it is checked and removed; return the name."""
        self._tables.append(name)
        return name

    def topic(self, name: str | None = None) -> str:
        name = name or new_name("topic")
        self.kafka.create_topic(name, partitions=PARTITIONS)
        self._topics.append(name)
        return name

    def closing(self, close: Callable[[], None]) -> None:
        self._open.append(close)

    def new_folder(self, name: str) -> Path:
        """Return the path of a folder that does not exist yet; it is checked and removed, too."""
        self._folders.append(self.folder / name)
        return self._folders[-1]

    def check(self, rows: int) -> None:
        """Check that every target since the last ``clear`` has so many rows.  Raises NotAllWritten otherwise.

        A topic is checked by its ends.  Markers of transactions count there, too, so that so many missing rows would
        not be noticed.
        """
        found = {table: postgres.count(self.dsn, table) for table in self._tables}
        found |= {str(path): delta.count(path) for path in self._folders if (path / "_delta_log").exists()}
        if wrong := {target: count for target, count in found.items() if count != rows}:
            raise NotAllWritten(f"{rows} rows were to be written, and there are: {wrong}")
        for topic in self._topics:
            topics.check(self.kafka.bootstrap, topic, rows, transactions=True)

    def clear(self) -> None:
        """Close what is open and remove all targets, so that a turn leaves nothing to the next one."""
        for close in self._open:
            close()
        if self._tables:
            postgres.drop(self.dsn, *self._tables)
        for topic in self._topics:
            self.kafka.delete_topic(topic)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._tables, self._topics, self._folders, self._open = [], [], [], []

    def _started(self, server: Server) -> Server:
        server.start()
        self._stack.callback(server.close)
        return server

    # --- one micro-batch after another ----------------------------------------------------------

    def epochs(self, source: Path, write: Write) -> list[float]:
        """Run a stream over ``source``, a folder of Parquet with two files per epoch.

        Return Spark's ``addBatch`` seconds of each epoch.  Raises TimeoutError after ``STREAM_S`` seconds.
        """
        frame = self.spark.read.parquet(str(source))
        stream = self.spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 2).parquet(str(source))
        query = (
            stream.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(self.new_folder(new_name("checkpoint"))))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(STREAM_S):
            query.stop()
            raise TimeoutError(f"a stream over {source.name} was not done after {STREAM_S} s")
        taken = [p["durationMs"]["addBatch"] / 1000 for p in query.recentProgress if p["numInputRows"]]
        if len(taken) != (expected := len(list(source.glob("*.parquet"))) // 2):
            raise RuntimeError(f"a stream over {source.name} had {len(taken)} epochs with rows, and not {expected}")
        return taken


def session(memory: str, **conf: str) -> SparkSession:
    """Return the process's Spark session: two cores, the jars of all sinks and peers, and a heap of ``memory``."""
    found = [spark_conf()["spark.jars"], *map(str, jars.resolve(versions.POSTGRES_JDBC_JARS))]
    return spark_session("local[2]", conf={"spark.jars": ",".join(found), "spark.driver.memory": memory, **conf})


if TYPE_CHECKING:
    from typing import TypeVar

    Server = TypeVar("Server", servers.Postgres, servers.Kafka)
    Write = Callable[[DataFrame, int], None]


def new_name(what: str) -> str:
    """Return a new name that can be used for a table, a topic or a folder."""
    return f"{what}_{uuid.uuid4().hex[:8]}"
