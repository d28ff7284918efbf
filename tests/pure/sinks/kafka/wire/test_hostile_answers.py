"""Whatever a broker answers, it is a value or ``AnswerNotUnderstood``, and soon."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.sinks.kafka.wire import messages as m
from epochal.sinks.kafka.wire.errors import AnswerNotUnderstood
from epochal.sinks.kafka.wire.primitives import Reader, array, compact_array, int32, int64, string, varint

READERS: dict[str, Callable[[Reader], Any]] = {
    request.name: getattr(m, "read_" + "".join(f"_{c.lower()}" if c.isupper() else c for c in request.name)[1:])
    for request in m.REQUESTS
}
ANSWERS = {
    "ApiVersions": b"\0\0" + array([b"\0\x03\0\0\0\x09"]),
    "FindCoordinator": int32(0) + b"\0\0\xff\xff" + int32(1) + string("host") + int32(9092),
    "Metadata": int32(0)
    + array([int32(1) + string("host") + int32(9092) + b"\xff\xff"])
    + b"\xff\xff"
    + int32(1)
    + array([b"\0\0" + string("t") + b"\0" + array([b"\0\0" + int32(0) * 2 + int32(5) + array([]) * 3])]),
    "Produce": array([string("t") + array([int32(0) + b"\0\0" + int64(7) * 3 + array([]) + b"\xff\xff"])]) + int32(0),
    "SaslHandshake": b"\0\0" + array([string("PLAIN")]),
    "SaslAuthenticate": b"\0\0\xff\xff" + int32(1) + b"x" + int64(0),
    "InitProducerId": int32(0) + b"\0\0" + int64(5) + b"\0\1",
    "AddPartitionsToTxn": int32(0) + array([string("t") + array([int32(0) + b"\0\0"])]),
    "EndTxn": int32(0) + b"\0\0",
    "DescribeProducers": int32(0)
    + compact_array([b"\x02t" + compact_array([int32(0) + b"\0\0\0" + compact_array([]) + b"\0"]) + b"\0"])
    + b"\0",
    "DescribeTransactions": int32(0)
    + compact_array([b"\0\0\x02x\x02s" + int32(0) + int64(0) * 2 + b"\0\0" + compact_array([]) + b"\0"])
    + b"\0",
    "ListTransactions": int32(0)
    + b"\0\0"
    + compact_array([b"\x02y"])
    + compact_array([b"\x02x" + int64(5) + b"\x02s\0"])
    + b"\0",
}
WHOLE = [pytest.param(READERS[name], answer, id=name) for name, answer in ANSWERS.items()]


def understood(read: Callable[[Reader], Any], data: bytes) -> bool:
    """Whether an answer is read; any other error than that it is not, and any long wait, fails the test."""
    started = time.process_time()
    refused: AnswerNotUnderstood | None = None
    try:
        read(Reader(data, 1, 2))
    except AnswerNotUnderstood as error:
        refused = error
    assert time.process_time() - started < 1
    assert refused is None or (refused.api, refused.version, refused.data) == (1, 2, data[:32])
    return refused is None


def test_every_answer_has_a_reader_and_an_example() -> None:
    assert set(ANSWERS) == set(READERS) == {request.name for request in m.REQUESTS}


@pytest.mark.parametrize(("read", "answer"), WHOLE)
def test_an_answer_that_is_cut_or_too_long_is_not_understood(read: Callable[[Reader], Any], answer: bytes) -> None:
    assert understood(read, answer)
    assert [length for length in range(len(answer)) if understood(read, answer[:length])] == []
    assert not understood(read, answer + b"\0")


@pytest.mark.parametrize(("read", "answer"), WHOLE)
@given(data=st.data())
def test_an_answer_with_other_bytes_is_a_value_or_not_understood(
    read: Callable[[Reader], Any], answer: bytes, data: st.DataObject
) -> None:
    changed = bytearray(answer)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    understood(read, bytes(changed))


@pytest.mark.parametrize("read", [pytest.param(read, id=name) for name, read in READERS.items()])
@given(data=st.binary(max_size=200))
@example(b"\x7f\xff\xff\xff" * 20)
@example(b"\xff" * 100)
@example(b"\0" * 200)
def test_any_bytes_are_a_value_or_not_understood(read: Callable[[Reader], Any], data: bytes) -> None:
    understood(read, data)


@pytest.mark.parametrize(
    ("read", "data", "what"),
    [
        (lambda reader: reader.array(reader.int8), int32(2**31 - 1) + b"x", "an array claims 2147483647 items in 1"),
        (lambda reader: reader.array(reader.int8), int32(-1), "an array claims -1 items"),
        (lambda reader: reader.compact_array(reader.int8), b"\0", "an array claims -1 items"),
        (Reader.string, b"\xff\xff", "a text is null"),
        (Reader.nullable_string, b"\xff\xfe", "a text has the length -2"),
        (Reader.string, b"\0\1\xff", "a text is not UTF-8"),
        (Reader.string, b"\0\5ab", "the answer ends 3 bytes too early, at byte 4"),
        (Reader.octets, int32(-1), "bytes have the length -1"),
        (Reader.varint, b"\xff" * 6, "a varint has more than 32 bits"),
        (Reader.varint, b"\xff\xff\xff\xff\x7f", "a varint has more than 32 bits"),
        (Reader.skip_tags, b"\xff\xff\xff\xff\x0f", "the answer ends"),
    ],
)
def test_a_length_is_compared_with_what_is_there(read: Callable[[Reader], Any], data: bytes, what: str) -> None:
    with pytest.raises(AnswerNotUnderstood, match=what):
        read(Reader(data))


def test_an_answer_that_is_not_understood_shows_its_first_bytes() -> None:
    error = AnswerNotUnderstood("it ends too early", b"\x01\x02" + b"\0" * 1000, 26, 2)
    assert str(error).startswith("it ends too early (API 26, version 2, the answer begins with 0102000")
    assert len(str(error)) < 150


@given(st.integers(0, 2**32 - 1))
def test_a_varint_is_read_as_it_was_written(value: int) -> None:
    assert Reader(varint(value)).varint() == value


def test_a_pause_that_a_broker_asks_for_is_reported() -> None:
    told: list[int] = []
    m.read_end_txn(Reader(int32(70) + b"\0\0", throttled=told.append))
    m.read_end_txn(Reader(int32(0) + b"\0\0", throttled=told.append))
    m.read_produce(Reader(array([]) + int32(5), throttled=told.append))
    assert told == [70, 5]
