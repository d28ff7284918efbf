"""The log on an object store keeps the contract, and everything that is special about such a store.

The store is the kit's stand-in: it shows what happens if answers are lost, late or wrong.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("obstore")

from epochal.chaos.contract.logs import ProcessContract, commit, fence, filled
from epochal.chaos.servers import objects
from epochal.chaos.servers.objects import ACCESS_KEY, BUCKET, CUT, SECRET_KEY, Answer, Fault, ObjectServer
from epochal.checkpoints.bucket import Bucket
from epochal.checkpoints.log import Entry, EpochLog, encode
from epochal.checkpoints.names import LISTINGS, floor_name, record_name
from epochal.checkpoints.objects import ObjectLog
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.errors import EpochalError, LogCorrupt, Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import FailpointError, Point
from tests.remedies import installed_by

URL = f"s3a://{BUCKET}/checkpoint/epochal/log"
FOLDER = "checkpoint/epochal/log/"
LATE = commit(77, token=99)
QUICK: dict[str, Any] = {
    "client_options": {"timeout": "1s"},
    "retry_config": {"max_retries": 2, "backoff": {"init_backoff": timedelta(milliseconds=5)}},
}
PATIENT: dict[str, Any] = {"client_options": {"timeout": "60s"}}
"""For a request during which the server has much done to it: a slow machine takes its time."""
NEVER: dict[str, Any] = {"client_options": {"timeout": "1s"}, "retry_config": {"max_retries": 0}}
"""The client repeats nothing."""


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    """A store without objects."""
    with ObjectServer() as started:
        yield started


def opened(server: ObjectServer, **options: Any) -> ObjectLog:
    return ObjectLog(URL, **{**server.options, **QUICK, **options})


@pytest.fixture
def log(server: ObjectServer) -> ObjectLog:
    """A log with short waits."""
    return opened(server)


class TestObjectLog(ProcessContract):
    @pytest.fixture
    def open_log(self, server: ObjectServer) -> Callable[[], EpochLog]:
        return lambda: ObjectLog(URL, **server.options)

    @pytest.fixture
    def source(self, server: ObjectServer) -> str:
        return f"from epochal.checkpoints.objects import ObjectLog; log = ObjectLog({URL!r}, **{server.options!r})"


@pytest.mark.wide
class TestObjectLogInSmallPages(TestObjectLog):
    @pytest.fixture
    def server(self) -> Iterator[ObjectServer]:
        with ObjectServer() as started:
            started.page = 2
            yield started


def key(name: str) -> str:
    return FOLDER + name


# --- what lies in the store -----------------------------------------------------------------------------


def test_reading_asks_for_a_listing_alone(server: ObjectServer, log: ObjectLog) -> None:
    assert list(log.read()) == []
    assert {method for method, _ in server.requests} == {"GET"}
    assert server.objects == {}
    assert ObjectLog(URL).describe() == ObjectLog(f"{URL}/").describe() == f"objects:{URL}"
    assert log.describe() == f"objects:{URL} at {server.endpoint}"


def test_the_names_are_positions_and_nothing_else_is_left(server: ObjectServer, log: ObjectLog) -> None:
    entries = filled(log, 5)
    log.compact(2, entries[:1])
    log.compact(3, entries[:1])
    assert server.names(FOLDER) == [f"{n:020}.{kind}" for n, kind in [(3, "floor"), (3, "record"), (4, "record")]]


def test_every_put_is_one_request_with_the_condition(server: ObjectServer, log: ObjectLog) -> None:
    """Also a large one: a part of an upload has no condition, and the stand-in refuses it."""
    large = commit(0, padding="x" * 12_000_000)
    assert log.append(0, large)
    puts = [key for method, key in server.requests if method == "PUT"]
    assert puts.count(key(record_name(0))) == 1
    assert log.read()[0].record == large


def test_each_attempt_has_a_token_of_its_own(server: ObjectServer) -> None:
    tokens = set()
    for _ in range(3):
        server.objects.clear()
        assert opened(server).append(0, fence())
        token, _, record = server.objects[key(record_name(0))].partition(b" ")
        assert record == encode(fence())
        tokens.add(token)
    assert len(tokens) == 3
    assert {len(token) for token in tokens} == {32}


def test_records_go_before_older_floors(server: ObjectServer, log: ObjectLog) -> None:
    """Else an append whose listing misses a floor could find its record still there."""
    entries = filled(log, 6)
    log.compact(2, entries[:1])
    server.requests.clear()
    log.compact(5, entries[:1])
    gone = [asked for method, asked in server.requests if method == "DELETE"]
    assert gone == [*(key(record_name(n)) for n in (2, 3, 4)), key(floor_name(2))]


def test_a_lower_floor_writes_nothing(server: ObjectServer, log: ObjectLog) -> None:
    entries = filled(log, 6)
    log.compact(4, entries[:1])
    server.requests.clear()
    for floor in (3, 4):
        log.compact(floor, entries[:1])
    assert {method for method, _ in server.requests} == {"GET"}


def test_a_log_beside_it_is_another_one(server: ObjectServer, log: ObjectLog) -> None:
    beside = ObjectLog(URL + "-2", **server.options)
    filled(log, 3)
    filled(beside, 2)
    assert len(log.read()) == 3
    assert len(beside.read()) == 2


@pytest.mark.parametrize("folder", ["with blank/log", "100%/log", "a%20b/log", "größe+1/log", "x=1/log"])
def test_a_path_is_taken_as_it_is_written(server: ObjectServer, folder: str) -> None:
    assert ObjectLog(f"s3a://{BUCKET}/{folder}", **server.options).append(0, fence())
    assert server.names() == [f"{folder}/{record_name(0)}"]
    assert len(ObjectLog(f"s3a://{BUCKET}/{folder}/", **server.options).read()) == 1


@pytest.mark.parametrize("name", ["part-0.parquet", "0.record", "sub/00000000000000000001.record"])
def test_a_foreign_object_is_named(server: ObjectServer, log: ObjectLog, name: str) -> None:
    filled(log, 2)
    server.objects[key(name)] = b""
    for verb in (log.read, lambda: log.append(2, commit(1)), lambda: log.compact(1, [])):
        with pytest.raises(LogCorrupt, match=f"holds a foreign file: '{name}'"):
            verb()


@pytest.mark.parametrize("name", ["", ".try-out.1", ".DS_Store"])
def test_marks_of_folders_and_hidden_names_are_ignored(server: ObjectServer, log: ObjectLog, name: str) -> None:
    """``hadoop fs -mkdir`` leaves an empty object whose name ends with a slash."""
    entries = filled(log, 2)
    server.objects[key(name)] = b""
    assert list(log.read()) == entries
    assert log.append(2, commit(1))


def test_a_lost_record_is_a_gap(server: ObjectServer, log: ObjectLog) -> None:
    filled(log, 4)
    del server.objects[key(record_name(2))]
    with pytest.raises(LogCorrupt, match="has no record at position 2, but one at 3"):
        log.read()


@pytest.mark.parametrize("length", [0, 1, 32, 33, 40, -1])
@pytest.mark.parametrize("name", [record_name(2), floor_name(2)])
def test_a_torn_object_is_named(server: ObjectServer, log: ObjectLog, name: str, length: int) -> None:
    entries = filled(log, 4)
    log.compact(2, entries[:1])
    server.objects[key(name)] = server.objects[key(name)][:length]
    kind = name.rpartition(".")[2]
    with pytest.raises(LogCorrupt, match=f"{URL}/{name} is not a whole {kind} of the epoch log"):
        log.read()


def test_a_folder_that_vanished_is_not_an_empty_log(server: ObjectServer, log: ObjectLog) -> None:
    filled(log, 2)
    kept = dict(server.objects)
    server.objects.clear()
    for verb in (log.read, lambda: log.append(2, commit(1)), lambda: log.append(0, fence())):
        with pytest.raises(LogCorrupt, match="is gone"):
            verb()
    server.objects.update(kept)
    assert log.append(2, commit(1))


# --- answers that are lost or wrong ---------------------------------------------------------------------


@pytest.mark.parametrize("answer", [CUT, 409, 412, 500, 503])
@pytest.mark.parametrize("options", [QUICK, NEVER], ids=["repeats", "never repeats"])
def test_a_put_that_landed_is_found_whatever_the_answer_says(
    server: ObjectServer, options: dict[str, Any], answer: int
) -> None:
    log = opened(server, **options)
    filled(log, 1)
    server.break_next(Fault(answer=answer))
    assert log.append(1, commit(0)), "it is this attempt's record"
    assert list(log.read()) == [Entry(0, fence()), Entry(1, commit(0))]


@pytest.mark.parametrize("answer", [CUT, 500, 503])
def test_a_put_that_did_not_land_is_repeated_by_the_client(server: ObjectServer, log: ObjectLog, answer: int) -> None:
    filled(log, 1)
    server.break_next(Fault(answer=answer, lands=False))
    assert log.append(1, commit(0))


@pytest.mark.parametrize("answer", [CUT, 403, 409, 412, 500, 503])
@pytest.mark.remedy(
    "the … of the epoch log has no answer: …", "make the store reachable; the same request may be repeated"
)
def test_a_put_that_did_not_land_and_may_yet_is_unknown(server: ObjectServer, answer: int) -> None:
    log = opened(server, **NEVER)
    filled(log, 1)
    server.break_next(Fault(answer=answer, lands=False))
    with pytest.raises(OutcomeUnknown, match="append at position 1 of the epoch log has no answer") as raised:
        log.append(1, commit(0))
    assert not raised.value.definite
    assert log.append(1, commit(0))
    assert [entry.position for entry in log.read()] == [0, 1]


@pytest.mark.parametrize("answer", [CUT, 409, 412, 500, 503])
def test_another_starts_record_is_no_record_of_this_one(server: ObjectServer, answer: int) -> None:
    """The other lands between the look and the put, and the answer to the put is lost."""
    log, other = opened(server), opened(server)
    filled(log, 1)

    def go_first(at: Point, _sink: str, epoch: int) -> None:
        if at is Point.LOG_BEFORE_APPEND and epoch == LATE.epoch:
            assert other.append(1, commit(0))
            server.break_next(Fault(answer=answer, times=9))

    with failpoints.handler(go_first):
        assert not log.append(1, LATE)
    assert log.read()[1].record == commit(0)


@pytest.mark.parametrize("answer", [CUT, 403, 503])
@pytest.mark.parametrize("lands", [True, False])
def test_a_record_that_cannot_be_read_back_is_unknown(server: ObjectServer, answer: int, lands: bool) -> None:
    log = opened(server)
    filled(log, 1)
    server.break_next(Fault(answer=503, lands=lands, times=9))
    server.break_next(Fault("GET", record_name(1), answer=answer, times=3))
    with pytest.raises(OutcomeUnknown, match="append at position 1 of the epoch log has no answer"):
        log.append(1, commit(0))
    server._faults.clear()
    assert log.append(1, commit(0)) is not lands
    assert log.read()[1].record == commit(0)


@pytest.mark.parametrize("answer", [CUT, 503])
def test_an_answered_put_is_not_believed_without_the_look(server: ObjectServer, log: ObjectLog, answer: int) -> None:
    """Neither without the listing nor without the object."""
    filled(log, 1)
    for position, lost in ((1, record_name(1)), (2, "")):

        def lose(at: Point, _sink: str, _epoch: int, lost: str = lost) -> None:
            if at is Point.LOG_AFTER_APPEND:
                server.break_next(Fault("GET", lost, answer=answer, times=9))

        with failpoints.handler(lose), pytest.raises(OutcomeUnknown):
            log.append(position, commit(position - 1))
        server._faults.clear()
        assert not log.append(position, commit(position - 1))


def test_a_put_that_was_answered_and_is_not_there_is_unknown(server: ObjectServer, log: ObjectLog) -> None:
    filled(log, 1)

    def lose(at: Point, _sink: str, _epoch: int) -> None:
        if at is Point.LOG_AFTER_APPEND:
            del server.objects[key(record_name(1))]

    with failpoints.handler(lose), pytest.raises(OutcomeUnknown, match="is created, and has none"):
        log.append(1, commit(0))


def test_a_put_that_overwrote_is_not_taken_for_the_winner(server: ObjectServer, log: ObjectLog) -> None:
    """A store that forgets its condition now and then: whoever is overwritten must not answer yes."""
    other = opened(server)
    filled(log, 1)

    def overwrite(at: Point, _sink: str, epoch: int) -> None:
        if at is Point.LOG_AFTER_APPEND and epoch == LATE.epoch:
            server.objects[key(record_name(1))] = b"0" * 32 + b" " + encode(commit(0))

    with failpoints.handler(overwrite):
        assert not log.append(1, LATE)
    assert other.read()[1].record == commit(0)


def test_a_put_that_lands_after_its_caller_gave_up_is_found_by_the_repeat(server: ObjectServer) -> None:
    log = opened(server)
    filled(log, 1)
    go = threading.Event()
    late = server.break_next(Fault(key=record_name(1), until=go))
    with pytest.raises(OutcomeUnknown, match="append at position 1"):
        log.append(1, LATE)
    go.set()
    assert late.landed.wait(10)
    assert not log.append(1, LATE)
    assert log.read()[1].record == LATE


def test_a_put_that_lands_after_another_start_decided_changes_nothing(server: ObjectServer) -> None:
    log = opened(server)
    filled(log, 1)
    go = threading.Event()
    late = server.break_next(Fault(key=record_name(1), until=go))
    with pytest.raises(OutcomeUnknown):
        log.append(1, LATE)
    assert opened(server).append(1, commit(0))
    go.set()
    assert late.landed.wait(10)
    assert log.read()[1].record == commit(0)


def test_a_put_that_lands_below_a_floor_is_never_visible(server: ObjectServer) -> None:
    log, other = opened(server), opened(server)
    entries = filled(log, 1)
    go = threading.Event()
    late = server.break_next(Fault(key=record_name(1), until=go))
    with pytest.raises(OutcomeUnknown):
        log.append(1, LATE)
    for position in (1, 2, 3):
        assert other.append(position, commit(position))
    other.compact(3, entries)
    go.set()
    assert late.landed.wait(10)
    assert record_name(1) in server.names(FOLDER), "nobody holds the name any more, so the store let it in"
    assert list(log.read()) == [*entries, Entry(3, commit(3))]
    assert not log.append(1, LATE)
    assert log.append(4, commit(4))
    log.compact(4, entries)
    assert record_name(1) not in server.names(FOLDER)


def test_a_put_without_an_answer_below_a_floor_is_told_taken(server: ObjectServer) -> None:
    log, other = opened(server), opened(server)
    entries = filled(log, 1)

    def others_go_on(at: Point, _sink: str, epoch: int) -> None:
        if at is Point.LOG_BEFORE_APPEND and epoch == LATE.epoch:
            for position in (1, 2):
                assert other.append(position, commit(position))
            other.compact(2, entries)
            server.break_next(Fault(answer=412, lands=False))

    with failpoints.handler(others_go_on):
        assert not log.append(1, LATE)


def test_an_answer_that_is_late_within_the_time_limit_is_waited_for(server: ObjectServer, log: ObjectLog) -> None:
    filled(log, 1)
    server.break_next(Fault(delay=0.5))
    assert log.append(1, commit(0))


# --- compaction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [CUT, 409, 412, 503])
@pytest.mark.parametrize("options", [QUICK, NEVER], ids=["repeats", "never repeats"])
def test_a_floor_that_landed_is_found_whatever_the_answer_says(
    server: ObjectServer, options: dict[str, Any], answer: int
) -> None:
    log = opened(server, **options)
    entries = filled(log, 4)
    server.break_next(Fault(answer=answer))
    log.compact(3, entries[:1])
    assert server.names(FOLDER) == [floor_name(3), record_name(3)]


@pytest.mark.parametrize("answer", [CUT, 409, 412, 503])
def test_a_compaction_without_its_floor_has_deleted_nothing(server: ObjectServer, answer: int) -> None:
    log = opened(server, **NEVER)
    entries = filled(log, 4)
    server.break_next(Fault(answer=answer, lands=False))
    with pytest.raises(OutcomeUnknown, match="compaction to floor 3"):
        log.compact(3, entries[:1])
    assert list(log.read()) == entries
    log.compact(3, entries[:1])
    assert [entry.position for entry in log.read()] == [0, 3]


def test_a_floor_that_was_answered_and_is_not_there_deletes_nothing(server: ObjectServer, log: ObjectLog) -> None:
    entries = filled(log, 4)
    server.break_next(Fault(answer=200, lands=False))
    with pytest.raises(OutcomeUnknown, match=rf"does not show {3:020}\.floor"):
        log.compact(3, entries[:1])
    assert list(log.read()) == entries


def test_a_floor_that_is_torn_deletes_nothing(server: ObjectServer, log: ObjectLog) -> None:
    """Another's floor, which this compaction finds in its name's place."""
    entries = filled(log, 4)
    real = Bucket.create

    def torn(bucket: Bucket, name: str, data: bytes) -> None:
        real(bucket, name, data[:-1] if name.endswith(".floor") else data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "create", torn)
        with pytest.raises(LogCorrupt, match="is not a whole floor"):
            log.compact(3, entries[:1])
    assert [name for name in server.names(FOLDER) if name.endswith("record")] == [record_name(n) for n in range(4)]


@pytest.mark.parametrize("answer", [CUT, 403, 503])
def test_a_deletion_that_fails_is_unknown_and_leaves_a_whole_log(
    server: ObjectServer, log: ObjectLog, answer: int
) -> None:
    entries = filled(log, 4)
    server.break_next(Fault("POST", answer=answer, lands=False, times=9))
    with pytest.raises(OutcomeUnknown, match="compaction to floor 3"):
        log.compact(3, entries[:1])
    server._faults.clear()
    assert [entry.position for entry in log.read()] == [0, 3]
    assert log.append(4, commit(3))
    log.compact(4, entries[:1])
    assert server.names(FOLDER) == [floor_name(4), record_name(4)]


class Turnover:
    """Each of ``times`` calls makes the log go on and compacts all that was there before."""

    def __init__(self, log: ObjectLog, times: int = 1) -> None:
        self.log = log
        self.times = times

    def __call__(self) -> None:
        if self.times == 0:
            return
        self.times -= 1
        entries = self.log.read()
        end = entries[-1].position + 1
        for position in range(end, end + 3):
            assert self.log.append(position, commit(position))
        self.log.compact(end + 1, entries[:1])


@pytest.mark.parametrize("times", [1, 5])
def test_a_reader_that_a_compaction_overtakes_between_two_pages_looks_again(server: ObjectServer, times: int) -> None:
    entries = filled(opened(server), 4)
    server.page, server.meanwhile = 2, Turnover(opened(server, **PATIENT), times)
    last = 3 + 3 * times
    assert list(opened(server, **PATIENT).read()) == [entries[0], *(Entry(p, commit(p)) for p in (last - 1, last))]


def test_a_reader_whose_record_is_deleted_before_it_reads_looks_again(server: ObjectServer) -> None:
    entries = filled(opened(server), 4)
    turnover, real = Turnover(opened(server)), Bucket.read

    def slow(bucket: Bucket, name: str) -> bytes:
        turnover()
        return real(bucket, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "read", slow)
        assert list(opened(server).read()) == [entries[0], Entry(5, commit(5)), Entry(6, commit(6))]


def test_an_append_that_a_compaction_overtakes_between_two_pages_does_not_see_a_gap(server: ObjectServer) -> None:
    filled(opened(server), 4)
    server.page, server.meanwhile = 2, Turnover(opened(server, **PATIENT))
    assert not opened(server, **PATIENT).append(4, LATE)


class Torn:
    """The next listing: of the names that were there before a turnover, those that are there afterwards."""

    def __init__(self, patch: pytest.MonkeyPatch, log: ObjectLog) -> None:
        real = Bucket.list

        def torn(bucket: Bucket) -> list[str]:
            patch.setattr(Bucket, "list", real)
            before = set(bucket.list())
            Turnover(log)()
            return sorted(before & set(bucket.list()))

        patch.setattr(Bucket, "list", torn)


@pytest.mark.parametrize("position", [4, 5])
def test_an_append_whose_listing_misses_all_does_not_see_a_gap(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    log = opened(server)
    filled(log, 5)
    Torn(monkeypatch, log)
    assert not opened(server).append(position, LATE)


def test_an_append_whose_listing_misses_every_floor_is_told_taken(server: ObjectServer) -> None:
    """Its position was compacted away while it slept; that floor is deleted before its listing comes to it."""
    log = opened(server)
    filled(log, 3)

    def wake(at: Point, _sink: str, epoch: int) -> None:
        if at is Point.LOG_BEFORE_APPEND and epoch == LATE.epoch:
            Turnover(log)()
        if at is Point.LOG_AFTER_APPEND and epoch == LATE.epoch:
            Torn(patch, log)

    with pytest.MonkeyPatch.context() as patch, failpoints.handler(wake):
        assert not opened(server).append(3, LATE)
    assert LATE not in [entry.record for entry in log.read()]


def test_an_append_that_others_have_gone_past_is_told_taken_and_finds_its_own(server: ObjectServer) -> None:
    entries = filled(opened(server), 2)

    def go_past(at: Point, _sink: str, epoch: int) -> None:
        if at is Point.LOG_AFTER_APPEND and epoch == LATE.epoch:
            assert opened(server).append(3, fence(2))

    with failpoints.handler(go_past):
        assert not opened(server).append(2, LATE)
    assert list(opened(server).read()) == [*entries, Entry(2, LATE), Entry(3, fence(2))]


def test_a_log_that_never_rests_is_a_named_error(server: ObjectServer) -> None:
    log = opened(server)
    entries = filled(log, 2)
    grow, real = itertools.count(2), Bucket.list

    def restless(bucket: Bucket) -> list[str]:
        server.objects[key(record_name(next(grow)))] = b"0" * 32 + b" " + encode(commit(0))
        return real(bucket)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "list", restless)
        with pytest.raises(SinkUnavailable, match=f"during each of {LISTINGS} readings"):
            log.read()
    assert list(log.read())[:2] == entries


def test_objects_that_are_gone_already_are_deleted_where_a_store_stops_at_them(server: ObjectServer) -> None:
    """As GCS and Azure do."""
    bucket = Bucket(URL, lambda: server.options)
    for name in "ac":
        bucket.create(name, b"")
    real = Bucket._delete

    def stops(bucket: Bucket, names: list[str]) -> None:
        for name in names:
            if name not in bucket.list():
                raise FileNotFoundError(name)
            real(bucket, [name])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "_delete", stops)
        bucket.delete(["a", "b", "c"])
    assert bucket.list() == []


# --- a crash after each request -------------------------------------------------------------------------


def after_each_request(
    server: ObjectServer, before: dict[str, bytes], act: Callable[[ObjectLog], object]
) -> Iterator[int]:
    """For each request of ``act``: the store as it is if the process dies before it, and as if it dies after it."""
    server.objects = dict(before)
    server.requests.clear()
    act(opened(server))
    requests = len([asked for asked in server.requests if asked[0] != "DELETE"])
    assert requests > 5
    for number in range(requests):
        for lands in (False, True):
            server.objects = dict(before)
            _die_at(server, number, lands, act)
            yield number


def _die_at(server: ObjectServer, number: int, lands: bool, act: Callable[[ObjectLog], object]) -> None:
    """From its request ``number`` on, the process gets no answer; that request has its effect if it ``lands``."""
    obey, seen = server._obey, iter(range(10_000))

    def dying(asked: Any) -> Any:
        now = next(seen)
        if now < number or (now == number and lands):
            answer = obey(asked)
            return answer if now < number else None
        return None

    dead = opened(server, client_options={"timeout": "1s"}, retry_config={"max_retries": 0})
    server._obey = dying  # type: ignore[method-assign]
    try:
        act(dead)
    except EpochalError:
        pass
    finally:
        server._obey = obey  # type: ignore[method-assign]


def test_a_crash_in_an_append_leaves_the_record_whole_or_not_at_all(server: ObjectServer) -> None:
    entries = filled(opened(server), 3)
    seen = set()
    for _ in after_each_request(server, dict(server.objects), lambda log: log.append(3, LATE)):
        read = list(opened(server).read())
        assert read in (entries, [*entries, Entry(3, LATE)])
        assert opened(server).append(3, commit(9)) is (len(read) == 3)
        seen.add(len(read))
    assert seen == {3, 4}


def test_a_crash_in_a_compaction_leaves_the_old_log_or_the_new_one(server: ObjectServer) -> None:
    log = opened(server)
    entries = filled(log, 6)
    log.compact(2, entries[:1])
    old, new = [entries[0], *entries[2:]], [entries[0], entries[5]]
    seen = set()
    for _ in after_each_request(server, dict(server.objects), lambda log: log.compact(5, entries[:1])):
        read = list(opened(server).read())
        assert read in (old, new)
        assert not opened(server).append(5, LATE)
        assert opened(server).append(6, LATE)
        opened(server).compact(6, entries[:1])
        assert list(opened(server).read()) == [entries[0], Entry(6, LATE)]
        seen.add(len(read))
    assert seen == {len(old), len(new)}


# --- stores that cannot hold a log ----------------------------------------------------------------------


@pytest.mark.remedy(
    "the object store of the epoch log …",
    "put the checkpoint on a store with atomic conditional puts (S3, GCS, Azure), on HDFS or on a local disk; or pass"
    " log=PostgresLog(dsn, name) from epochal.checkpoints.postgres",
)
def test_a_store_that_ignores_the_condition_is_refused_before_anything_is_written(server: ObjectServer) -> None:
    server.conditional = False
    log = opened(server)
    for verb in (lambda: log.append(0, fence()), log.try_out):
        with pytest.raises(Misconfigured, match=r"ignores the condition[\s\S]*nothing of the log was written"):
            verb()
    assert server.objects == {}
    server.conditional = True
    assert log.append(0, fence())


def test_a_store_that_says_exists_and_overwrites_all_the_same_is_refused(server: ObjectServer) -> None:
    server.conditional = False
    real = Bucket.create

    def lying(bucket: Bucket, name: str, data: bytes) -> None:
        taken = key(name) in server.objects
        real(bucket, name, data)
        if taken:
            raise FileExistsError(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "create", lying)
        with pytest.raises(Misconfigured, match="ignores the condition"):
            opened(server).append(0, fence())


def test_a_store_that_does_not_list_what_it_has_is_refused(server: ObjectServer, log: ObjectLog) -> None:
    server.listed = False
    with pytest.raises(Misconfigured, match="does not list an object that it has"):
        log.append(0, fence())
    assert server.objects == {}


def test_a_store_that_does_not_know_the_condition_is_refused(server: ObjectServer, log: ObjectLog) -> None:
    server.break_next(Fault(answer=501, lands=False, times=9))
    for unable in (log, opened(server, conditional_put="disabled")):
        with pytest.raises(Misconfigured, match="does not know the condition"):
            unable.append(0, fence())


def test_a_compaction_by_a_new_handle_tries_the_store_out_first(server: ObjectServer, log: ObjectLog) -> None:
    entries = filled(log, 4)
    server.conditional = False
    with pytest.raises(Misconfigured, match="ignores the condition"):
        opened(server).compact(3, entries[:1])
    assert list(log.read()) == entries


@pytest.mark.parametrize("answer", [CUT, 409, 412, 503])
def test_a_trial_whose_first_answer_is_lost_is_no_refusal(server: ObjectServer, log: ObjectLog, answer: int) -> None:
    server.break_next(Fault(key=".try-out", answer=answer))
    assert log.append(0, fence())
    assert server.names(FOLDER) == [record_name(0)]


@pytest.mark.parametrize("answer", [409, 412])
def test_a_trial_whose_first_put_did_not_land_is_no_refusal(server: ObjectServer, answer: int) -> None:
    """S3 answers 409 while another request for the name is under way."""
    log = opened(server, **NEVER)
    server.break_next(Fault(key=".try-out", answer=answer, lands=False))
    with pytest.raises(SinkUnavailable, match="append at position 0"):
        log.append(0, fence())
    assert log.append(0, fence())


def test_a_store_that_cannot_delete_several_objects_is_refused(server: ObjectServer, log: ObjectLog) -> None:
    server.break_next(Fault("POST", answer=501, lands=False, times=9))
    with pytest.raises(Misconfigured, match="cannot delete several objects in one request"):
        log.append(0, fence())
    assert opened(server, disable_bulk_delete=True).append(0, fence())


def test_a_trial_that_fails_names_its_own_error_and_not_that_of_its_end(server: ObjectServer) -> None:
    log = opened(server, **NEVER)
    server.break_next(Fault(key=".try-out"))
    server.break_next(Fault(key=".try-out", answer=500, lands=False))
    server.break_next(Fault("POST", answer=503, lands=False))
    with pytest.raises(SinkUnavailable, match="500 Internal Server Error"):
        log.append(0, fence())
    assert log.append(0, fence())


def test_a_store_is_tried_out_once(server: ObjectServer, log: ObjectLog) -> None:
    filled(log, 3)
    assert len([asked for method, asked in server.requests if method == "PUT" and ".try-out" in asked]) == 2


def test_a_store_that_looks_and_writes_in_two_steps_is_not_found_out(server: ObjectServer) -> None:
    """One writer alone cannot see it.  So the documentation names the stores that are known."""
    server.atomic = False
    assert opened(server).append(0, fence())


# --- stores that do not answer, and rights --------------------------------------------------------------


@pytest.mark.remedy(
    "the … of the epoch log failed: …",
    "make the store reachable, and correct bucket, region and endpoint if it does not know them; the same request may"
    " be repeated",
)
def test_a_store_that_is_down_is_named_in_bounded_time_and_found_again(server: ObjectServer, log: ObjectLog) -> None:
    filled(log, 1)
    server.stop()
    began = time.monotonic()
    for verb in (log.read, lambda: log.append(1, LATE), lambda: log.compact(1, [])):
        with pytest.raises(SinkUnavailable, match=r"the .* of the epoch log failed: [\s\S]*no effect") as raised:
            verb()
        assert len(raised.value.what) < 500, "the client's dump of its own state is left out"
    assert time.monotonic() - began < 30
    server.start()
    assert log.append(1, LATE)


def test_a_store_that_never_speaks_is_named_in_bounded_time(server: ObjectServer, log: ObjectLog) -> None:
    go = threading.Event()
    server.break_next(Fault("GET", until=go, times=9))
    began = time.monotonic()
    with pytest.raises(SinkUnavailable, match="the read of the epoch log failed"):
        log.read()
    assert time.monotonic() - began < 30
    go.set()


def test_every_request_has_our_time_limits_unless_the_options_name_others() -> None:
    bucket = Bucket(URL, dict)
    ours = bucket._completed({})
    assert (ours["client_options"]["timeout"], ours["client_options"]["connect_timeout"]) == ("20s", "5s")
    assert (ours["retry_config"]["max_retries"], ours["retry_config"]["retry_timeout"]) == (3, timedelta(seconds=20))
    theirs = bucket._completed({"client_options": {"timeout": "1s"}, "retry_config": {"max_retries": 0}})
    assert (theirs["client_options"]["timeout"], theirs["retry_config"]["max_retries"]) == ("1s", 0)
    assert theirs["client_options"]["connect_timeout"] == "5s"


def test_a_bucket_that_does_not_exist_is_named(server: ObjectServer) -> None:
    absent = ObjectLog("s3a://no-such-bucket/log", **server.options, **NEVER)
    for verb in (absent.read, lambda: absent.append(0, fence())):
        with pytest.raises(SinkUnavailable, match="NoSuchBucket"):
            verb()


@pytest.mark.remedy(
    "the epoch log may not be used (…): …",
    "give the user of the query the rights to list, get, put and delete objects there; or pass"
    " log=ObjectLog(url, ...) with credentials",
)
def test_a_user_without_rights_is_told_so(server: ObjectServer, log: ObjectLog) -> None:
    stranger = opened(server, access_key_id="AKIASTRANGER")
    for verb in (stranger.read, lambda: stranger.append(0, fence()), lambda: stranger.compact(1, [])):
        with pytest.raises(Misconfigured, match="may not be used"):
            verb()
    assert log.append(0, fence())


def test_a_user_who_may_only_read_is_told_so_before_the_first_record(server: ObjectServer, log: ObjectLog) -> None:
    server.break_next(Fault(answer=403, lands=False, times=9))
    with pytest.raises(Misconfigured, match=r"may not be used \(append at position 0\)"):
        log.append(0, fence())


@pytest.mark.parametrize("whole", [True, False])
def test_a_user_who_may_not_delete_is_told_so_before_the_first_record(
    server: ObjectServer, log: ObjectLog, whole: bool
) -> None:
    """A deletion is refused as a whole, or object by object."""
    server.deletable = False
    if whole:
        server.break_next(Fault("POST", answer=403, lands=False))
    with pytest.raises(Misconfigured, match=r"may not be used \(append at position 0\)"):
        log.append(0, fence())
    assert record_name(0) not in server.names(FOLDER)


def test_credentials_that_cannot_be_had_are_named(server: ObjectServer) -> None:
    def sealed() -> dict[str, str]:
        raise RuntimeError("the vault is sealed")

    log = ObjectLog(URL, endpoint=server.endpoint, credential_provider=sealed, **NEVER)
    with pytest.raises(Misconfigured, match=r"may not be used .*the vault is sealed"):
        log.read()


# --- what it is given -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("hdfs://node/log", "must be one of s3://"),
        ("/local/path", "must be one of s3://"),
        ("s3a://bucket/log?versionId=1", "without"),
        ("s3a://bucket/log#1", "without"),
        (f"s3a://key:{SECRET_KEY}@bucket/log", "the bucket's name alone"),
        ("s3a://key@bucket/log", "the bucket's name alone"),
        ("gs://key@bucket/log", "the bucket's name alone"),
        (f"abfss://c:{SECRET_KEY}@account.dfs.core.windows.net/log", "container@account"),
        ("abfss://account.dfs.core.windows.net/log", "container@account"),
    ],
)
@pytest.mark.remedy(
    "the epoch log cannot be a folder of that object store: …",
    "write it as s3a://bucket/checkpoint/epochal/log, and give credentials as options or by the environment",
)
def test_a_wrong_url_is_refused_and_not_shown(url: str, why: str, server: ObjectServer) -> None:
    with pytest.raises(Misconfigured, match=why) as refused:
        ObjectLog(url)
    assert SECRET_KEY not in str(refused.value)
    assert opened(server).append(0, fence())


@pytest.mark.remedy(
    "the object store of the epoch log cannot be opened: …",
    "correct the URL or the options of ObjectLog(url, ...), which are those of obstore's stores",
)
@pytest.mark.parametrize("options", [{"nonsense": "x"}, {"client_options": {"timeout": "soon"}}])
def test_a_wrong_option_is_named(server: ObjectServer, options: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="cannot be opened"):
        opened(server, **options).read()
    assert opened(server).append(0, fence())


@pytest.mark.parametrize(
    ("url", "spelled"),
    [
        ("wasbs://c@a.blob.core.windows.net/x/log", "abfss://c@a.dfs.core.windows.net/x/log"),
        ("wasb://c@a.blob.core.windows.net/x/log", "abfs://c@a.dfs.core.windows.net/x/log"),
        ("abfss://c@a.dfs.core.windows.net/x/log", "abfss://c@a.dfs.core.windows.net/x/log"),
        ("gs://bucket/x y/log", "gs://bucket/x%20y/log"),
    ],
)
def test_a_url_of_each_cloud_is_understood(url: str, spelled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "YQ==")
    bucket = Bucket(url, dict)
    assert bucket._obstore_url() == spelled
    assert "x" in bucket._store(obstore).prefix
    assert ObjectLog(url).describe() == f"objects:{url}"


def test_no_secret_is_shown(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the store says: here it repeats what it was given."""
    token = "t0ken-of-the-environment"
    monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    log = opened(server)
    leak = b"<Error><Code>Leak</Code><Message>%b %b</Message></Error>" % (SECRET_KEY.encode(), token.encode())
    monkeypatch.setattr("epochal.chaos.servers.objects._refused", lambda *_: Answer(400, leak))
    server.break_next(Fault("GET", answer=400, lands=False, times=99))
    with pytest.raises(SinkUnavailable, match="Leak") as raised:
        log.read()
    chain: list[BaseException] = [raised.value]
    while (inner := chain[-1].__cause__) is not None:
        chain.append(inner)
    shown = [*(f"{e} {e!r} {e.args}" for e in chain), repr(log), log.describe(), repr(log._bucket)]
    assert not [text for text in shown if SECRET_KEY in text or token in text or ACCESS_KEY in text]
    assert "***" in str(raised.value)


