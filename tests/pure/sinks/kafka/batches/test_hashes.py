"""Hashes and partitions of keys, all at once, against those of other implementations, one by one."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import default

from epochal.sinks.kafka import arguments, encode
from epochal.sinks.kafka.batches import hashes, partitioner
from epochal.sinks.kafka.batches.partitioner import Partitioner
from tests.pure.sinks.kafka.batches.support import inside

KEYS = st.lists(st.none() | st.binary(max_size=12) | st.binary(min_size=30, max_size=70), min_size=1, max_size=60)
KINDS = st.sampled_from([pa.binary(), pa.large_binary()])
UNEQUAL = [bytes(n % 251 for n in range(length)) for length in (*range(40), *range(0, 4000, 37))]
SIZES = np.full(1000, 100, np.int32)


def fnv1a(key: bytes) -> int:
    found = 0x811C9DC5
    for byte in key:
        found = (found ^ byte) * 0x01000193 % (1 << 32)
    return min(found, (1 << 32) - found)


def check(keys: list[bytes | None], kind: pa.DataType) -> None:
    column, given = inside(pa.array(keys, kind)), [key or b"" for key in keys]
    assert hashes.murmur2(column).tolist() == encode.murmur2(given)
    assert hashes.murmur2(column).tolist() == [default.murmur2(key) & 0x7FFFFFFF for key in given]
    assert hashes.crc32(column).tolist() == [zlib.crc32(key) for key in given]
    assert hashes.fnv1a(column).tolist() == [fnv1a(key) for key in given]


@given(KEYS, KINDS)
def test_keys_of_all_kinds(keys: list[bytes | None], kind: pa.DataType) -> None:
    check(keys, kind)


def test_keys_of_many_lengths_and_some_that_are_much_longer_than_all_others() -> None:
    check([*UNEQUAL, *map(bytes, range(0, 3000, 27)), None, bytes(50_003)][::-1], pa.binary())


def test_more_keys_than_are_hashed_at_once() -> None:
    check([b"%07d" % n for n in range(70_000)], pa.binary())


def test_every_partitioner_of_the_sink_is_implemented() -> None:
    assert sorted(partitioner.VECTORISED) == sorted(arguments.PARTITIONERS)


@pytest.mark.parametrize("name", [name for name in partitioner.VECTORISED if name != "random"])
def test_keys_of_topics_with_different_partitions(name: str) -> None:
    keys = pa.array([b"key %d" % n for n in range(1000)])
    topics = np.arange(1000) % 3
    chosen = Partitioner(name, (1, 7, 12), (1000, 1000, 1000)).choose(keys, topics, SIZES)
    for topic, count in enumerate((1, 7, 12)):
        alone = Partitioner(name, (count,), (1000,)).choose(keys, 0, SIZES)
        assert (chosen == alone)[topics == topic].all()
        assert set(alone.tolist()) == set(range(count))


@pytest.mark.parametrize("name", ["murmur2", "fnv1a", "consistent"])
def test_no_key_is_an_empty_key_where_nothing_is_random(name: str) -> None:
    without, empty = (pa.array([key] * 1000, pa.binary()) for key in (None, b""))
    chosen = Partitioner(name, (7,), (1000,)).choose(without, 0, SIZES).tolist()
    assert chosen == Partitioner(name, (7,), (1000,)).choose(empty, 0, SIZES).tolist()
    assert len(set(chosen)) == 1


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("random", b"k"),
        ("random", None),
        ("murmur2_random", None),
        ("fnv1a_random", None),
        ("consistent_random", None),
        ("consistent_random", b""),
    ],
)
def test_rows_by_chance_fill_one_partition_after_the_other(name: str, key: bytes | None) -> None:
    one = Partitioner(name, (5,), (1000,))
    column = pa.array([key] * 1000, pa.binary())
    chosen = np.concatenate([one.choose(column[:333], 0, SIZES[:333]), one.choose(column[333:], 0, SIZES[333:])])
    runs = np.split(chosen, np.flatnonzero(np.diff(chosen)) + 1)
    assert [len(run) for run in runs] == [10] * 100
    assert len({(int(run[0]) - place) % 5 for place, run in enumerate(runs)}) == 1


def test_the_first_partition_by_chance_is_not_always_the_same() -> None:
    column = pa.array([None], pa.binary())
    first = Counter(int(Partitioner("random", (4,), (1000,)).choose(column, 0, SIZES[:1])[0]) for _ in range(200))
    assert set(first) == set(range(4))


@pytest.mark.parametrize("name", ["murmur2_random", "fnv1a_random"])
def test_an_empty_key_is_a_key(name: str) -> None:
    empty = pa.array([b""] * 1000)
    chosen = Partitioner(name, (7,), (1000,)).choose(empty, 0, SIZES).tolist()
    assert chosen == Partitioner(name.removesuffix("_random"), (7,), (1000,)).choose(empty, 0, SIZES).tolist()


def test_each_topic_fills_its_own_partitions() -> None:
    one = Partitioner("random", (3, 4), (1000, 500))
    topics = np.arange(1000) % 2
    chosen = one.choose(pa.array([None] * 1000, pa.binary()), topics, SIZES)
    for topic, rows in ((0, 10), (1, 5)):
        runs = np.split(chosen[topics == topic], np.flatnonzero(np.diff(chosen[topics == topic])) + 1)
        assert {len(run) for run in runs} == {rows}
