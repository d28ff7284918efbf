"""Votes whose records are columns of a large copy: workers read them from its files, without Spark's JVM."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Copy
from epochal.coordinator.model.errors import PrepareRefused
from epochal.sinks.kafka import voting
from epochal.sinks.kafka.delivery import encoding
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE
from tests.real.sinks.kafka.support import bar, read_topic
from tests.real.sinks.kafka.votes.test_votes import COMMITTED, Votes

ROWS = 3_000


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every copy counts as large; returns the files that workers read themselves."""
    monkeypatch.setattr(voting, "SMALL_COPY_BYTES", 0)
    seen: list[str] = []
    real = encoding.encode_files

    def noted(session: SparkSession, files: list[str], *more: Any) -> encoding.Encoded:
        seen.extend(files)
        return real(session, files, *more)

    monkeypatch.setattr(encoding, "encode_files", noted)
    return seen


@pytest.fixture
def made(spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> Iterator[Any]:
    yield lambda **options: Votes(spark, kafka_server.bootstrap, topic, stage, **options)
    bar(kafka_server.bootstrap, topic)


def rows_of(spark: SparkSession, name: str = "v") -> DataFrame:
    """Ids in four Spark partitions; every 100th row has bytes that are no text, every 150th has no key."""
    value = (
        "if(id % 100 = 0, concat(X'C328', encode(cast(id as string), 'utf-8')), encode(cast(id as string), 'utf-8'))"
    )
    return spark.range(0, ROWS, 1, 4).selectExpr(
        "if(id % 150 = 0, null, cast(id % 11 as string)) id", f"{value} `{name}`"
    )


def test_records_are_the_bytes_of_the_columns_in_the_order_of_the_rows(
    made: Any, spark: SparkSession, direct: list[str]
) -> None:
    one = made(value="v")
    rows = rows_of(spark)
    vote = one.prepared(0, rows)
    assert len(direct) == 4
    assert one.sink.commit(vote, ONE) is COMMITTED
    wanted = [(row["id"].encode() if row["id"] is not None else None, bytes(row["v"])) for row in rows.collect()]
    found = read_topic(one.bootstrap, one.topic)
    assert sorted(map(repr, ((r.key, r.value) for r in found))) == sorted(map(repr, wanted))
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for record in found:
        assert record.value is not None
        by_key[record.key].append(int(record.value.removeprefix(b"\xc3\x28")))
    for key in map(str, range(11)):  # the tasks follow each other, and within each the order is that of the rows
        assert len(ascents(by_key[key.encode()])) <= 4


def ascents(numbers: list[int]) -> list[list[int]]:
    """The runs in which the numbers rise."""
    found: list[list[int]] = [[]]
    for number in numbers:
        if found[-1] and number < found[-1][-1]:
            found.append([])
        found[-1].append(number)
    return found


def test_a_topic_without_keys(made: Any, spark: SparkSession, direct: list[str]) -> None:
    one = made(value="v", key=None)
    vote = one.prepared(0, rows_of(spark))
    assert len(direct) == 4
    assert one.sink.commit(vote, ONE) is COMMITTED
    found = read_topic(one.bootstrap, one.topic)
    assert {record.key for record in found} == {None}
    assert len(found) == ROWS


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"value": "v.x"}, "v.x"),
        ({"value": "v", "where": "true"}, "v"),
        ({"value": "v", "select": ["id", "v"]}, "v"),
        ({}, "v"),
    ],
)
def test_records_that_need_more_than_the_columns(
    made: Any, spark: SparkSession, direct: list[str], options: dict[str, Any], name: str
) -> None:
    one = made(**options)
    vote = one.prepared(0, rows_of(spark, name))
    assert direct == []
    assert one.sink.commit(vote, ONE) is COMMITTED
    assert len(read_topic(one.bootstrap, one.topic)) == ROWS


def test_a_copy_that_is_damaged_is_no_vote(made: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    one = made(value="v")
    real = voting.encoded_rows

    def damaged(sink: Any, epoch: Any, *more: Any) -> encoding.Encoded:
        copy: Copy = epoch.copy
        file = Path(copy.root.removeprefix("file:")) / copy.files[1].path
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 1
        file.write_bytes(data)
        return real(sink, epoch, *more)

    monkeypatch.setattr(voting, "encoded_rows", damaged)
    with pytest.raises(PrepareRefused, match="the epoch could not be encoded"):
        one.prepared(0, rows_of(spark))
    monkeypatch.setattr(voting, "encoded_rows", real)
    vote = one.prepared(0, rows_of(spark), redo=1)
    assert one.sink.commit(vote, ONE) is COMMITTED
