"""A record of the epoch log comes back as it was, or with a named error; files of this version stay readable."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epochal.checkpoints.log import (
    RECORD_VERSION,
    Apply,
    Commit,
    Entry,
    Evaluations,
    Fence,
    Operator,
    Participant,
    Record,
    SinkPosition,
    SinkStanding,
    decode,
    encode,
)
from epochal.checkpoints.names import decode_floor, encode_floor
from epochal.coordinator.model.epoch import Actor, Committable, Copy, CopyFile, Decision, Digest, Marker, Query
from epochal.coordinator.model.errors import LogCorrupt

DATA = Path(__file__).parent / "log_records"

FENCE = Fence(
    actor=Actor(3, 9_223_372_036_854_775_807),
    query=Query("flights", "11111111-2222", "33333333-4444", "file:///checkpoints/Zürich \U0001f6eb"),
    base=17,
    done_through={"orders": 16, "Umsätze": 15},
)
DECISION = Decision("11111111-2222", 17, Actor(3, 42), "fingerprint-17", redo=1)
COMMIT = Commit(
    decision=DECISION,
    actor=Actor(4, 43),
    participants={
        "orders": Participant(
            "postgres:7301:16385",
            Committable("orders", DECISION, 18, 336_776, {"attempts": [1, 2], "note": 'a\u2028b\n"c" \x00'}),
        ),
        "topic": Participant("kafka:abc:def:ghi", Committable("topic", DECISION, 5, 336_776)),
    },
    offsets='{"flights":{"0":336776}}',
    watermark=1_357_000_000_000,
    copy=Copy("file:///stage/17-3", (CopyFile("part-0.parquet", 1024, 168_388),), '{"type":"struct"}'),
    supersedes=9_223_372_036_854_775_806,
    done_through={"orders": 16},
)
FRAMED = replace(
    COMMIT,
    participants={**COMMIT.participants, "orders": replace(COMMIT.participants["orders"], frame="items")},
    frames={"items": Copy("file:///stage/17-4", (CopyFile("part-0.parquet", 512, 9),), '{"type":"struct"}')},
)
PLAIN = Commit(decision=DECISION, actor=Actor(4, 43), participants={})
APPLY = Apply(
    decision=replace(DECISION, redo=0),
    participants={"orders": SinkPosition("postgres:7301:16385", 18), "topic": SinkPosition("kafka:abc:def:ghi", 5)},
    offsets='{"flights":{"0":336776}}',
    watermark=1_357_000_000_000,
    supersedes=9_223_372_036_854_775_805,
    done_through={"orders": 16, "topic": 16},
)

OPERATOR = Operator(
    actor=Actor(5, 44),
    said={"act": "retire", "sink": "topic", "unreachable": True},
    why="the cluster is gone (Zürich)",
    at="2026-11-23T12:00:00+00:00",
    stands={
        "topic": SinkStanding("kafka:abc:def:ghi", (Marker(5, 42), None), 17, away=True),
        "orders": SinkStanding("postgres:7301:16385", (Marker(18, 9_223_372_036_854_775_804),), -1),
    },
    place="file:///checkpoints/moved",
    fences=(Actor(3, 9_223_372_036_854_775_807),),
    expected=18,
    evaluations=Evaluations(17, ("orders",)),
    done_through={"orders": 17},
)


# --- there and back -----------------------------------------------------------------------------

integers = st.integers(0, (1 << 63) - 1)
names = st.text(min_size=1, max_size=20)
plain_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
actors = st.builds(Actor, integers, integers)
decisions = st.builds(Decision, names, integers, actors, names, integers)
committables = st.builds(
    Committable,
    names,
    decisions,
    integers,
    integers,
    st.dictionaries(st.text(), plain_json, max_size=3),
    digest=st.none() | st.builds(Digest, integers, integers),
)
copies = st.builds(Copy, names, st.lists(st.builds(CopyFile, names, integers, integers)).map(tuple), st.text())
done = st.dictionaries(names, integers, max_size=3)
fences = st.builds(Fence, actors, st.builds(Query, names, names, names, names), integers, names, done)
commits = st.builds(
    Commit,
    decisions,
    actors,
    st.dictionaries(names, st.builds(Participant, names, committables, st.just("") | names), max_size=3),
    st.text(),
    st.none() | st.integers(),
    st.none() | copies,
    st.none() | integers,
    done,
    frames=st.dictionaries(names, copies, max_size=2),
)
applies = st.builds(
    Apply,
    decisions,
    st.dictionaries(names, st.builds(SinkPosition, names, integers), max_size=3),
    st.text(),
    st.none() | st.integers(),
    st.none() | integers,
    done,
)
markers = st.none() | st.builds(Marker, integers, integers)
stands = st.builds(SinkStanding, names, st.lists(markers, max_size=3).map(tuple), st.integers(-1, 100), st.booleans())
operators = st.builds(
    Operator,
    actors,
    st.dictionaries(st.text(), plain_json, max_size=3),
    st.text(),
    st.text(),
    st.dictionaries(names, stands, max_size=3),
    st.none() | names,
    st.lists(actors, max_size=3).map(tuple),
    st.none() | integers,
    st.none() | st.builds(Evaluations, integers, st.lists(names, max_size=3).map(tuple)),
    done,
)
records: st.SearchStrategy[Record] = st.one_of(fences, commits, applies, operators)


@pytest.mark.slow
@given(records)
@settings(max_examples=150, deadline=None)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    data = encode(record)
    assert decode(data, "here") == record
    assert data.count(b"\n") == 1, "one record is one line"
    assert data.endswith(b"\n")


@given(st.lists(records, max_size=4), st.integers(0, 50))
@settings(max_examples=50, deadline=None)
def test_a_floor_comes_back_as_it_was(kept: list[Record], start: int) -> None:
    entries = [Entry(start + 2 * n, record) for n, record in enumerate(kept)]
    floor = start + 2 * len(kept)
    assert decode_floor(encode_floor(floor, entries), floor, "here") == entries


# --- torn, changed, foreign, newer --------------------------------------------------------------


@pytest.mark.parametrize("record", [FENCE, COMMIT, APPLY, OPERATOR])
def test_every_torn_record_is_refused(record: Record) -> None:
    data = encode(record)
    for length in range(len(data)):
        for torn in (data[:length], data[:length] + bytes(len(data) - length)):
            with pytest.raises(LogCorrupt, match="here is not a whole record of the epoch log"):
                decode(torn, "here")


def test_every_torn_floor_is_refused() -> None:
    data = encode_floor(9, [Entry(2, FENCE), Entry(7, COMMIT)])
    for length in range(len(data)):
        for torn in (data[:length], data[:length] + bytes(len(data) - length)):
            with pytest.raises(LogCorrupt, match="here is not a whole floor of the epoch log"):
                decode_floor(torn, 9, "here")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_changed_byte_is_noticed(data: st.DataObject) -> None:
    whole = bytearray(encode(COMMIT))
    index = data.draw(st.integers(0, len(whole) - 1))
    whole[index] ^= data.draw(st.integers(1, 255))
    with pytest.raises(LogCorrupt):
        decode(bytes(whole), "here")


FLOOR = encode_floor(9, [Entry(2, FENCE)])


@given(index=st.integers(0, len(FLOOR) - 1), bits=st.integers(1, 255))
@example(index=FLOOR.index(b"1"), bits=1)  # the version
@settings(max_examples=200, deadline=None)
def test_a_changed_byte_of_a_floor_is_noticed(index: int, bits: int) -> None:
    whole = bytearray(FLOOR)
    whole[index] ^= bits
    with pytest.raises(LogCorrupt):
        decode_floor(bytes(whole), 9, "here")


def test_a_record_or_floor_ends_with_its_line() -> None:
    """White space in the place of the line's end would still be JSON."""
    with pytest.raises(LogCorrupt, match="torn or foreign"):
        decode(encode(COMMIT)[:-1] + b" ", "here")
    with pytest.raises(LogCorrupt):
        decode_floor(FLOOR[:-1] + b" ", 9, "here")


