"""Copies that consist of record batches: how they are written, read again, and what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from epochal.chaos import servers
from epochal.coordinator.model.epoch import Committable, Copy, Decision, Epoch
from epochal.coordinator.model.errors import CommitInDoubt, PrepareRefused, SinkUnavailable
from epochal.sinks.kafka import again, committing, voting
from epochal.sinks.kafka.delivery import encoding, index, producing
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY
from tests.real.sinks.kafka.support import bar
from tests.real.sinks.kafka.votes.test_votes import MANY, Staged

COMMITTED = CommitOutcome.COMMITTED


@pytest.fixture
def one(spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> Iterator[Staged]:
    yield Staged(spark, kafka_server.bootstrap, topic, stage)
    bar(kafka_server.bootstrap, topic)


def epoch_of(number: int = 0) -> Epoch:
    return Epoch(Decision("q1", number, ONE, f"fingerprint-{number}"), number + 1, "{}", None)


def staged(one: Staged, rows: DataFrame) -> Epoch:
    copy = one.sink.stage(epoch_of(), rows, one.stage.reserve(0, ONE))
    assert copy is not None
    one.stage.keep(0, copy)
    return replace(epoch_of(), copy=copy)


def file_of(committable: Committable, name: str) -> Path:
    copy = Copy.from_json(committable.payload["copy"])
    return Path(copy.root.removeprefix("file://")) / name


def lost(one: Staged, committable: Committable) -> Committable:
    """The same, after its transaction was ended."""
    bar(one.bootstrap, one.topic)
    return committable


def test_a_copy_has_the_rows_of_one_evaluation_and_a_redo_shows_these(one: Staged) -> None:
    rows = one.rows(0, MANY).withColumn("made", f.expr("uuid()"))
    decided = one.prepared(0, rows)
    copy = Copy.from_json(decided.payload["copy"])
    assert (copy.form, copy.rows) == (index.FORM, MANY)
    assert len(copy.files) > 1
    assert one.sink.commit(lost(one, decided), ONE) is COMMITTED
    assert one.seen() == list(range(MANY))


def test_a_small_copy_is_one_file(one: Staged) -> None:
    decided = one.prepare(0, 0, 50)
    assert [file.path for file in Copy.from_json(decided.payload["copy"]).files] == [index.INDEX]


def test_an_epoch_of_some_hundred_kilobytes_is_one_file_and_the_driver_sends_it(
    one: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the bound that users have
    monkeypatch.setattr(producing, "dealt", pytest.fail)  # what tasks would send
    decided = one.prepared(0, one.rows(0, MANY).coalesce(1))
    copy = Copy.from_json(decided.payload["copy"])
    assert [file.path for file in copy.files] == [index.INDEX]
    assert 256 << 10 < copy.files[0].length < encoding.INLINE_BYTES
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert one.seen() == list(range(MANY))


@pytest.mark.remedy(
    "topics have changed since the rows of the durable copy were judged",
    "restart the query: the epoch is evaluated again",
)
def test_rows_that_were_judged_for_other_topics_are_no_vote(one: Staged) -> None:
    epoch = staged(one, one.rows(0, 50))
    one.sink._core.watched = None  # as in a process that has not judged them
    with pytest.raises(PrepareRefused, match="topics have changed"):
        one.sink.prepare(epoch, None, ONE)
    assert one.sink.commit(one.prepare(0, 0, 50), ONE) is COMMITTED


@pytest.mark.remedy(
    "the epoch cannot be written as a vote any more, and its durable copy serves nothing else: …",
    "restart the query: the epoch is evaluated again, and copied as rows",
)
def test_what_forbids_votes_after_the_copy_refuses_the_epoch(one: Staged) -> None:
    epoch = staged(one, one.rows(0, 50))
    one.sink._core.workers_lack = "the executors' Python cannot load google_crc32c"
    with pytest.raises(PrepareRefused, match="cannot be written as a vote any more"):
        one.sink.prepare(epoch, None, ONE)
    again_ = one.prepare(0, 0, 50)
    assert again_.payload["version"] == 1
    assert one.sink.commit(again_, ONE) is COMMITTED
    assert one.seen() == list(range(50))


@pytest.mark.remedy(
    "the epoch is decided, and cannot be written as it was prepared: …",
    "start once with the arguments and options that the epoch was prepared with",
)
def test_an_option_that_forbids_votes_is_taken_back_for_a_decided_epoch(one: Staged) -> None:
    decided = lost(one, one.prepare(0, 0, 50))
    other = one.another(options={"sasl.kerberos.service.name": "kafka"})
    other.look(QUERY)
    with pytest.raises(CommitInDoubt, match="cannot be written as it was prepared"):
        other.commit(decided, ONE)
    before = one.another()
    before.look(QUERY)
    assert before.commit(decided, ONE) is COMMITTED
    assert one.seen() == list(range(50))


@pytest.mark.remedy(
    "the index of the durable copy cannot be read: …: …", "restore this file from a backup of the checkpoint"
)
def test_a_damaged_index_is_named(one: Staged) -> None:
    decided = lost(one, one.prepare(0, 0, 50))
    path = file_of(decided, index.INDEX)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"batches"', b'"botches"'))
    with pytest.raises(CommitInDoubt, match="cannot be read"):
        one.sink.commit(decided, ONE)
    path.write_bytes(whole)
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert one.seen() == list(range(50))


@pytest.mark.remedy(
    "the durable copy was changed before the vote: …", "restart the query: the epoch is evaluated again"
)
def test_an_index_that_is_damaged_before_the_decision_refuses_the_epoch(one: Staged) -> None:
    """Nothing is in doubt then."""
    epoch = staged(one, one.rows(0, 50))
    assert epoch.copy is not None
    path = Path(epoch.copy.root.removeprefix("file://")) / index.INDEX
    whole = path.read_bytes()
    for damaged in (whole.replace(b'"batches"', b'"botches"'), whole[:-1]):
        one.sink._core.staged = None  # as if another process had written the copy
        path.write_bytes(damaged)
        with pytest.raises(PrepareRefused, match=r"cannot be read|are missing or changed") as refused:
            one.sink.prepare(epoch, one.spark.range(0), ONE)
        assert "nothing of the epoch was decided" in str(refused.value)
        assert "the epoch is evaluated again" in refused.value.help
    redone = replace(epoch, decision=replace(epoch.decision, redo=1))
    with pytest.raises(CommitInDoubt):
        voting.staged_rows(one.sink._core, redone)
    assert one.sink.commit(one.prepare(0, 0, 50), ONE) is COMMITTED
    assert one.seen() == list(range(50))


def test_a_damaged_file_is_named_and_nothing_of_it_is_sent(one: Staged) -> None:
    decided = lost(one, one.prepare(0, 0, MANY))
    name = Copy.from_json(decided.payload["copy"]).files[1].path
    path = file_of(decided, name)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"n":3', b'"n":4'))
    with pytest.raises(CommitInDoubt, match="has other bytes"):
        one.sink.commit(decided, ONE)
    path.write_bytes(whole[:-1])
    with pytest.raises(CommitInDoubt, match="are missing or changed"):
        one.sink.commit(decided, ONE)
    assert one.seen() == []
    path.write_bytes(whole)
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert one.seen() == list(range(MANY))


@pytest.mark.remedy(
    "the index of the durable copy could not be written: …",
    "correct the disk of the checkpoint (space, rights), and restart",
)
def test_a_folder_that_cannot_be_made_refuses_the_epoch(one: Staged) -> None:
    folder = one.stage.reserve(0, ONE)
    local = Path(folder.removeprefix("file://"))
    local.parent.mkdir(parents=True)
    local.write_bytes(b"a file where the folder should be")
    with pytest.raises(PrepareRefused, match="could not be written"):
        one.sink.stage(epoch_of(), one.rows(0, 50), folder)
    os.remove(local)
    assert one.sink.commit(one.prepare(0, 0, 50), ONE) is COMMITTED


@pytest.mark.remedy(
    "the epoch could not be encoded: …",
    "correct the query, the disk of the checkpoint (space, rights) or the executors, whichever caused the error",
)
def test_a_query_that_fails_is_named_by_its_first_cause(one: Staged) -> None:
    wrong = one.rows(0, 50).withColumn("n", f.expr("cast(raise_error('the query is wrong') as bigint)"))
    with pytest.raises(PrepareRefused, match="the query is wrong"):
        one.prepared(0, wrong)
    assert one.sink.commit(one.prepare(0, 0, 50), ONE) is COMMITTED


@pytest.mark.remedy(
    "another producer of … ended the transaction of the epoch",
    "end what else uses this transactional id, and restart the query",
)
def test_a_redo_that_is_interrupted_is_made_again(one: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    decided = lost(one, one.prepare(0, 0, 50))
    ended_by = committing.ended_by

    def interrupted(*given: object) -> CommitOutcome | None:
        bar(one.bootstrap, one.topic)
        return ended_by(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(again, "ended_by", interrupted)
        with pytest.raises(SinkUnavailable, match="another producer"):
            one.sink.commit(decided, ONE)
    assert one.seen() == []
    assert one.sink.commit(decided, ONE) is COMMITTED
    assert one.seen() == list(range(50))


def test_rows_that_meet_an_objection_are_refused_in_the_words_of_the_objection(one: Staged) -> None:
    sink = one.another(partition="place")
    sink.look(QUERY)
    rows = one.rows(0, 50).withColumn("place", f.expr("if(n = 3, 99, 0)"))
    with pytest.raises(PrepareRefused, match="7 rows are for partitions that do not exist"):
        sink.stage(epoch_of(), rows, one.stage.reserve(0, ONE))
