"""Epochs as data: their offsets, their columns, which are asked for, which are kept; and what none of it needs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from epochal.coordinator.model.epoch import Actor, Committable, Decision, Digest, Epoch, Query
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks import DeltaSink, KafkaSink, MemoryRedoSink, MemoryServer, MemorySink, PostgresSink
from epochal.sinks.epochs import KEPT_ALWAYS, Epochs, OffsetRange, Retention, ShownEpoch, Wanted, kafka_offsets
from epochal.sinks.memory import MemoryStage
from epochal.sinks.protocol import AuditedSink

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
ONE = Actor(1, 11)
QUERY = Query("flights", "q1", "r1", "memory:/checkpoint")


def offsets(*sources: str) -> str:
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *sources])


def shown(position: int, *sources: str, epoch: int | None = None, incarnation: str = "q1") -> ShownEpoch:
    return ShownEpoch(
        app="flights",
        sink="out",
        position=position,
        epoch=position - 1 if epoch is None else epoch,
        incarnation=incarnation,
        decision=position * 100,
        offsets=offsets(*sources),
        rows=3,
        digest=None,
        watermark=None,
        committed_at=START + timedelta(days=position),
    )


def told(*rows: ShownEpoch) -> list[tuple[Any, ...]]:
    """Position, source, topic, partition, first, last, text."""
    return [(r.position, r.source, r.topic, r.partition, r.first, r.last, r.text) for r in Epochs(rows).ranges().rows]


# offsets


def test_an_epoch_begins_where_the_one_before_it_ended() -> None:
    rows = shown(1, '{"t":{"1":4,"0":3}}'), shown(2, '{"t":{"0":3,"1":9}}'), shown(3, '{"t":{"0":5,"1":9}}')
    assert told(*rows) == [
        (1, 0, "t", 0, None, 2, None),
        (1, 0, "t", 1, None, 3, None),
        (2, 0, "t", 1, 4, 8, None),
        (3, 0, "t", 0, 3, 4, None),
    ]


@pytest.mark.parametrize("before", [{"epoch": 0, "incarnation": "q0"}, {"epoch": 3}])
def test_what_is_not_the_epoch_before_says_nothing_of_the_start(before: dict[str, Any]) -> None:
    """Of another checkpoint, or with a gap."""
    assert told(shown(1, '{"t":{"0":3}}', **before), shown(2, '{"t":{"0":5}}'))[1:] == [(2, 0, "t", 0, None, 4, None)]


def test_the_start_of_a_partition_that_is_new_is_not_guessed() -> None:
    rows = shown(1, '{"t":{"0":3}}'), shown(2, '{"t":{"0":3,"1":7}}')
    assert told(*rows)[1:] == [(2, 0, "t", 1, None, 6, None)]


def test_a_partition_of_which_nothing_was_read_has_no_row() -> None:
    assert told(shown(1, '{"t":{"0":0}}')) == []


def test_every_source_has_its_own() -> None:
    """A file source says what it says; one that had nothing yet says nothing."""
    rows = shown(1, '{"logOffset":0}', "-"), shown(2, '{"logOffset":0}', '{"t":{"0":2}}')
    assert rows[0].sources == ('{"logOffset":0}', None)
    assert told(*rows) == [
        (1, 0, None, None, None, None, '{"logOffset":0}'),
        (2, 1, "t", 0, None, 1, None),
    ]


def as_version_2(row: ShownEpoch, *sources: str) -> ShownEpoch:
    """The text of ``spark.sql.streaming.offsetLog.formatVersion=2``."""
    return replace(row, offsets="\n".join(["v2", '{"batchWatermarkMs":0}', *sources]))


def test_version_2_of_sparks_file_names_its_sources() -> None:
    """S1: the ranges are as with version 1, in whatever order Spark writes the sources."""
    first = as_version_2(shown(1), '0:{"t":{"0":3}}', "1:-")
    second = as_version_2(shown(2), '10:{"logOffset":7}', '1:{"u:v":{"0":2}}', '0:{"t":{"0":5}}')
    assert first.sources == ('{"t":{"0":3}}', None)
    assert second.sources == ('{"t":{"0":5}}', '{"u:v":{"0":2}}', '{"logOffset":7}')
    assert told(first, second) == [
        (1, 0, "t", 0, None, 2, None),
        (2, 0, "t", 0, 3, 4, None),
        (2, 1, "u:v", 0, None, 1, None),
        (2, 10, None, None, None, None, '{"logOffset":7}'),
    ]


def test_a_source_with_a_name_is_compared_with_itself() -> None:
    """S1: its number is its place in the text, which another source may take."""
    first, second = as_version_2(shown(1), 'b:{"t":{"0":3}}'), as_version_2(shown(2), "a:-", 'b:{"t":{"0":5}}')
    assert told(first, second) == [(1, 0, "t", 0, None, 2, None), (2, 1, "t", 0, 3, 4, None)]


@pytest.mark.parametrize(
    "text", ["17", "{}", "[1]", "nothing", '{"logOffset":5}', '{"t":{"0":"5"}}', '{"t":{"a":5}}', '{"t":{"0":true}}']
)
def test_what_is_not_kafkas_is_not_taken_for_it(text: str) -> None:
    assert kafka_offsets(text) is None


def test_an_epoch_without_offsets_has_no_sources() -> None:
    row = replace(shown(1), offsets="")
    assert (row.sources, told(row)) == ((), [])


# columns


def test_the_columns_of_the_epochs() -> None:
    digested = replace(shown(2), digest=Digest(3, 2**63 - 1), watermark=5)
    table = Epochs((shown(1), digested)).arrow()
    assert table.schema == pa.schema(
        [
            *((name, pa.string()) for name in ("app", "sink")),
            *((name, pa.int64()) for name in ("position", "epoch")),
            ("incarnation", pa.string()),
            ("decision", pa.int64()),
            ("offsets", pa.string()),
            *((name, pa.int64()) for name in ("rows", "digest_rows", "digest_sum", "watermark")),
            ("committed_at", pa.timestamp("us", tz="UTC")),
        ]
    )
    first, second = table.to_pylist()
    assert (first["digest_rows"], first["digest_sum"], first["watermark"]) == (None, None, None)
    assert (second["digest_rows"], second["digest_sum"], second["watermark"]) == (3, 2**63 - 1, 5)
    assert second["committed_at"] == digested.committed_at


def test_the_columns_of_the_ranges() -> None:
    table = Epochs((shown(1, '{"t":{"0":3}}'),)).ranges().arrow()
    assert table.schema == pa.schema(
        [
            *((name, pa.string()) for name in ("app", "sink")),
            *((name, pa.int64()) for name in ("position", "epoch")),
            ("incarnation", pa.string()),
            ("source", pa.int64()),
            ("topic", pa.string()),
            *((name, pa.int64()) for name in ("partition", "first", "last")),
            ("text", pa.string()),
        ]
    )
    assert table.to_pylist() == [vars(OffsetRange("flights", "out", 1, 0, "q1", 0, "t", 0, None, 2, None))]


def test_no_epochs_have_the_same_columns() -> None:
    assert Epochs().arrow().schema == Epochs((shown(1),)).arrow().schema
    assert (Epochs().newest, len(Epochs()), Epochs().ranges().arrow().num_rows) == (None, 0, 0)


# which


def test_the_newest_of_what_is_asked_for() -> None:
    rows = [shown(n) for n in range(1, 8)]
    for wanted, positions in (
        (Wanted(), [1, 2, 3, 4, 5, 6, 7]),
        (Wanted(3, 5), [3, 4, 5]),
        (Wanted(limit=2), [6, 7]),
        (Wanted(2, 4, 2), [3, 4]),
    ):
        assert [row.position for row in wanted.of_all(reversed(rows))] == positions


def test_a_position_is_told_once_as_it_is_told_first() -> None:
    newer, older = replace(shown(1), rows=9), shown(1)
    assert Wanted().of_all([newer, older]).rows == (newer,)


def test_it_is_looked_back_until_enough_is_found() -> None:
    assert not Wanted(limit=3).is_met([9, 8])
    assert Wanted(limit=3).is_met([9, 8, 7])
    assert not Wanted(1, 7, limit=2).is_met([9, 8, 7])
    assert Wanted(5).is_met([6, 5])
    assert not Wanted(5).is_met([6])


@pytest.mark.parametrize("limit", [0, -1])
@pytest.mark.remedy("limit=… asks for no epoch", "give limit= a number from 1, or leave it out")
def test_no_epochs_are_not_asked_for(limit: int) -> None:
    with pytest.raises(Misconfigured, match=f"limit={limit} asks for no epoch"):
        MemorySink("out", MemoryServer()).epochs("flights", limit=limit)
    server = MemoryServer()
    server.create("flights", "out")
    assert list(MemorySink("out", server).epochs("flights", limit=1)) == []
    assert list(MemorySink("out", server).epochs("flights")) == []


# retention

BAD = [{"keep_epochs": n} for n in (0, KEPT_ALWAYS - 1, True, 10.5, "many")]
BAD += [{"keep_days": d} for d in (0, -1, float("nan"), float("inf"), True, "many")]


@pytest.mark.parametrize("given", BAD)
def test_what_no_audit_can_keep_is_refused(given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    makers = (
        lambda: PostgresSink("dbname=x", table="t", **given),
        lambda: KafkaSink("h:1", topic="t", **given),
        lambda: MemoryServer(**given),
    )
    for make in makers:
        with pytest.raises(Misconfigured, match=f"{name}={value!r} is not a number of") as refused:
            make()
        assert "Help: " in str(refused.value)


def test_number_and_age_bound_what_is_kept_and_the_newest_stay() -> None:
    rows = [shown(n) for n in range(1, 31)]  # a day between any two

    def kept(epochs: int | None, days: float | None) -> list[int]:
        return [row.position for row in Retention.of(epochs, days, "out").kept(rows)]

    assert kept(None, None) == list(range(1, 31))
    assert kept(12, None) == list(range(19, 31))
    assert kept(None, 14) == list(range(16, 31))
    assert kept(12, 14) == list(range(19, 31))
    assert kept(None, 0.5) == list(range(30 - KEPT_ALWAYS + 1, 31))
    assert Retention().kept([]) == []


def test_the_reference_keeps_what_it_is_told_to() -> None:
    server = MemoryServer(keep_epochs=10)
    sink = MemorySink("out", server)
    sink.create(QUERY, None)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    for number in range(13):
        decision = Decision("q1", number, ONE, f"f{number}")
        sink.commit(sink.prepare(Epoch(decision, number + 1, f"[{number}]", number), [{"id": number}], ONE), ONE)
    assert [(r.position, r.offsets, r.rows) for r in sink.epochs("flights")] == [
        (n + 1, f"[{n}]", 1) for n in range(3, 13)
    ]


# capability


def test_all_sinks_tell_their_epochs() -> None:
    server = MemoryServer()
    sinks = [
        MemorySink("out", server),
        MemoryRedoSink("out", server, MemoryStage()),
        PostgresSink("dbname=x", table="t"),
        KafkaSink("h:1", topic="t"),
        DeltaSink("/lake/t"),
    ]
    assert all(isinstance(sink, AuditedSink) for sink in sinks)


def test_a_vote_without_offsets_is_told_without() -> None:
    """As an older Epochal made it for the sinks in memory."""
    server = MemoryServer()
    sink = MemorySink("out", server)
    sink.create(QUERY, None)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    vote = sink.prepare(Epoch(Decision("q1", 0, ONE, "f"), 1, "[0]", 7), [{"id": 1}], ONE)
    old = Committable.from_json({**vote.to_json(), "payload": {"attempt": vote.payload["attempt"]}})
    sink.commit(old, ONE)
    assert [(r.offsets, r.watermark) for r in sink.epochs("flights")] == [("", None)]


NO_SPARK = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pyspark", "py4j", "delta", "pyarrow"}:
            raise ImportError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
KafkaSink("h:1", topic="t"), PostgresSink("dbname=x", table="t"), DeltaSink(table="s.t")
(row,) = DeltaSink(sys.argv[1], name="out").epochs("app")
print(row.position, row.rows, row.offsets, row.watermark, row.digest)
for sink in (DeltaSink(table="s.t"), DeltaSink(sys.argv[1] + "/none")):
    try:
        sink.epochs("app")
    except Misconfigured as error:
        print(error.what)
"""


def test_a_table_at_a_path_tells_its_epochs_without_spark(request: pytest.FixtureRequest) -> None:
    """Of the first Epochal, whose commits had neither a digest nor a version."""
    table = request.config.rootpath / "tests/real/sinks/formats/delta-v1"
    done = subprocess.run(
        [sys.executable, "-c", NO_SPARK, str(table)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 0 {} 7 None",
        "s.t is a name in Spark's session catalog, and no Spark runs in this process",
        f"delta-rs reads no Delta table at {table}/none",
    ]


@pytest.mark.remedy("pyarrow is missing: …", "pip install pyarrow, or use .rows, which needs nothing")
def test_without_pyarrow_the_rows_are_told_how_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Misconfigured, match="pyarrow is missing"):
        Epochs(()).arrow()
    assert list(Epochs(()).rows) == []
    monkeypatch.undo()  # as if it was installed
    assert Epochs(()).arrow().num_rows == 0
