"""Rows written as sections, and read again: all of them, once, and those of one partition in their order."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.sinks.kafka import encode
from epochal.sinks.kafka.batches import frame, write
from epochal.sinks.kafka.batches.compress import CODECS, expand
from epochal.sinks.kafka.batches.write import Layout
from tests.pure.sinks.kafka.batches.support import ROW, Row, Written, batch_of, layout

TOPICS = {"topics": ("a", "b", "c"), "partitions": (3, 300, 1), "limits": (400, 300, 3000)}


def written(batches: Iterable[pa.RecordBatch], plan: Layout, group_bytes: int = 1 << 20) -> Written:
    data = bytearray()
    pieces = write.write(batches, plan, lambda some: data.extend(memoryview(some)), group_bytes)
    found = Written(plan, bytes(data), pieces)
    check_pieces(found)
    return found


def check_pieces(found: Written) -> None:
    """The pieces fill what was written, each has its checksum, and none is larger than its topic takes."""
    end = 0
    for piece in found.pieces:
        assert piece.offset == end
        end += piece.length
        section = found.section(piece)
        assert frame.checksum(section) == piece.crc
        size = frame.HEADER_BYTES + len(expand(section, piece.attributes))
        assert frame.HEADER_BYTES + piece.length <= size
        limit = found.layout.batch_bytes_of(found.layout.topic_of(piece.code))
        assert size <= limit or piece.rows == 1
        assert 0 < piece.rows <= (found.layout.batch_rows or piece.rows)
    assert end == len(found.data)


def numbered(rows: list[Row]) -> list[Row]:
    """Rows that say which one they are."""
    return [
        row._replace(headers=[("n", b"%d" % place), *(row.headers or [])], partition=named(row, place))
        for place, row in enumerate(rows)
    ]


def named(row: Row, place: int) -> int | None:
    """A third of the rows name their partition."""
    return place % {"a": 3, "b": 300, "c": 1}[row.topic] if place % 3 == 0 else None


def number(row: Row) -> int:
    assert row.headers is not None
    return int(row.headers[0][1] or b"")


@st.composite
def batched(draw: st.DrawFn) -> tuple[list[Row], list[pa.RecordBatch]]:
    rows = numbered(draw(st.lists(ROW, max_size=40)))
    kind = draw(st.sampled_from([pa.binary(), pa.large_binary()]))
    bounds = sorted(draw(st.sets(st.integers(0, len(rows)), max_size=4)) | {0, len(rows)})
    return rows, [batch_of(rows[a:b], kind=kind) for a, b in itertools.pairwise(bounds)]


@given(
    batched(),
    st.sampled_from([None, *CODECS]),
    st.sampled_from(["murmur2_random", "murmur2", "random"]),
    st.none() | st.integers(100, 2000),
    st.none() | st.integers(1, 5),
    st.sampled_from([1, 500, 3000, 1 << 20]),
)
@settings(max_examples=150)
def test_all_rows_are_read_again_in_order(
    given: tuple[list[Row], list[pa.RecordBatch]],
    codec: str | None,
    partitioner: str,
    batch_bytes: int | None,
    batch_rows: int | None,
    group_bytes: int,
) -> None:
    rows, batches = given
    plan = layout(**TOPICS, codec=codec, partitioner=partitioner, batch_bytes=batch_bytes, batch_rows=batch_rows)
    places = written(batches, plan, group_bytes).by_place()
    found = {number(row): (place, row) for place, some in places.items() for row in some}
    assert sorted(number(row) for some in places.values() for row in some) == list(range(len(rows)))
    for (topic, partition), some in places.items():
        numbers = [number(row) for row in some]
        assert numbers == sorted(numbers), f"order within {topic}[{partition}]"
    for n, row in enumerate(rows):
        (topic, partition), read = found[n]
        assert (read.key, read.value, read.headers, topic) == (row.key, row.value, row.headers, row.topic)
        assert partition == expected(row, partitioner, partition)


def expected(row: Row, partitioner: str, found: int) -> int:
    """Where a row belongs; where chance decides it, where it was found."""
    if row.partition is not None:
        return row.partition
    if partitioner == "random" or (partitioner == "murmur2_random" and row.key is None):
        return found
    return encode.murmur2([row.key or b""])[0] % {"a": 3, "b": 300, "c": 1}[row.topic]


@pytest.mark.parametrize("rows", [[], [Row(b"k", b"v")], [Row(None, None)]])
def test_few_rows(rows: list[Row]) -> None:
    found = written([batch_of([]), batch_of(rows, "value"), batch_of([])][:2], layout())
    assert [row for some in found.by_place().values() for row in some] == [row._replace(headers=[]) for row in rows]
    assert written([], layout()).pieces == []


def test_a_value_larger_than_what_is_held_at_once_and_than_a_batch() -> None:
    rows = [Row(b"k", b"v"), Row(b"k", bytes(300_000)), Row(b"k", b"w")]
    found = written([batch_of(rows, "value", kind=pa.large_binary())], layout(limits=(1000,)), 1000)
    assert [piece.rows for piece in found.pieces] == [1, 1, 1]
    [some] = found.by_place().values()
    assert [row.value for row in some] == [row.value for row in rows]


def test_a_batch_is_full_to_its_last_byte() -> None:
    """Places up to 63 have one byte each, so that no byte is left for them in vain."""
    rows = [Row(b"k", b"v")] * 50
    one = len(written([batch_of(rows[:1], "value")], layout()).data)
    limit = frame.HEADER_BYTES + 25 * one
    for largest, counts in ((limit, [25, 25]), (limit - 1, [24, 24, 2]), (limit + one - 1, [25, 25])):
        found = written([batch_of(rows, "value")], layout(limits=(largest,)))
        assert [piece.rows for piece in found.pieces] == counts


def test_topics_with_different_limits_are_cut_each_by_its_own() -> None:
    rows = [Row(b"k", b"v" * 50, topic=topic) for topic in "abc" * 100]
    plan = layout(topics=("a", "b", "c"), partitions=(1, 1, 1), limits=(500, 5000, 50_000))
    sizes: dict[str, int] = {}
    for piece in written([batch_of(rows, "topic")], plan).pieces:
        topic = plan.partition_of(piece.code)[0]
        sizes[topic] = max(sizes.get(topic, 0), piece.length)
    assert 400 < sizes["a"] <= 439
    assert 4500 < sizes["b"] <= 4939
    assert sizes["c"] > 5000


@pytest.mark.parametrize("partitions", [200, 300, 70_000])
def test_many_partitions(partitions: int) -> None:
    rows = [Row(b"k%d" % (n % 997), b"%d" % n) for n in range(5000)]
    places = written([batch_of(rows, "value")], layout(partitions=(partitions,))).by_place()
    assert len(places) > 150
    for (_, partition), some in places.items():
        numbers = [int(row.value or b"") for row in some]
        assert numbers == sorted(numbers)
        assert {encode.murmur2([row.key or b""])[0] % partitions for row in some} == {partition}
    assert sum(map(len, places.values())) == 5000


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (Row(b"", b"", topic="z"), "a row for topic 'z'; the topics are a, b, c"),
        (Row(b"", b"", topic="a", partition=3), r"a row for partition 3 of topic 'a'; it has 3 partitions"),
        (Row(b"", b"", topic="b", partition=-1), r"a row for partition -1 of topic 'b'; it has 300 partitions"),
        (Row(b"", b"", topic=None, partition=1), "a row for topic None"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("others", [0, 5])
def test_a_row_for_no_known_place_is_refused(row: Row, complaint: str, others: int) -> None:
    rows = [*[Row(b"", b"", topic="c", partition=0)] * others, row]
    with pytest.raises(ValueError, match=complaint):
        written([batch_of(rows)], layout(**TOPICS))


def test_rows_by_chance_fill_batches() -> None:
    values = [bytes(1000)] * 3000
    batch = pa.RecordBatch.from_pydict({"key": pa.array([None] * 3000, pa.binary()), "value": pa.array(values)})
    found = written([batch], layout(partitions=(10,), batch_bytes=100_000), 1 << 30)
    assert len(found.pieces) <= 40
    assert len({piece.code for piece in found.pieces}) == 10


def test_a_named_partition_says_nothing_about_the_next_row_by_chance() -> None:
    rows = [Row(None, b"v" * 100, partition=n % 2 or None) for n in range(100)]
    found = written([batch_of(rows, "partition")], layout(partitions=(50,)))
    assert len({piece.code for piece in found.pieces} | {1}) == 2


def large(rows: int, size: int, first: int = 0) -> pa.RecordBatch:
    """Rows of about ``size`` bytes, each with another key."""
    keys = pa.array([b"%010d" % n for n in range(first, first + rows)])
    return pa.RecordBatch.from_pydict({"key": keys, "value": pa.array([bytes(size)] * rows)})


def test_a_batch_is_filled_with_rows_of_several_blocks() -> None:
    batches = [large(100, 20_000, n * 100) for n in range(8)]
    found = written(batches, layout(partitions=(3,), batch_bytes=1_000_000), 32 << 20)
    by_code = [[piece.rows for piece in found.pieces if piece.code == code] for code in range(3)]
    assert [rows[:-1] for rows in by_code] == [[49] * (len(rows) - 1) for rows in by_code]
    numbers = [[int(row.key or b"") for row in rows] for rows in found.by_place().values()]
    assert numbers == [sorted(some) for some in numbers]
    assert sorted(itertools.chain(*numbers)) == list(range(800))


@pytest.mark.parametrize("partitions", [1, 4, 500])
def test_what_is_held_is_bounded(partitions: int) -> None:
    group, before, most, bytes_out = 4 << 20, pa.total_allocated_bytes(), 0, 0

    def out(data: Any) -> None:
        nonlocal most, bytes_out
        most = max(most, pa.total_allocated_bytes() - before)
        bytes_out += len(data)

    def given() -> Iterator[pa.RecordBatch]:
        for n in range(40):
            assert n * 1_000_000 - bytes_out < 2 * group, "rows wait for more than is held at most"
            yield large(1000, 1000, n * 1000)

    write.write(given(), layout(partitions=(partitions,)), out, group)
    assert bytes_out > 40_000_000
    assert most < 4 * group


CHECK = """
import sys, pyarrow as pa
from epochal.sinks.kafka.batches.write import Layout, write
from epochal.sinks.kafka.batches import frame
batches = pa.ipc.open_stream(pa.OSFile(sys.argv[1]))
layout = Layout(("a", "b"), (2, 2), (1000, 1000), sys.argv[2], sys.argv[3], None, None, None)
for piece in write(batches, layout, lambda data: None):
    frame.header(b"", 1, attributes=0, producer_id=1, producer_epoch=1, sequence=0, timestamp_ms=0)
assert frame.lacking() == ""
print(*sorted({name.split(".")[0] for name in sys.modules} & {"pandas", "pyspark", "kafka", "confluent_kafka"}))
"""


@pytest.mark.parametrize(("partitioner", "codec"), [("murmur2_random", "none"), ("random", "lz4"), ("fnv1a", "snappy")])
def test_a_worker_that_writes_loads_no_pandas(tmp_path: Any, partitioner: str, codec: str) -> None:
    rows = [Row(b"k", b"v", [("h", None)], "a", 1), Row(None, None, None, "b"), *[Row(b"key", b"v", [], "b")] * 20]
    batch, file = batch_of(rows), tmp_path / "rows"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    arguments = [sys.executable, "-c", CHECK, str(file), partitioner, codec]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
