"""The user's API where no Spark is needed: names, set-up errors, what prints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pickle import PicklingError
from typing import Any, cast

import pytest
from pyspark.errors import PySparkImportError
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame

import epochal
import epochal.sinks
from epochal.checkpoints.memory import MemoryLog
from epochal.checkpoints.postgres import PostgresLog
from epochal.coordinator.environment import versions
from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import CalledTwice, Interrupted, Misconfigured
from epochal.coordinator.query import spark as inside
from epochal.coordinator.query.diagnosis import Verdict
from epochal.coordinator.query.pipeline import Pipeline, _Run
from epochal.sinks.memory import MemoryRedoSink, MemoryServer, MemorySink, MemoryStage
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.spark.threads import Threads

SERVER = MemoryServer()
ERROR = Misconfigured("the first call has failed", help="none")
SPARK: Any = None  # a session that nobody asks


def test_a_start_takes_no_second_call_for_an_epoch_and_none_after_a_failure() -> None:
    """Also not while the first call is running, of which no coordinator knows yet."""
    run = _Run("q1", "r1", cast("Any", None))
    run.enter(7)
    with pytest.raises(CalledTwice):
        run.enter(7)
    run.enter(8)
    run.failed = ERROR
    with pytest.raises(Misconfigured, match="the first call has failed"):
        run.enter(9)


class FromCopyAlone(MemorySink):
    """A redo sink that knows nothing of idempotent mode."""

    needs_copy = True


def sinks(*names: str) -> list[MemorySink]:
    return [MemorySink(name, SERVER) for name in names]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sinks": []}, "has no sink"),
        ({"sinks": sinks("a", "a")}, "two sinks are named 'a'"),
        ({"sinks": ["postgres"]}, "'postgres' is not a sink"),
        ({"app": "my app"}, "app 'my app' is not of the form"),
        ({"app": ""}, "app '' is not of the form"),
        ({"mode": "at-least-once"}, "mode 'at-least-once' is not known"),
        ({"mode": "idempotent", "deterministic": "parse"}, "deterministic='parse' is no list of names"),
        ({"mode": "idempotent", "deterministic": [len]}, "is no list of names"),
        ({"compact_every": 0}, "compact_every=0"),
        ({"deterministic": ["parse"]}, "has no effect in mode 'two-phase'"),
        ({"retry": 3}, "retry=3 is no Retry"),
        ({"log": "/a/folder"}, "log='/a/folder' is no epoch log"),
        ({"on_event": "print"}, "on_event='print' cannot be called"),
        ({"mode": "idempotent", "sinks": [FromCopyAlone("a", SERVER)]}, "FromCopyAlone has no method apply"),
    ],
)
def test_a_set_up_that_cannot_work_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(Misconfigured, match="Help: ") as refused:
        Pipeline(**{"app": "app", "sinks": sinks("a"), **options})
    assert says in str(refused.value)


def test_a_sink_name_that_no_server_could_hold() -> None:
    class Spaced(MemorySink):
        @property
        def name(self) -> str:
            return "a b"

    with pytest.raises(Misconfigured, match="sink name 'a b' is not of the form"):
        Pipeline(app="app", sinks=[Spaced("a", SERVER)])


def test_guarantee_is_text_and_data() -> None:
    one = Pipeline(app="app", sinks=sinks("a")).guarantee()
    assert "one sink that votes: its own prepared rows" in str(one)
    assert "no isolation across sinks" not in str(one)
    two = Pipeline(app="app", sinks=sinks("a", "b")).guarantee()
    assert list(two.sinks) == ["a", "b"]
    assert all(f"- {name}: {text}" in str(two) for name, text in two.sinks.items())
    assert "evaluated once, into a durable copy" in str(two)
    assert "no isolation across sinks" in str(two)
    redo = Pipeline(app="app", sinks=[MemoryRedoSink("a", SERVER, MemoryStage())]).guarantee()
    assert "evaluated once, into a durable copy" in str(redo)


def test_the_guarantee_of_idempotent_mode_says_on_what_it_stands() -> None:
    alone = str(Pipeline(app="app", sinks=sinks("a"), mode="idempotent").guarantee())
    assert "app 'app', idempotent, no decision, each by itself: 1 sink(s)" in alone
    assert "provided that the query gives the same rows whenever an epoch is run" in alone
    assert "with one sink there is nothing to compare its rows with" in alone
    assert "durable copy" not in alone.partition("*")[2]
    redo = MemoryRedoSink("b", SERVER, MemoryStage())
    several = Pipeline(app="app", sinks=[*sinks("a"), redo], mode="idempotent", deterministic=["parse", "scale"])
    told = str(several.guarantee())
    assert "compared by a digest before a sink shows any" in told
    assert "b cannot hold rows back" in told
    assert "a cannot hold rows back" not in told
    assert "condition: these functions depend on their arguments alone: parse, scale" in told
    assert "no isolation across sinks" in told


def test_status_before_any_query() -> None:
    pipeline = Pipeline(app="app", sinks=sinks("a"))
    assert pipeline.status().last_epoch is None
    assert str(pipeline.status()) == "app 'app': no query has called this pipeline yet"


def test_create_prints_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = Pipeline(app="app", sinks=[MemorySink(name, MemoryServer()) for name in "ab"])
    assert pipeline.create(None) == ["a: created table a", "b: created table b"]  # type: ignore[arg-type]
    assert capsys.readouterr().out == "a: created table a\nb: created table b\n"
    assert pipeline.create(None) == []  # type: ignore[arg-type]
    assert capsys.readouterr().out == "nothing to do: everything is there\n"


def test_create_lets_go_of_every_sink_also_of_one_that_refuses() -> None:
    closed: list[str] = []

    class Closing(MemorySink):
        def create(self, query: Query, schema: Any) -> Sequence[str]:
            if self.name == "b":
                raise Misconfigured("no right", sink=self.name, help="grant it")
            return super().create(query, schema)

        def close(self) -> None:
            closed.append(self.name)

    server = MemoryServer()
    with pytest.raises(Misconfigured, match="no right"):
        Pipeline(app="app", sinks=[Closing(name, server) for name in "abc"]).create(None)  # type: ignore[arg-type]
    assert closed == ["a", "b"]


def test_something_that_is_no_dataframe() -> None:
    pipeline = Pipeline(app="app", sinks=sinks("a"))
    with pytest.raises(Misconfigured, match="called with list, not a DataFrame") as refused:
        pipeline([1, 2], 0)  # type: ignore[arg-type]
    assert pipeline.last_error is refused.value


@pytest.fixture
def connect_df() -> Iterator[Any]:
    """A DataFrame of Spark Connect, which needs no server to be made.

    Without grpcio and its like pyspark makes none; then one of the same base class, with as little in its session.
    """
    try:
        from pyspark.sql.connect.session import SparkSession
    except PySparkImportError:
        session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
        yield object.__new__(type("DataFrame", (DataFrame,), {"sparkSession": session}))
        return
    connected = SparkSession("sc://127.0.0.1:1")
    connected.client.set_retry_policies([])  # whoever asks it is told at once that there is none
    yield connected.range(1)
    connected.client.close()


def test_spark_connect(connect_df: Any) -> None:
    pipeline = Pipeline(app="app", sinks=sinks("a"))
    calls: list[Callable[[], object]] = [lambda: pipeline.check(connect_df), lambda: pipeline(connect_df, 0)]
    for call in calls:
        with pytest.raises(Misconfigured, match="the batch function has no access to Spark's JVM") as refused:
            call()
        assert refused.value.state == "session pyspark.sql.connect.session"
        assert "run the query in a classic session" in refused.value.help
    assert pipeline.last_error is refused.value
    [wrong] = pipeline.doctor(connect_df).of(Verdict.WRONG)
    assert (wrong.of, wrong.what) == ("query", "session")


def test_a_pipeline_is_not_shipped_to_a_server_of_spark_connect() -> None:
    """What `writeStream.foreachBatch(pipeline)` does there; a function that makes its own comes to the error above."""
    pipeline = Pipeline(app="app", sinks=[PostgresSink("postgresql://localhost/db", table="t")])
    with pytest.raises(PicklingError, match="Misconfigured: under Spark Connect the batch function has no access"):
        CloudPickleSerializer().dumps(pipeline)  # type: ignore[no-untyped-call]
    assert isinstance(pipeline.last_error, Misconfigured)
    assert "run the query in a classic session" in pipeline.last_error.help


GOOD_VERSIONS = {"spark": versions.PYSPARK, "java": "17.0.15", "python": "3.11.7"}


@pytest.mark.parametrize(
    ("part", "version"),
    [("spark", "3.4.4"), ("spark", "4.4.0"), ("java", "11.0.22"), ("python", "3.9.21"), ("python", "3.15.0")],
)
def test_versions_that_a_start_refuses(part: str, version: str) -> None:
    inside.check_versions(**GOOD_VERSIONS)
    with pytest.raises(Misconfigured, match=f"(?i){part} {version} is outside what Epochal supports"):
        inside.check_versions(**{**GOOD_VERSIONS, part: version})


@pytest.mark.remedy(
    "the query has no checkpointLocation: Spark made a temporary one, which no restart will find",
    'give the query .option("checkpointLocation", "/a/durable/folder")',
)
def test_a_temporary_checkpoint_is_told_by_its_name() -> None:
    with pytest.raises(Misconfigured, match="no checkpointLocation"):
        inside.check_checkpoint("file:/var/folders/temporary-dd29333d-075f-416a-ab70-9a6259444c4a/")
    inside.check_checkpoint("file:/data/temporary-flights")
    inside.check_checkpoint("file:/a/durable/folder")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_would_hang_the_query_becomes_an_exception(error: BaseException) -> None:
    def task() -> None:
        raise error

    [result] = Threads(lambda: None)([task])
    assert isinstance(result, Interrupted)
    assert type(error).__name__ in str(result)


@pytest.mark.parametrize(
    ("checkpoint", "kind"),
    [
        ("file:/data/checkpoint", "files:/data/checkpoint/epochal/log"),
        ("hdfs://cluster/checkpoint", "hadoop:hdfs://cluster/checkpoint/epochal/log"),
        ("viewfs://cluster/checkpoint", "hadoop:viewfs://cluster/checkpoint/epochal/log"),
        *((f"{scheme}://lake/c", f"objects:{scheme}://lake/c/epochal/log") for scheme in ("s3a", "s3", "gs")),
        *(
            (f"{scheme}://c@a.dfs.core.windows.net/c", f"objects:{scheme}://c@a.dfs.core.windows.net/c/epochal/log")
            for scheme in ("abfs", "abfss", "wasb", "wasbs")
        ),
    ],
)
def test_the_default_log_lies_in_the_checkpoint(checkpoint: str, kind: str) -> None:
    assert Pipeline(app="app", sinks=sinks("a")).log_at(checkpoint, lambda: SPARK).describe() == kind


@pytest.mark.parametrize("scheme", ["s3n", "adl", "oss", "never-heard-of"])
@pytest.mark.remedy(
    "the epoch log cannot lie on …://, which …",
    "pass log=PostgresLog(dsn, name) from epochal.checkpoints.postgres, or put the checkpoint on HDFS or a local disk",
)
def test_a_checkpoint_where_no_log_can_lie_is_refused_unless_one_is_passed(scheme: str) -> None:
    checkpoint = f"{scheme}://bucket/checkpoint"
    with pytest.raises(Misconfigured, match=f"the epoch log cannot lie on {scheme}://") as refused:
        Pipeline(app="app", sinks=sinks("a")).log_at(checkpoint, lambda: SPARK)
    assert "log=PostgresLog" in refused.value.help
    passed = MemoryLog()
    assert Pipeline(app="app", sinks=sinks("a"), log=passed).log_at(checkpoint, lambda: SPARK) is passed
    kept = PostgresLog("postgresql://user@host/db", "flights")
    assert Pipeline(app="app", sinks=sinks("a"), log=kept).log_at(checkpoint, lambda: SPARK) is kept
    for there in ("hdfs://cluster/checkpoint", "file:/checkpoint"):
        assert (
            Pipeline(app="app", sinks=sinks("a"))
            .log_at(there, lambda: SPARK)
            .describe()
            .endswith("/checkpoint/epochal/log")
        )


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_public_names_need_no_spark_and_no_client() -> None:
    blocked = ("pyspark", "psycopg", "confluent_kafka", "delta", "pyarrow", "pandas")
    code = BLOCKED.format(blocked=blocked) + (
        "import epochal, epochal.sinks\n"
        "for name in epochal.__all__: getattr(epochal, name)\n"
        "print(epochal.errors.Fenced is epochal.Fenced, epochal.__version__)\n"
        "from epochal.sinks import MemorySink, MemoryServer\n"
        "print(repr(epochal.Pipeline(app='a', sinks=[MemorySink('m', MemoryServer())])))\n"
    )
    assert python(code).splitlines() == [f"True {epochal.__version__}", "Pipeline(app='a', sinks=['m'])"]


def test_a_sink_is_imported_when_it_is_asked_for() -> None:
    code = "import sys, epochal.sinks\nprint([m for m in sys.modules if m.startswith('epochal.sinks.')])\n"
    loaded = python(code)
    assert not any(name in loaded for name in ("postgres", "kafka", "delta", "memory"))
    with pytest.raises(AttributeError, match="no attribute 'NoSuchSink'"):
        _ = epochal.sinks.NoSuchSink


@pytest.mark.remedy(
    "… needs the package …, which is not installed",
    "pip install 'epochal[…]' (and epochal[spark] where there is no Spark yet)",
)
def test_a_missing_client_is_refused_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(epochal.sinks._MODULES, "OtherSink", ("no_such_client", "other"))
    with pytest.raises(Misconfigured, match=r"OtherSink needs the package no_such_client") as refused:
        _ = epochal.sinks.OtherSink
    assert "pip install 'epochal[other]'" in str(refused.value)
    monkeypatch.setitem(
        epochal.sinks._MODULES, "OtherSink", ("epochal.sinks.memory", "other")
    )  # as if it was installed
    with pytest.raises(AttributeError, match="OtherSink"):
        _ = epochal.sinks.OtherSink
    monkeypatch.setitem(epochal.sinks._MODULES, "MemorySink", ("epochal.sinks.memory", "other"))
    assert epochal.sinks.MemorySink is MemorySink


def test_what_an_epoch_is_decided_about_is_on_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does not sync its files: after a power failure the decision would be about offsets that nobody knows."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchWatermarkMs":0}\n{}')
    (tmp_path / "metadata").write_text('{"id":"query"}')
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    inside.read_ask(Query("app", "query", "run", f"file:{tmp_path}"), 3, lambda: None)  # type: ignore[arg-type,return-value]
    assert {str(tmp_path / part) for part in ("offsets/3", "offsets", "metadata", "")} <= set(synced)
