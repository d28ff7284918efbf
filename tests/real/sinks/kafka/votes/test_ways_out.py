"""Each error of a vote that votes alone can meet: what its help says leads out."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal.chaos import servers
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import OutcomeUnknown, PrepareRefused, SinkUnavailable
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.kafka import voting
from epochal.sinks.kafka.delivery import encoding, producing
from epochal.sinks.kafka.delivery.encoding import Encoded
from epochal.sinks.kafka.wire.messages import Partition
from epochal.sinks.protocol import CommitOutcome
from epochal.sinks.spark.arrow import BatchBounds
from epochal.sinks.spark.stage import SparkStage
from tests.real.sinks.kafka.attempts import ONE, QUERY
from tests.real.sinks.kafka.support import bar
from tests.real.sinks.kafka.votes.test_votes import MANY, Votes
from tests.real.sinks.spark.workers import SLOW_CHECKSUMS, missing, workers_that_load
from tests.remedies import installed_by

if TYPE_CHECKING:
    from epochal.chaos.servers.toxiproxy import Proxy

pytestmark = pytest.mark.wide
COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED


@pytest.fixture
def one(spark: SparkSession, kafka_server: servers.Kafka, topic: str, stage: SparkStage) -> Iterator[Votes]:
    yield Votes(spark, kafka_server.bootstrap, topic, stage)
    bar(kafka_server.bootstrap, topic)


def check_written(one: Votes, rows: int = 50) -> None:
    """The way out: the epoch is prepared again, and is shown once."""
    assert one.seen() == []
    assert one.sink.commit(one.prepare(0, 0, rows), ONE) is COMMITTED
    assert (one.seen(), one.position()) == (list(range(rows)), 1)


def before(patch: pytest.MonkeyPatch, step: str, do: Callable[[], object]) -> None:
    """Do something before this step of a vote."""
    real = getattr(voting, step)

    def done(*given: Any) -> Any:
        do()
        return real(*given)

    patch.setattr(voting, step, done)


class Mortal(str):
    """A text that kills the process that it is sent to."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return os._exit, (1,)


# the brokers


@pytest.fixture
def behind(one: Votes, kafka_proxy: Proxy) -> Votes:
    """The sink reaches the brokers by a link that can be cut."""
    one.bootstrap, direct = kafka_proxy.address, one.bootstrap
    one.sink = one.another(request_timeout=3)
    one.bootstrap = direct
    one.sink.look(QUERY)
    return one


