"""What may be under test, and what is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochal.chaos.campaign import own
from epochal.chaos.job import targets
from epochal.chaos.job.targets import FunctionReader, Usage
from epochal.chaos.observe.readers import Record, _decision, _newest
from epochal.chaos.observe.roles import RoleError
from epochal.coordinator.model.epoch import SinkState
from epochal.coordinator.model.errors import MarkerLost, SinkUnavailable
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.protocol import ReplacingSink, Sink

MODULE = """
from epochal import Pipeline
from epochal.sinks import DeltaSink, PostgresSink
from epochal.sinks.memory import MemoryServer, MemorySink
number = 7
class Thing: pass
sink = PostgresSink("postgresql://nowhere/x", table="t")
memory = MemorySink("m", MemoryServer())
pipeline = Pipeline(app="mine", sinks=[sink, DeltaSink("/nowhere")])
def write(df, epoch): pass
def read(): return [{"id": 1}]
def other(): return []
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, of this test's own."""
    name = f"job_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_function_a_pipeline_and_a_sink_are_targets(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(targets.RUN, "run-1")
    function = targets.target(f"{job}:write")
    assert (function.ours, function.sinks) == (False, ())
    pipeline = targets.target(f"{job}:pipeline")
    assert [type(sink) for sink in pipeline.sinks] == [PostgresSink, DeltaSink]
    sink = targets.target(f"{job}:sink")
    assert sink.ours
    assert sink.pipeline is not None
    assert sink.pipeline._app == "run-1"


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("nothing", "not of the form package.module:thing"),
        (":thing", "not of the form"),
        ("no_such_module_at_all:thing", "cannot be imported"),
        ("{job}:missing", "missing"),
        ("{job}:number", "is 7: an Epochal sink, a Pipeline or a function"),
        ("{job}:Thing", "a function of"),
    ],
)
def test_what_cannot_be_a_target_is_refused(job: str, named: str, why: str) -> None:
    with pytest.raises(Usage, match=why):
        targets.target(named.format(job=job))


def test_readers_are_named(job: str) -> None:
    target = targets.target(f"{job}:write")
    reader, names, own = targets.readers(target, [f"a={job}:read", f"b={job}:other"])
    assert (names, own) == (("a", "b"), ())
    assert reader.read() == {"a": [{"id": 1}], "b": []}
    assert targets.readers(target, [f"{job}:read"])[1] == ("output",)
    one, several = (targets.target(f"{job}:{name}") for name in ("memory", "pipeline"))
    assert targets.readers(one, [f"{job}:read"])[1] == ("m",)
    assert targets.readers(several, [f"{job}:read"])[1] == ("output",)


def test_our_own_sinks_need_no_reader(job: str) -> None:
    _, names, own = targets.readers(targets.target(f"{job}:pipeline"), [])
    assert names == ("delta-nowhere", "postgres-t")
    assert [reader.sink for reader in own] == ["postgres-t", "delta-nowhere"]


@pytest.mark.parametrize(
    ("target", "readers", "why"),
    [
        ("write", [], "say with --reader"),
        ("memory", [], "is a MemorySink: say with --reader"),
        ("write", ["{job}:read", "{job}:other"], "two readers of one name"),
        ("write", ["{job}:number"], "not a function"),
    ],
)
def test_an_output_that_nobody_can_read_is_refused(job: str, target: str, readers: list[str], why: str) -> None:
    with pytest.raises(Usage, match=why):
        targets.readers(targets.target(f"{job}:{target}"), [reader.format(job=job) for reader in readers])


def test_a_row_that_is_no_mapping_is_refused() -> None:
    class SparkRow:
        def asDict(self) -> dict[str, Any]:  # noqa: N802
            return {"id": 3}

    assert FunctionReader("out", lambda: [SparkRow()]).read() == {"out": [{"id": 3}]}  # type: ignore[list-item]
    with pytest.raises(RoleError, match=r"\(1, 'a'\): a mapping"):
        FunctionReader("out", lambda: [(1, "a")]).read()  # type: ignore[list-item]


def test_every_sink_of_ours_has_a_reader() -> None:
    from epochal.chaos.observe.readers import reader_of

    sinks: list[Sink] = [PostgresSink("postgresql://x/y", table="t"), KafkaSink("x:1", topic="t"), DeltaSink("/t")]
    assert [reader_of(sink).sink for sink in sinks] == ["postgres-t", "kafka-t", "delta-t"]
    with pytest.raises(RoleError, match="MemorySink"):
        reader_of(MemorySink("m", MemoryServer()))


SERVERS = {"EPOCHAL_CHAOS_POSTGRES": "postgresql://x/y", "EPOCHAL_CHAOS_KAFKA": "x:1", "EPOCHAL_CHAOS_FOLDER": "/t"}


@pytest.mark.parametrize("name", own.OWN)
def test_our_own_pipelines_are_struck_where_they_really_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told of each is what a pipeline says of itself, and what its sinks are."""
    for key, value in {**SERVERS, targets.RUN: "run-1"}.items():
        monkeypatch.setenv(key, value)
    found, told = targets.target(own.target(name)), own.OWN[name].moments
    assert own.named(own.target(name)) is own.OWN[name]
    assert sorted(found.moments.sinks) == sorted(told.sinks)
    assert replace(found.moments, sinks=()) == replace(told, sinks=(), losing=())
    assert set(told.losing) == {sink.name for sink in found.sinks if not isinstance(sink, KafkaSink)}
    kinds = {PostgresSink: "postgres", KafkaSink: "kafka"}
    assert set(own.OWN[name].servers) == {kinds[type(sink)] for sink in found.sinks if type(sink) in kinds}
    replaced = [sink for sink in found.sinks if isinstance(sink, ReplacingSink)]
    assert bool(replaced) is (own.OWN[name].workload == "complete")
    readers = targets.readers(found, [])[2]
    assert [reader.sink for reader in readers if reader.in_parts] == (["kafka"] if name == "plain" else [])


def test_no_target_is_our_first_pipeline_and_a_users_is_none_of_ours() -> None:
    assert own.named("") is own.OWN["pipeline"]
    assert own.named("my.job:upsert") is None


def test_a_lost_marker_is_judged_and_a_server_that_is_down_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(error: Exception) -> Sink:
        def look(*_: object, **__: object) -> SinkState:
            raise error

        sink = MemorySink("m", MemoryServer())
        monkeypatch.setattr(sink, "look", look)
        return sink

    assert _decision(refusing(MarkerLost("slot 1 lacks its marker", sink="m", help="restore it")), "app", "q") == 0
    with pytest.raises(SinkUnavailable):
        _decision(refusing(SinkUnavailable("down", sink="m", help="start it")), "app", "q")


def test_of_records_that_replace_each_other_the_last_of_each_key_counts() -> None:
    records = [
        Record(0, 0, b"a", b"1"),
        Record(0, 1, b"b", b"2"),
        Record(1, 0, b"c", b"3"),
        Record(0, 2, b"a", b"4"),
        Record(0, 3, b"b", None),
    ]
    assert _newest(records) == [b"4", None, b"3"]