def test_what_the_store_repeats_of_a_request_is_not_shown(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 repeats the canonical request, with a token that may be the instance's, as text and in hexadecimal digits."""
    token = "FwoGZXIvYXdzEBY"
    body = (
        "<?xml version='1.0'?><Error><Code>SignatureDoesNotMatch</Code><Message>The signature is another.</Message>"
        f"<CanonicalRequest>x-amz-security-token:{token}</CanonicalRequest>"
        f"<CanonicalRequestBytes>{token.encode().hex(' ')}</CanonicalRequestBytes></Error>"
    )
    monkeypatch.setattr("epochal.chaos.servers.objects._refused", lambda status, *_: Answer(status, body.encode()))
    for status, error in ((400, SinkUnavailable), (403, Misconfigured)):
        server.break_next(Fault("GET", answer=status, lands=False, times=9))
        with pytest.raises(error, match=r"SignatureDoesNotMatch: The signature is another\.") as raised:
            opened(server, **NEVER).read()
        server._faults.clear()
        assert token not in str(raised.value)
        assert token.encode().hex(" ") not in str(raised.value)


def test_a_secret_that_is_part_of_a_status_hides_no_right(server: ObjectServer) -> None:
    """What an answer means is read before anything is hidden in it."""
    server.break_next(Fault("GET", answer=403, lands=False, times=9))
    with pytest.raises(Misconfigured, match="may not be used"):
        opened(server, session_token="3", **NEVER).read()


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestTimeTooSkewed"])
def test_credentials_that_do_not_do_are_told_whatever_the_status(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    real = objects._refused
    monkeypatch.setattr(objects, "_refused", lambda status, *_: real(status, code))
    server.break_next(Fault("GET", answer=400, lands=False, times=9))
    with pytest.raises(Misconfigured, match=rf"may not be used[\s\S]*{code}"):
        opened(server, **NEVER).read()


@pytest.mark.parametrize("place", ["option", "environment"])
def test_a_value_with_a_line_break_is_named(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The client dies of it, with an exception that nobody catches."""
    if place == "environment":
        monkeypatch.setenv("AWS_SESSION_TOKEN", f"{SECRET_KEY}\n")
    log = opened(server, **({"session_token": f"{SECRET_KEY}\n"} if place == "option" else {}))
    with pytest.raises(
        Misconfigured, match=r"the value of (AWS_)?session_token has a line break|AWS_SESSION_TOKEN"
    ) as raised:
        log.read()
    assert SECRET_KEY not in str(raised.value)


def test_a_line_break_in_a_variable_of_another_cloud_is_nothing(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_CREDENTIALS", '{\n "type": "service_account"\n}')
    assert opened(server).append(0, fence())


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_an_endpoint_of_the_environment_moves_no_log(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Else two drivers of one checkpoint could have two logs."""
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    assert opened(server).append(0, fence())
    assert server.names(FOLDER) == [record_name(0)]


@pytest.mark.parametrize(
    ("url", "variable", "option"),
    [
        ("abfss://c@a.dfs.core.windows.net/log", "AZURE_STORAGE_ENDPOINT", {"endpoint": "http://127.0.0.1:9"}),
        ("abfss://c@a.dfs.core.windows.net/log", "AZURE_endpoint", {"azure_endpoint": "http://127.0.0.1:9"}),
        ("wasbs://c@a.blob.core.windows.net/log", "AZURE_STORAGE_USE_EMULATOR", {"config": {"use_emulator": "false"}}),
        ("abfss://c@a.dfs.core.windows.net/log", "AZURE_USE_FABRIC_ENDPOINT", {"use_fabric_endpoint": False}),
        ("gs://bucket/log", "GOOGLE_BASE_URL", {"base_url": "http://127.0.0.1:9"}),
    ],
)
@pytest.mark.remedy(
    "… in the environment would move the epoch log to another store",
    "unset … for the driver, or pass log=ObjectLog(url, …=...)",
)
def test_a_variable_that_would_move_the_log_is_refused(
    monkeypatch: pytest.MonkeyPatch, url: str, variable: str, option: dict[str, Any]
) -> None:
    """The URL names the account or the bucket, and a driver without the variable would go there."""
    monkeypatch.setenv(variable, "true" if "USE" in variable else "http://127.0.0.1:8")
    for other in ({}, {"msi_endpoint": "http://127.0.0.1:9"}):
        with pytest.raises(Misconfigured, match=f"{variable} in the environment would move the epoch log"):
            ObjectLog(url, **NEVER, **other).read()
    assert Bucket(url, lambda: option)._completed(option)
    assert Bucket(URL, dict)._completed({}), "no variable of this cloud moves a log on S3"
    monkeypatch.delenv(variable)
    assert Bucket(url, dict)._completed({})


def test_the_environments_credentials_are_enough(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not what they say of the condition."""
    for name, value in {**server.environment, "AWS_CONDITIONAL_PUT": "disabled"}.items():
        monkeypatch.setenv(name, value)
    log = ObjectLog(URL)
    assert log.append(0, fence())
    assert len(log.read()) == 1


@pytest.mark.remedy(
    "an epoch log on an object store needs the package obstore: …", "pip install 'epochal[object-store]'"
)
def test_without_obstore_it_is_told_what_to_install(log: ObjectLog, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "obstore", None)
        with pytest.raises(Misconfigured, match="needs the package obstore") as refused:
            log.read()
    assert "obstore" in installed_by(refused.value.help)
    assert log.append(0, fence())


# --- the policy -----------------------------------------------------------------------------------------


def test_the_policy_refuses_each_put_without_the_condition(log: ObjectLog) -> None:
    (statement,) = json.loads(log.policy())["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Action"] == "s3:PutObject"
    assert statement["Resource"] == f"arn:aws:s3:::{BUCKET}/checkpoint/epochal/log/*"
    assert statement["Condition"] == {"Null": {"s3:if-none-match": "true"}}


@pytest.mark.parametrize(
    ("region", "partition"), [("eu-west-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")]
)
def test_the_policy_names_the_bucket_as_its_region_does(region: str, partition: str) -> None:
    (statement,) = json.loads(ObjectLog(URL, region=region).policy())["Statement"]
    assert statement["Resource"].startswith(f"arn:{partition}:s3:::")


@pytest.mark.remedy(
    "…:// has no bucket policy that forbids to overwrite and lets a query delete",
    "give the right to write below the epoch log to the user of the query alone",
)
def test_other_clouds_have_no_such_policy() -> None:
    with pytest.raises(Misconfigured, match="gs:// has no bucket policy"):
        ObjectLog("gs://bucket/log").policy()
    assert json.loads(ObjectLog("s3://bucket/log").policy())


# --- the stand-in ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("atomic", [True, False])
def test_a_race_tells_a_store_with_atomic_puts_from_another(server: ObjectServer, atomic: bool) -> None:
    server.atomic = atomic
    buckets = [Bucket(URL, lambda: server.options) for _ in range(8)]
    gate = threading.Barrier(8)

    def put(number: int) -> bool:
        gate.wait(10)
        try:
            buckets[number].create("name", str(number).encode())
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(put, range(8)))
    assert (won.count(True) == 1) is atomic
    assert won[int(buckets[0].read("name"))]


def test_a_fault_of_the_test_itself_does_not_reach_the_store(server: ObjectServer, log: ObjectLog) -> None:
    with failpoints.armed("log-before-append=raise"), pytest.raises(FailpointError):
        log.append(0, fence())
    assert server.objects == {}