@pytest.mark.remedy(
    "Kafka at … did not answer the request … in time: …", "start the brokers, or make them reachable from driver"
)
def test_brokers_that_are_away_before_the_vote(
    behind: Votes, kafka_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        before(patch, "opened", kafka_proxy.cut)
        with pytest.raises(SinkUnavailable, match="did not answer the request to write an epoch"):
            behind.prepare(0, 0, 50)
    kafka_proxy.clear()
    check_written(behind)


@pytest.mark.remedy(
    "the commit of transaction … was …: …",
    "start the brokers, or make them reachable from the driver under the addresses that they advertise, then restart",
)
@pytest.mark.parametrize("fault", ["cut", "half_open"])
def test_brokers_that_are_away_after_the_decision(behind: Votes, kafka_proxy: Proxy, fault: str) -> None:
    """Whether the request arrived or not."""
    decided = behind.prepare(0, 0, 50)

    def failing(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.BEFORE_PUBLISH:
            getattr(kafka_proxy, fault)()

    with failpoints.handler(failing), pytest.raises(OutcomeUnknown, match="was asked for and not answered"):
        behind.sink.commit(decided, ONE)
    kafka_proxy.clear()
    assert behind.sink.commit(decided, ONE) is (COMMITTED if fault == "cut" else ALREADY)
    assert (behind.seen(), behind.position()) == (list(range(50)), 1)


@pytest.mark.remedy("another producer ended the transaction of the epoch: …", "end what else uses the transactional id")
def test_another_producer_of_the_transactional_id(one: Votes, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        before(patch, "send_marker", lambda: bar(one.bootstrap, one.topic))
        with pytest.raises(SinkUnavailable, match="another producer ended the transaction"):
            one.prepare(0, 0, 50)
    check_written(one)


# executors and their files


@pytest.mark.remedy(
    "the Spark job that delivers … rows failed: …", "see why executors or their Python workers die (memory"
)
def test_a_worker_that_dies_while_it_delivers(one: Votes, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(session: SparkSession, delivery: producing.Delivery, encoded: Encoded) -> Any:
        return producing.produce(session, replace(delivery, sink=Mortal(delivery.sink)), encoded)

    with monkeypatch.context() as patch:
        patch.setattr(voting, "produce", dying)
        with pytest.raises(SinkUnavailable, match=f"the Spark job that delivers {MANY} rows failed"):
            one.prepare(0, 0, MANY)
    check_written(one, MANY)


LACKING = {"google_crc32c": SLOW_CHECKSUMS, "numpy": missing("numpy")}
BEGUN = {"pyarrow": "No module named 'pyarrow'", "epochal": "Epochal is not installed there"}


@pytest.mark.remedy("the executors' Python on host … cannot load …", "pip install … on that host")
@pytest.mark.parametrize("package", LACKING)
@pytest.mark.parametrize("step", ["encoded_rows", "_produced"])
def test_an_executor_that_joins_without_a_library(one: Votes, tmp_path: Path, package: str, step: str) -> None:
    refused = refused_on_new_workers(one, tmp_path / "joined", package, step)
    assert refused.what.startswith(f"the executors' Python on host {socket.gethostname()} cannot load {package}")
    assert {"numpy", "google-crc32c"} <= installed_by(refused.help)
    check_written(one, MANY)


@pytest.mark.remedy("an executor's Python cannot begin a task of the sink: …", "pip install … on that host")
@pytest.mark.parametrize("package", BEGUN)
@pytest.mark.parametrize("step", ["encoded_rows", "_produced"])
def test_an_executor_that_joins_and_cannot_begin(one: Votes, tmp_path: Path, package: str, step: str) -> None:
    """Then only Spark knows on which host."""
    refused = refused_on_new_workers(one, tmp_path / "joined", package, step)
    assert refused.what.endswith(BEGUN[package])
    assert "pyarrow" in installed_by(refused.help)
    check_written(one, MANY)


def refused_on_new_workers(one: Votes, folder: Path, package: str, step: str) -> PrepareRefused:
    """How an epoch ends if such executors join before this step."""
    with ExitStack() as joined, pytest.MonkeyPatch.context() as patch:
        text = LACKING.get(package, missing(package))
        before(patch, step, lambda: joined.enter_context(workers_that_load(one.spark, folder, package, text)))
        with pytest.raises(PrepareRefused) as refused:
            one.prepare(0, 0, MANY)
    return refused.value


@pytest.mark.remedy(
    "the epoch could not be encoded: …",
    "correct the query, the disk of the checkpoint (space, rights) or the executors",
)
def test_a_disk_that_takes_no_records(one: Votes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file lies where the folder of the records has to be."""
    real, taken = encoding.encode, list[Path]()

    def encode(records: DataFrame, job: encoding.Job, bounds: BatchBounds, held: Mapping[str, str]) -> Encoded:
        taken.append(Path(job.folder))
        taken[0].write_text("taken")
        return real(records, job, bounds, held)

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "encode", encode)
        with pytest.raises(PrepareRefused, match="the epoch could not be encoded") as refused:
            one.prepare(0, 0, MANY)
    assert "File exists" in refused.value.what
    assert taken[0].is_relative_to(tmp_path)
    taken[0].unlink()
    check_written(one, MANY)


def test_owners_get_the_time_that_the_transaction_has_left(one: Votes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second goes by after the transaction has begun."""
    left, real = list[float](), producing.produce

    def produce(session: SparkSession, delivery: producing.Delivery, encoded: Encoded) -> Any:
        left.append(delivery.seconds)
        return real(session, delivery, encoded)

    monkeypatch.setattr(voting, "produce", produce)
    before(monkeypatch, "_produced", lambda: time.sleep(1))
    one.prepare(0, 0, 50)
    assert left[0] <= one.sink._core.timeout(one.sink._core.link()) - 1


@pytest.mark.remedy("the epoch could not be written: …", "restart the query: the epoch is written again")
def test_records_that_are_gone(one: Votes, monkeypatch: pytest.MonkeyPatch) -> None:
    def removing(session: SparkSession, delivery: producing.Delivery, encoded: Encoded) -> Any:
        for its in encoded.batches.values():
            for batch in its:
                Path(str(batch.source)).unlink(missing_ok=True)
        return producing.produce(session, delivery, encoded)

    with monkeypatch.context() as patch:
        patch.setattr(voting, "produce", removing)
        with pytest.raises(PrepareRefused, match="cannot be read"):
            one.prepare(0, 0, MANY)
    check_written(one, MANY)


# what does not add up


def shortened(encoded: Encoded) -> Encoded:
    """Without the last batch of one partition."""
    longest = max(encoded.batches, key=lambda where: len(encoded.batches[where]))
    return Encoded({**encoded.batches, longest: encoded.batches[longest][:-1]})


@pytest.mark.remedy("… rows were encoded, and … were judged", "restart the query")
def test_rows_that_are_not_encoded(one: Votes, monkeypatch: pytest.MonkeyPatch) -> None:
    real = voting.encoded_rows
    with monkeypatch.context() as patch:
        patch.setattr(voting, "encoded_rows", lambda *given: shortened(real(*given)))
        with pytest.raises(PrepareRefused, match="rows were encoded, and 50 were judged"):
            one.prepare(0, 0, 50)
    check_written(one)


@pytest.mark.remedy(
    "…[…] does not hold the … rows that it acknowledged", "restart the query: the epoch is written again"
)
def test_rows_that_a_leader_has_lost(one: Votes, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(session: SparkSession, delivery: producing.Delivery, encoded: Encoded) -> Mapping[Partition, Any]:
        kept = producing.produce(session, delivery, shortened(encoded))
        return {where: replaced._replace(rows=9) for where, replaced in kept.items()}

    one.options["options"] = {"batch.num.messages": 2}
    one.sink = one.another()
    one.sink.look(QUERY)
    with monkeypatch.context() as patch:
        patch.setattr(voting, "produce", losing)
        with pytest.raises(PrepareRefused, match="does not hold the"):
            one.prepare(0, 0, 50)
    check_written(one)