def sealed(body: str) -> bytes:
    """``body`` with a checksum that fits."""
    return f"{hashlib.sha256(body.encode()).hexdigest()[:16]} {body}\n".encode()


FOREIGN_RECORDS: list[tuple[object, object]] = [
    ("verdict", FENCE.to_json()),
    (None, FENCE.to_json()),
    (["fence"], FENCE.to_json()),
    ("fence", COMMIT.to_json()),
    ("commit", FENCE.to_json()),
    ("commit", APPLY.to_json()),
    ("apply", COMMIT.to_json() | {"participants": {"orders": {"identity": "postgres:7301:16385"}}}),
    ("fence", None),
    ("fence", []),
    ("fence", FENCE.to_json() | {"query": 7}),
    ("commit", "text"),
    ("commit", COMMIT.to_json() | {"participants": []}),
    ("commit", COMMIT.to_json() | {"done_through": None}),
    ("operator", OPERATOR.to_json() | {"stands": {"orders": None}}),
]
FOREIGN_BODIES = ["", "7", "null", "[]", "{}", '{"version": 1}', '{"version": "one"}'] + [
    json.dumps({"version": 1, "kind": kind, "record": record}) for kind, record in FOREIGN_RECORDS
]


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"{}", b'{"id":"a spark file"}\n', b"v1\n{}", b"\xff\xfe\x00", b"PAR1" * 100]
    + [sealed(body) for body in FOREIGN_BODIES],
)
def test_what_is_foreign_is_refused_whatever_it_is(data: bytes) -> None:
    with pytest.raises(LogCorrupt, match="here is not a whole record") as raised:
        decode(data, "here")
    assert f"{len(data)} bytes" in str(raised.value)
    assert raised.value.definite


def test_a_newer_record_says_which_version_it_needs() -> None:
    outer = {"version": RECORD_VERSION + 1, "kind": "treaty", "record": {"of": "the future"}}
    with pytest.raises(LogCorrupt, match=f"here is a record of version {RECORD_VERSION + 1}") as raised:
        decode(sealed(json.dumps(outer)), "here")
    assert f"this one reads up to version {RECORD_VERSION}" in str(raised.value)
    assert raised.value.help == "start the query with the newer Epochal"


def test_a_newer_committable_inside_says_so() -> None:
    inner = COMMIT.to_json()
    inner["participants"]["orders"]["committable"]["version"] = 99
    with pytest.raises(LogCorrupt, match="committable of version 99"):
        decode(sealed(json.dumps({"version": 1, "kind": "commit", "record": inner})), "here")


# --- files that this version wrote --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("fence-v1.record", FENCE),
        ("commit-v1.record", COMMIT),
        ("plain-v1.record", PLAIN),
        ("apply-v1.record", APPLY),
        ("operator-v2.record", OPERATOR),
        ("commit-v3.record", FRAMED),
    ],
)
def test_records_of_each_version_stay_readable_and_are_what_is_written(name: str, record: Record) -> None:
    data = (DATA / name).read_bytes()
    assert decode(data, name) == record
    assert encode(record) == data


def test_floors_of_version_1_stay_readable_and_are_what_is_written() -> None:
    entries = [Entry(2, FENCE), Entry(7, COMMIT)]
    data = (DATA / "floor-v1.floor").read_bytes()
    assert decode_floor(data, 9, "floor-v1.floor") == entries
    assert encode_floor(9, entries) == data
