"""Epochs of idempotent mode: rows and digest in one job, and what is found in it before anything is visible."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from epochal.chaos import servers
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Decision, Digest, Epoch
from epochal.coordinator.model.errors import (
    Fenced,
    Misconfigured,
    NonDeterministicReplay,
    OutcomeUnknown,
    PrepareRefused,
    SinkUnavailable,
)
from epochal.coordinator.model.failpoints import AnswerDropped, FailpointError, Point
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.kafka import KafkaSink, applying, produce
from epochal.sinks.kafka.applying import unanswered
from epochal.sinks.kafka.committing import LOSSES
from epochal.sinks.kafka.produce import AttemptResult, Evaluation, ObjectionCount, Outcome, Plan
from epochal.sinks.kafka.rows import HASH, KEPT, MET
from epochal.sinks.kafka.transaction import Transaction
from epochal.sinks.protocol import Applied, CommitOutcome
from epochal.sinks.rows.digest import row_hash
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, PATIENT_S, QUERY, TWO, Target, rows
from tests.real.sinks.kafka.support import hanging, read_topic, set_max_message_bytes
from tests.real.sinks.kafka.test_attempt import once, raising, seen, until_expired

FAILURES = 1  # of a task, after which the job of these tests is over
COMMITTED, ALREADY_COMMITTED = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED


@dataclass
class Job:
    """A sink that is fenced once it has written."""

    server: servers.Kafka
    topic: str
    sink: KafkaSink
    fenced: bool = False

    def start(self, df: DataFrame) -> None:
        self.sink.create(QUERY, df.schema)
        self.sink.check(QUERY, df.schema)
        self.sink.look(QUERY)
        self.sink.fence(QUERY, ONE)
        self.fenced = True

    def give(self, df: DataFrame, number: int = 0, agreed: Digest | None = None) -> Applied:
        if not self.fenced:
            self.start(df)
        epoch = Epoch(Decision("q1", number, ONE, f"f{number}"), number + 1, digest=True)
        return self.sink.apply(epoch, df, ONE, agreed)

    def refuses(self, df: DataFrame, number: int = 0) -> str:
        """What is said; nothing is visible, and nothing is left open."""
        before = self.values()
        with pytest.raises(PrepareRefused) as refused:
            self.give(df, number)
        assert self.values() == before
        assert hanging(self.server.bootstrap, self.topic) == []
        return str(refused.value)

    def values(self, topic: str = "") -> list[str | None]:
        records = read_topic(self.server.bootstrap, topic or self.topic)
        return [r.value.decode() if r.value is not None else None for r in records]

    def digest(self) -> Digest | None:
        marker = self.sink.look(QUERY).marker
        return marker.digest if marker is not None else None


Make = Callable[..., Job]


@pytest.fixture
def make(kafka_server: servers.Kafka, topic: str) -> Make:
    def made(**options: Any) -> Job:
        settings = {"topic": topic, "name": topic, **options}
        return Job(kafka_server, topic, KafkaSink(kafka_server.bootstrap, **settings))

    return made


def digest_of(df: DataFrame) -> Digest:
    return Digest.of(row[0] for row in df.select(row_hash(df)).collect())


# what is written


def test_rows_of_one_partition_keep_their_order_and_all_are_in_the_digest(spark: SparkSession, make: Make) -> None:
    job = make(value="v")
    df = spark.range(400, numPartitions=4).selectExpr("string(id) AS v", "id")
    assert job.give(df) == Applied(COMMITTED, digest_of(df))
    found = [int(value or "") for value in job.values()]
    assert sorted(found) == list(range(400))
    for part in range(4):
        mine = [n for n in found if n // 100 == part]
        assert mine == sorted(mine)
    again = df.select(f.raise_error(f.lit("evaluated again")).cast("string").alias("v"), "id")
    assert job.give(again) == Applied(ALREADY_COMMITTED, digest_of(df))


def test_the_marker_says_how_many_rows_were_written(spark: SparkSession, make: Make, topic: str) -> None:
    job = make(where="id > 3")
    job.give(spark.range(9).toDF("id"))
    last = json.loads(read_topic(job.server.bootstrap, f"__epochal.flights.{topic}")[-1].value or b"")
    assert (last["version"], last["marker"]["digest"]["rows"], last["epoch"]["rows"]) == (3, 9, 5)


def test_rows_that_are_left_out_count_and_nothing_is_computed_of_them(spark: SparkSession, make: Make) -> None:
    """Neither an expression that has no result, nor JSON, nor a key, nor a value of theirs matters."""
    select = [
        "*",
        "10 div n AS q",
        "IF(n = 0, string(raise_error('computed')), 'x') AS `odd name`",
        "n AS m",
        "inner.*",
    ]
    job = make(select=select, where="n <> 0", key="k", topic_config={"cleanup.policy": "compact"})
    rows_ = [("a", 5, 1.0, (1,)), (None, 0, float("nan"), (0,)), ("b", None, float("inf"), None), ("c", 2, 2.0, (2,))]
    df = spark.createDataFrame(rows_, "k string, n int, d double, inner struct<i:int>").coalesce(1)
    assert job.give(df) == Applied(COMMITTED, digest_of(df))
    assert job.values() == [
        '{"k":"a","n":5,"d":1.0,"inner":{"i":1},"q":2,"odd name":"x","m":5,"i":1}',
        '{"k":"c","n":2,"d":2.0,"inner":{"i":2},"q":5,"odd name":"x","m":2,"i":2}',
    ]
    assert job.give(df.where("n = 0"), 1).digest == digest_of(df.where("n = 0"))
    assert len(job.values()) == 2


def test_each_row_goes_where_it_says(spark: SparkSession, make: Make, topic: str) -> None:
    names = [topic, f"{topic}-2"]
    job = make(topic="dest", topics=names, partitions=2, partition="p", headers="h", key="k", name=topic)
    df = spark.createDataFrame(
        [("a", names[0], 1), ("b", names[1], None), ("c", names[1], 0)], "k string, dest string, p int"
    )
    df = df.withColumn("h", f.expr("map_entries(map('h', k))")).coalesce(1)
    assert job.give(df) == Applied(COMMITTED, digest_of(df))
    assert [(r.partition, r.key) for r in read_topic(job.server.bootstrap, names[0])] == [(1, b"a")]
    assert sorted(r.key or b"" for r in read_topic(job.server.bootstrap, names[1])) == [b"b", b"c"]
    last = json.loads(read_topic(job.server.bootstrap, f"__epochal.flights.{topic}")[-1].value or b"")
    assert sorted(last["targets"]) == names


def test_tombstones_are_written_when_they_are_asked_for(spark: SparkSession, make: Make) -> None:
    df = spark.createDataFrame([("a", "1"), ("b", None)], "k string, v string").coalesce(1)
    job = make(key="k", value="v", tombstones=True, where="k <> 'c'")
    assert job.give(df) == Applied(COMMITTED, digest_of(df))
    assert job.values() == ["1", None]


def told(row: Mapping[str, Any], topic: str) -> bytes:
    assert row["n"], "asked of a row that the sink does not get"
    return f"{topic} {row['n']} {row['at'].tzinfo} {row['at'].hour}".encode()


def test_a_function_makes_values_of_the_rows_that_the_sink_gets(spark: SparkSession, make: Make, topic: str) -> None:
    """In UTC, whatever the zone of the session is."""
    df = spark.range(3).selectExpr("id AS n", "timestamp_seconds(id * 3600) AS at").coalesce(1)
    job = make(value=lambda: told, where="n > 0")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        assert job.give(df).digest == digest_of(df)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert job.values() == [f"{topic} 1 UTC 1", f"{topic} 2 UTC 2"]


def test_it_is_one_transaction_also_where_spark_allows_no_barrier(
    spark: SparkSession, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.sinks.kafka.applying.may_use_barrier", lambda _: False)
    job = make()
    df = spark.range(20, numPartitions=3).toDF("id")
    assert job.give(df) == Applied(COMMITTED, digest_of(df))
    assert len(job.values()) == 20


# what is refused, with nothing visible


HEADER = "array(named_struct('key', {}, 'value', 'b')) AS h"
REFUSED: dict[
    str, tuple[dict[str, Any], list[str], list[str], str]
] = {  # options, what is taken, what is not, the words
    "json": (
        {},
        ["double(id) AS d"],
        ["IF(id < 2, double('NaN'), 1.0D) AS d"],
        "JSON cannot hold these values exactly: 2 rows, for instance in column 'd'",
    ),
    "tombstone": (
        {"value": "v"},
        ["'x' AS v"],
        ["IF(id = 0, NULL, 'x') AS v"],
        "1 rows have no value (column 'v' is NULL)",
    ),
    "large": (
        {"value": "v", "topic_config": {"max.message.bytes": "10100"}},
        ["'x' AS v"],
        ["repeat('x', int(id) * 9000) AS v"],
        "1 rows are larger than topic '{topic}' takes: the largest has 18000 bytes, the limit is 10000",
    ),
    "no key": (
        {"key": "k", "topic_config": {"cleanup.policy": "compact"}},
        ["'x' AS k"],
        ["IF(id = 0, NULL, 'x') AS k"],
        "1 rows have no key (column 'k' is null), and topic '{topic}' is compacted",
    ),
    "topic": (
        {"topic": "t", "topics": ["{topic}"]},
        ["'{topic}' AS t", "id"],
        ["IF(id = 0, 'elsewhere', '{topic}') AS t", "id"],
        "1 rows are for topics that are not declared (column 't'): 'elsewhere'",
    ),
    "partition": (
        {"partition": "p"},
        ["int(0) AS p", "id"],
        ["int(id) AS p", "id"],
        "2 rows are for partitions that do not exist (column 'p'): 1; '{topic}' has 1",
    ),
    "header": (
        {"headers": "h"},
        [HEADER.format("'a'"), "id"],
        [HEADER.format("string(NULL)"), "id"],
        "3 rows have a header without a key (column 'h')",
    ),
    "key of a header": (
        {"headers": "h"},
        [HEADER.format("'a'"), "id"],
        [HEADER.format("decode(x'610062', 'utf-8')"), "id"],
        "3 rows have a header whose key holds a NUL or is not UTF-8 (column 'h')",
    ),
    "expression": ({"select": ["1 div id AS q"]}, ["id + 1 AS id"], ["id"], "[DIVIDE_BY_ZERO]"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_vote_would_have_refused_is_refused_and_nothing_is_visible(
    spark: SparkSession, make: Make, topic: str, what: str
) -> None:
    options, good, bad, says = json.loads(json.dumps(REFUSED[what]).replace("{topic}", topic))
    job, some = make(**{"name": topic, **options}), spark.range(3, numPartitions=2).toDF("id")
    said = job.refuses(some.selectExpr(*bad))
    assert says in said
    assert "nothing of the epoch is visible" in said
    assert job.sink.look(QUERY).marker is None
    job.sink.close()  # as a restart does: it forgets what was evaluated
    job.sink.look(QUERY)
    taken = some.selectExpr(*good)
    assert job.give(taken) == Applied(COMMITTED, digest_of(taken))
    assert len(job.values()) == 3


def fails(row: Mapping[str, Any], _topic: str) -> bytes:
    raise KeyError(f"no schema for {row['id']}")


def test_a_function_that_makes_no_value_refuses_the_epoch(spark: SparkSession, make: Make) -> None:
    said = make(value=lambda: fails).refuses(spark.range(3, numPartitions=1).toDF("id"))
    assert "value= made no value of 3 rows, and was not called again: KeyError: 'no schema for 0'" in said


def test_a_query_that_fails_is_refused_and_nothing_is_visible(spark: SparkSession, make: Make, tmp_path: Path) -> None:
    """As often as a task may die; an expression without a result is not tried again."""
    calls = tmp_path / "calls"

    def broken(_: int) -> int:
        with calls.open("a") as file:
            file.write(".")
        raise ValueError("broken for good")

    job = make()
    df = spark.range(1, numPartitions=1).select("id", f.udf(broken, "int", useArrow=False)("id").alias("n"))
    said = job.refuses(df)
    assert "the Spark job that evaluates and produces the rows failed" in said
    assert "broken for good" in said
    assert len(calls.read_text()) == LOSSES * FAILURES


@pytest.mark.wide
@pytest.mark.remedy(
    "the Spark job that evaluates and produces the rows failed: …", "correct what Spark names, and restart"
)
def test_a_query_that_was_corrected_goes_on(spark: SparkSession, make: Make) -> None:
    def broken(_: int) -> int:
        raise ValueError("broken for good")

    job, given = make(), spark.range(1, numPartitions=1)
    assert "broken for good" in job.refuses(given.select("id", f.udf(broken, "int", useArrow=False)("id").alias("n")))
    job.sink.close()  # as a restart does
    job.sink.look(QUERY)
    assert job.give(given.select("id", f.col("id").cast("int").alias("n"))).outcome is COMMITTED
    assert job.values() == ['{"id":0,"n":0}']


@pytest.mark.remedy(
    "slots=… would write an epoch in … transactions, and in idempotent mode there is no decision that holds them"
    " together",
    'take slots=1, with a transaction_timeout= that an epoch fits in, or leave mode="idempotent" out',
)
def test_slots_are_refused_when_the_pipeline_is_made(make: Make, topic: str) -> None:
    with pytest.raises(Misconfigured, match="slots=2 would write an epoch in 2 transactions") as refused:
        Pipeline(app="flights", sinks=[make(slots=2).sink], mode="idempotent")
    assert (refused.value.sink, "take slots=1" in str(refused.value)) == (topic, True)
    Pipeline(app="flights", sinks=[make(slots=2).sink])
    Pipeline(app="flights", sinks=[make().sink], mode="idempotent")


@pytest.mark.remedy(
    "the sink was written in … slots before, each of which has a marker of its own, and in idempotent mode there is no"
    " decision that holds them together",
    'leave mode="idempotent" out, or give the sink another name= (its readers are the same)',
)
def test_a_sink_that_was_written_in_slots_is_refused(
    spark: SparkSession, make: Make, stage: SparkStage, topic: str
) -> None:
    df = spark.range(2).toDF("id")
    make(slots=2).start(df)
    job = make()
    assert "was written in 2 slots before" in job.refuses(df)
    with pytest.raises(Misconfigured, match="was written in 2 slots before"):
        job.sink.check_apply()  # as a start asks after its look
    epoch = Epoch(Decision("q1", 0, ONE, "f0"), 1, copy=(copy := stage.write(0, ONE, df)))
    assert job.sink.commit(job.sink.prepare(epoch, stage.read(copy), ONE), ONE) is COMMITTED
    assert make(name=f"{topic}-2").give(df).outcome is COMMITTED
    assert len(job.values()) == 4


@pytest.mark.remedy(
    "under …=… times have another text than the one that is promised", 'set … to …, or leave mode="idempotent" out'
)
def test_another_text_of_times_is_refused(spark: SparkSession, make: Make) -> None:
    key = "spark.sql.legacy.timeParserPolicy"
    df = spark.range(1).selectExpr("timestamp_micros(id + 123456) AS at", "'x' AS v")
    job = make()
    try:
        spark.conf.set(key, "LEGACY")
        assert f"under {key}=LEGACY" in job.refuses(df)
        assert make(value="v").give(df).outcome is COMMITTED  # of bytes nothing else can be made
        assert "LEGACY" in make(value="v", where="at > '2000'").refuses(df, number=1)
        spark.conf.set(key, "CORRECTED")
        assert job.give(df, 1).outcome is COMMITTED
    finally:
        spark.conf.unset(key)
    assert job.values() == ["x", '{"at":"1970-01-01T00:00:00.123456Z","v":"x"}']


def test_a_topic_that_was_made_anew_is_refused(spark: SparkSession, make: Make, topic: str) -> None:
    job, df = make(), spark.range(2).toDF("id")
    job.start(df)
    job.server.delete_topic(topic)
    job.server.create_topic(topic)
    assert "is not the one that was looked at" in job.refuses(df)


def test_columns_that_fit_no_more_are_refused(spark: SparkSession, make: Make) -> None:
    job, df = make(key="k"), spark.range(2).selectExpr("string(id) AS k")
    job.start(df)
    assert "there is no column 'k' to be the key" in job.refuses(df.toDF("id"))


# attempts, without Spark


def evaluation(values: Sequence[str], met: Sequence[Any] = ()) -> Evaluation:
    """Of rows whose hash is their first letter, in batches of one."""

    def batch(value: str, met: Any) -> pa.RecordBatch:
        columns = {"key": pa.array([value.encode()]), "value": pa.array([value.encode()])}
        mets = pa.array([met], pa.struct([("number", pa.int32()), ("shown", pa.string())]))
        return pa.RecordBatch.from_pydict({**columns, HASH: [ord(value[0])], KEPT: [True], MET: mets})

    return Evaluation(map(batch, values, met or [None] * len(values)))


AB = Digest(2, ord("a") + ord("b"))


@pytest.fixture
def target(kafka_server: servers.Kafka, topic: str) -> Target:
    return Target(kafka_server.bootstrap, topic)


def planned(target: Target, **more: Any) -> Plan:
    """Epoch 0, applied."""
    return replace(target.plan(0, ()), rows=None, **more)


def tried(target: Target, *values: str, **more: Any) -> AttemptResult:
    return produce.attempt(planned(target, **more), evaluation(values))


def nothing(target: Target) -> bool:
    return (seen(target), target.position(), hanging(target.bootstrap, target.topic)) == ([], 0, [])


def test_the_answer_tells_the_digest_of_the_marker(target: Target) -> None:
    assert tried(target, "a", "b", agreed=AB) == AttemptResult(Outcome.COMMITTED, digest=AB)
    assert tried(target, "c") == AttemptResult(Outcome.ALREADY_COMMITTED, digest=AB)
    assert seen(target) == ["a", "b"]


def test_other_rows_than_were_agreed_are_aborted_before_their_commit(target: Target) -> None:
    answer = tried(target, "a", "c", agreed=AB)
    assert isinstance(answer.error, NonDeterministicReplay)
    assert nothing(target)
    assert tried(target, "b", "a", agreed=AB).outcome is Outcome.COMMITTED


def test_what_is_objected_to_is_not_committed(target: Target) -> None:
    """Whichever row it is, and rows of batches before it are not either."""
    records = evaluation("ab", met=[None, {"number": 3, "shown": "12"}])
    assert produce.attempt(planned(target), records) == AttemptResult(
        Outcome.STOPPED, digest=AB, met=ObjectionCount(3, 1, "12")
    )
    assert nothing(target)


def test_a_fenced_task_writes_nothing(target: Target) -> None:
    target.sink.fence(QUERY, TWO)
    assert isinstance(tried(target, "a").error, Fenced)
    assert seen(target) == []


@pytest.mark.parametrize("point", [Point.IN_WRITE, Point.BEFORE_PUBLISH])
@pytest.mark.parametrize(
    ("error", "kind"), [(FailpointError("boom"), PrepareRefused), (AnswerDropped("gone"), SinkUnavailable)]
)
def test_what_fails_before_the_commit_leaves_nothing(
    target: Target, point: Point, error: Exception, kind: type[Exception]
) -> None:
    with once(point, raising(error)) as struck:
        answer = tried(target, "a", "b")
    assert struck
    assert isinstance(answer.error, kind)
    assert answer.digest == (AB if point is Point.BEFORE_PUBLISH else None)
    assert nothing(target)


@pytest.mark.remedy(
    "the rows cannot be produced into …: …",
    "remove what the broker objects to (rights, settings of the topic), then restart the query",
)
def test_what_the_broker_takes_no_more_is_refused(target: Target) -> None:
    set_max_message_bytes(target.bootstrap, target.topic, 3_000)
    answer = tried(target, "a", "b" * 10_000)
    assert isinstance(answer.error, PrepareRefused)
    assert "MSG_SIZE_TOO_LARGE" in str(answer.error)
    assert nothing(target)
    set_max_message_bytes(target.bootstrap, target.topic, 1_000_000)
    assert tried(target, "a", "b" * 10_000).outcome is Outcome.COMMITTED


@pytest.mark.parametrize("error", [AnswerDropped("gone"), FailpointError("boom")])
def test_the_marker_tells_what_a_lost_answer_was(target: Target, error: Exception) -> None:
    with once(Point.AFTER_PUBLISH, raising(error)) as struck:
        assert tried(target, "a", "b") == AttemptResult(Outcome.COMMITTED, digest=AB)
    assert struck
    assert seen(target) == ["a", "b"]


def test_a_twin_that_came_first_has_the_say(target: Target) -> None:
    """Its rows are shown, so its digest it is."""

    def twin() -> None:
        assert tried(target, "x").outcome is Outcome.COMMITTED

    with once(Point.BEFORE_PUBLISH, twin) as struck:
        assert tried(target, "a", "b") == AttemptResult(Outcome.COMMITTED, digest=Digest(1, ord("x")))
    assert struck
    assert seen(target) == ["x"]


class InProcess(KafkaSink):
    """Evaluates without Spark: what each attempt finds is given."""

    found: list[Sequence[str]]

    def show(self, plan: Plan, *found: Sequence[str], agreed: Digest | None = None) -> Applied:
        self.found = list(found)
        none: Any = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(applying, "evaluate_once", self._evaluate_once)
            return applying.apply_until_shown(self._core, plan, none, (), agreed)

    def _evaluate_once(self, _: object, plan: Plan, *__: object) -> AttemptResult:
        return produce.attempt(plan, evaluation(self.found.pop(0)))


@pytest.fixture
def sink(target: Target) -> InProcess:
    made = InProcess(target.bootstrap, topic=target.topic, name=target.topic)
    made.look(QUERY)
    return made


def intrude(target: Target) -> None:
    intruder = Transaction(target.link, target.marker_topic, 60, {})
    intruder.init()
    intruder.drop()


@pytest.mark.parametrize("point", [Point.IN_WRITE, Point.BEFORE_PUBLISH])
def test_an_interrupted_epoch_is_evaluated_again(target: Target, sink: InProcess, point: Point) -> None:
    with once(point, lambda: intrude(target)):
        assert sink.show(planned(target), "ab", "ba") == Applied(COMMITTED, AB)
    assert seen(target) == ["b", "a"]


def test_a_second_evaluation_is_held_against_the_first(target: Target, sink: InProcess) -> None:
    """Of which the rows are known, though nothing was there to agree with."""
    with (
        once(Point.BEFORE_PUBLISH, lambda: intrude(target)),
        pytest.raises(NonDeterministicReplay, match="2 rows, ") as no,
    ):
        sink.show(planned(target), "ab", "abc")
    assert "3 rows, " in str(no.value)
    assert nothing(target)


@pytest.mark.timeout(300)
def test_after_an_expired_transaction_as_well(target: Target, sink: InProcess) -> None:
    plan = planned(target, transaction_timeout=4.0)
    with once(Point.BEFORE_PUBLISH, lambda: until_expired(target)), pytest.raises(NonDeterministicReplay):
        sink.show(plan, "ab", "c")
    assert nothing(target)
    assert sink.show(plan, "ba") == Applied(COMMITTED, AB)


def test_and_when_the_coordinator_asks_again(target: Target, sink: InProcess) -> None:
    with once(Point.BEFORE_PUBLISH, raising(AnswerDropped("gone"))), pytest.raises(SinkUnavailable):
        sink.show(planned(target), "ab")
    with pytest.raises(NonDeterministicReplay):
        sink.show(planned(target), "ac")
    assert sink.show(planned(target), "ac", agreed=Digest(2, ord("a") + ord("c"))).outcome is COMMITTED
    other = replace(planned(target), decision=7, position=2, epoch=1)
    assert sink.show(other, "x").outcome is COMMITTED  # another epoch has other rows


@pytest.mark.timeout(300)
def test_a_transaction_that_takes_too_long_twice_is_refused(target: Target, sink: InProcess) -> None:
    def wait_for_the_broker(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.IN_WRITE:
            until_expired(target)

    with failpoints.handler(wait_for_the_broker), pytest.raises(PrepareRefused) as refused:
        sink.show(planned(target, transaction_timeout=1.0), "a", "a")
    assert "the rows could not be produced within the transaction timeout of 1 s, 2 times" in str(refused.value)
    assert "decided" not in str(refused.value)
    assert nothing(target)


def test_options_that_are_taken_no_more_refuse_the_epoch(target: Target, sink: InProcess) -> None:
    odd = replace(target.link, options={"no.such.option": "1"})
    with pytest.raises(PrepareRefused, match=r"no\.such\.option"):
        sink.show(planned(target, link=odd), "a")


# a job that gave no answer


def test_of_a_dead_job_the_marker_tells_what_it_did(target: Target) -> None:
    lost = RuntimeError("the executor is gone")
    answer = unanswered(planned(target), lost)
    assert answer.outcome is Outcome.LOST
    assert isinstance(answer.error, PrepareRefused)
    assert "the executor is gone" in str(answer.error)
    tried(target, "a", "b")
    assert unanswered(planned(target), lost) == AttemptResult(Outcome.COMMITTED, digest=AB)
    target.sink.fence(QUERY, TWO)
    assert isinstance(unanswered(planned(target), lost).error, Fenced)


def test_of_a_dead_job_nothing_is_visible_later(target: Target) -> None:
    """Its task is alive when it is asked for, and finds itself out."""

    def asked() -> None:
        assert unanswered(planned(target), RuntimeError("lost")).outcome is Outcome.LOST

    with once(Point.BEFORE_PUBLISH, asked):
        assert tried(target, "a").outcome is Outcome.INTERRUPTED
    assert nothing(target)


@pytest.mark.wide
@pytest.mark.remedy(
    "the Spark job that evaluates and produces the rows failed: …",
    "restart the query: the marker is asked before anything is written",
)
def test_of_a_dead_job_nothing_is_known_without_the_marker(kafka_server: servers.Kafka, topic: str) -> None:
    target = Target(kafka_server.bootstrap, topic)
    kafka_server.crash()
    target.set_timeout(3)
    assert isinstance(unanswered(planned(target), RuntimeError("lost")).error, OutcomeUnknown)
    kafka_server.start()
    target.set_timeout(PATIENT_S)
    assert unanswered(planned(target), RuntimeError("lost")).outcome is Outcome.LOST  # nothing is visible, so:
    assert tried(target, "a", "b").outcome is Outcome.COMMITTED
    assert tried(target, "a", "b").outcome is Outcome.ALREADY_COMMITTED


def test_rows_of_an_attempt_are_what_they_were(target: Target) -> None:
    """A commit from a copy is not touched by any of this."""
    assert target.commit(0, rows("a")) == AttemptResult(Outcome.COMMITTED)
    assert target.state().marker is not None
    assert json.loads(read_topic(target.bootstrap, target.marker_topic.topic)[-1].value or b"")["version"] == 1
