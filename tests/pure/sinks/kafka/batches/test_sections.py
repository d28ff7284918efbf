"""Codecs, cuts and headers: what is between rows and batches."""

from __future__ import annotations

import gzip
import pickle
import random
import sys
import warnings
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from epochal.sinks.kafka.batches import frame
from epochal.sinks.kafka.batches.compress import CODECS, LZ4_HEAD, SNAPPY_HEAD, Codec, expand
from epochal.sinks.kafka.batches.cut import Begun, cut
from epochal.sinks.kafka.batches.records import encode_one
from tests.pure.sinks.kafka.batches.support import layout

LEVELS = [(codec, level) for codec in CODECS for level in (None, -1, 0, 1, 5, 99)]
EASY = b"epochal" * 1_500_000  # three blocks of lz4
HARD = random.Random(1).randbytes(100_000)


@pytest.mark.parametrize(("codec", "level"), LEVELS)
def test_what_is_compressed_is_the_same_once_expanded(codec: str, level: int | None) -> None:
    easy = EASY if level is None else EASY[:70_000]
    small, attributes = Codec(codec, level).squeeze(memoryview(easy))
    assert expand(bytes(small), attributes | frame.TRANSACTIONAL) == easy
    stored = codec == "none" or (codec, level) == ("gzip", 0)
    assert attributes == (0 if stored else CODECS[codec])
    assert (len(small) < len(easy) / 2) is not stored


@pytest.mark.parametrize("data", [b"", b"x", HARD])
@pytest.mark.parametrize("codec", [None, *CODECS])
def test_what_gets_no_smaller_stays_as_it_is(codec: str | None, data: bytes) -> None:
    assert Codec(codec).squeeze(data) == (data, 0)


@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_a_block_that_gets_no_smaller_among_others_that_do(codec: str) -> None:
    mixed = bytes(4 << 20) + random.Random(2).randbytes(4 << 20) + bytes(1000)
    small, attributes = Codec(codec).squeeze(mixed)
    assert len(small) < len(mixed)
    assert expand(bytes(small), attributes) == mixed


def test_each_codec_writes_the_form_that_brokers_take() -> None:
    heads = {codec: bytes(Codec(codec).squeeze(EASY)[0][:16]) for codec in CODECS}
    assert heads["snappy"] == SNAPPY_HEAD == bytes.fromhex("82534e41505059000000000100000001")
    assert heads["lz4"].startswith(LZ4_HEAD)
    assert heads["zstd"].startswith(bytes.fromhex("28b52ffd"))
    assert gzip.decompress(bytes(Codec("gzip").squeeze(EASY)[0])) == EASY


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_lie_in_several_places_are_one_section(codec: str) -> None:
    parts, attributes = Codec(codec).squeeze_parts([EASY[:10], memoryview(EASY)[10:500], EASY[500:9000]])
    assert expand(b"".join(parts), attributes) == EASY[:9000]
    assert attributes == CODECS[codec]
    assert Codec(codec).squeeze_parts([HARD]) == ([HARD], 0)


def test_records_in_another_form_of_snappy_are_refused() -> None:
    with pytest.raises(ValueError, match="do not begin as snappy-java writes them"):
        expand(b"anything else", CODECS["snappy"])


# --- Cuts ----------------------------------------------------------------------------------------------


def cut_by_hand(sizes: list[int], limit: int, most_rows: int | None) -> list[int]:
    batches: list[list[int]] = []
    for size in sizes:
        full = not batches or len(batches[-1]) == most_rows
        if full or frame.HEADER_BYTES + sum(batches[-1]) + size > limit:
            batches.append([])
        batches[-1].append(size)
    return [len(batch) for batch in batches]


SIZES = st.lists(st.integers(7, 300), max_size=60)


@given(SIZES, SIZES, st.integers(0, 700), st.none() | st.integers(1, 9))
def test_cuts_are_greedy_whenever_the_rows_come(
    first: list[int], then: list[int], limit: int, most_rows: int | None
) -> None:
    counts = cut(np.array(first, np.int32), limit, most_rows)
    assert counts == cut_by_hand(first, limit, most_rows)
    last = first[len(first) - counts[-1] :] if counts else []
    more = cut(np.array(then, np.int32), limit, most_rows, Begun(sum(last), len(last)))
    if counts and more:
        counts[-1] += more.pop(0)
    assert counts + more == cut_by_hand(first + then, limit, most_rows)


@pytest.mark.parametrize(("limit", "counts"), [(260, [1, 1]), (261, [2]), (161, [1, 1]), (160, [1, 1])])
def test_a_batch_may_have_exactly_the_largest_size(limit: int, counts: list[int]) -> None:
    assert cut(np.array([100, 100]), limit, None) == counts


def test_a_row_that_is_too_large_travels_alone() -> None:
    assert cut(np.array([10, 10, 5000, 10, 10]), 100, None) == [2, 1, 2]


# --- Headers -------------------------------------------------------------------------------------------

IDS = {"producer_id": 2**40, "producer_epoch": 32_000, "sequence": 2**31 + 5, "timestamp_ms": 2**41}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_header_is_read_as_it_was_made(kind: Any) -> None:
    section = encode_one([(b"k", b"v"), (None, None)])
    made = frame.header(kind(section), 2, attributes=frame.TRANSACTIONAL, **IDS)
    assert len(made) == frame.HEADER_BYTES == 61
    batch = DefaultRecordBatch(made + section)
    assert batch.validate_crc()
    assert batch.size_in_bytes == len(made) + len(section)
    assert (batch.base_offset, batch.leader_epoch, batch.magic) == (0, -1, 2)
    assert (batch.producer_id, batch.producer_epoch) == (2**40, 32_000)
    assert (batch.base_sequence, batch.last_sequence) == (5, 6)
    assert (batch.first_timestamp, batch.max_timestamp) == (2**41, 2**41)
    assert (batch.is_transactional, batch.is_control_batch, batch.compression_type) == (True, False, 0)


def test_a_sequence_begins_again_behind_the_largest_one_within_a_batch_too() -> None:
    section = encode_one([(None, b"")] * 3)
    last = DefaultRecordBatch(frame.header(section, 3, attributes=0, **IDS | {"sequence": 2**31 - 1}) + section)
    assert (last.base_sequence, last.last_sequence) == (2**31 - 1, 1)
    next_ = DefaultRecordBatch(frame.header(section, 3, attributes=0, **IDS | {"sequence": 2**31 + 2}) + section)
    assert next_.base_sequence == 2


def test_a_library_that_is_missing_or_slow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert frame.lacking() == ""
    with monkeypatch.context() as patch:
        patch.setattr(google_crc32c, "implementation", "python")
        assert frame.lacking().startswith("google_crc32c with its C extension")
    for library in frame.LIBRARIES:
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("error")
            patch.setitem(sys.modules, library, None)
            assert frame.lacking().startswith(f"{library}: ")


def test_a_layout_counts_partitions_over_all_topics_and_can_be_pickled() -> None:
    three = layout(topics=("a", "b", "c"), partitions=(3, 1, 2), limits=(500, 2_000_000, 2_000_000))
    places = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1)]
    assert [three.partition_of(code) for code in range(6)] == places
    assert [three.code_of("abc".index(topic), partition) for topic, partition in places] == list(range(6))
    assert [three.batch_bytes_of(topic) for topic in range(2)] == [500, 1_000_000]
    assert layout(limits=(0,)).batch_bytes_of(0) == 1
    again = pickle.loads(pickle.dumps(three))
    assert again == three
    assert again.partition_of(4) == ("c", 0)
