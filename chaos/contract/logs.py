"""What every epoch log must do, as one suite.  The test module of each log defines how to open it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from epochal.checkpoints.log import Commit, Entry, EpochLog, Fence, Participant, Record
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Copy, CopyFile, Decision, Query
from epochal.coordinator.model.errors import LogCorrupt, OutcomeUnknown
from epochal.coordinator.model.failpoints import FailpointError, Point

WAIT_S = 120
UNICODE = 'Zürich 北京 \U0001f6eb ​ \u2028 \u0085 \x00 \r\n\t"quoted" back\\slash'


def fence(generation: int = 1, token: int = 7) -> Fence:
    """Return a record that says that a start took over."""
    return Fence(
        actor=Actor(generation, token),
        query=Query("flights", "query-1", f"run-{generation}", "file:///checkpoints/flights"),
        base=0,
        done_through={"orders": 3},
    )


def commit(epoch: int, *, token: int = 7, padding: str = "") -> Commit:
    """Return a record that says that ``epoch`` is decided by the actor of generation 1 with ``token``."""
    actor = Actor(1, token)
    decision = Decision("query-1", epoch, actor, f"fingerprint-{epoch}")
    committable = Committable("orders", decision, epoch + 1, 3, {"note": UNICODE, "padding": padding})
    return Commit(
        decision=decision,
        actor=actor,
        participants={"orders": Participant("postgres:1:2", committable)},
        offsets='{"flights": {"0": 42}}',
        watermark=1_357_000_000_000,
        copy=Copy("file:///stage/1", (CopyFile("part-0.parquet", 100, 3),), "{}"),
        done_through={"orders": epoch - 1},
    )


def filled(log: EpochLog, count: int) -> list[Entry]:
    """Append a fence and ``count - 1`` epochs to ``log``; return its entries."""
    records: list[Record] = [fence(), *(commit(n) for n in range(count - 1))]
    for position, record in enumerate(records):
        assert log.append(position, record)
    return [Entry(p, r) for p, r in enumerate(records)]


class LogContract:
    """Subclass it as ``Test...`` and define the fixture ``open_log``.  Each call of it opens the same log again."""

    @pytest.fixture
    def open_log(self) -> Callable[[], EpochLog]:
        raise NotImplementedError

    def test_a_new_log_is_empty(self, open_log: Callable[[], EpochLog]) -> None:
        assert list(open_log().read()) == []

    def test_what_is_appended_is_read_by_another_handle(self, open_log: Callable[[], EpochLog]) -> None:
        entries = filled(open_log(), 5)
        assert list(open_log().read()) == entries

    def test_a_taken_position_is_refused_and_keeps_its_record(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        entries = filled(log, 3)
        for position in range(3):
            assert not open_log().append(position, commit(9, token=99))
        assert list(log.read()) == entries

    def test_the_own_record_is_found_after_a_repeated_append(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        filled(log, 2)
        mine = commit(1)
        assert log.append(2, mine)
        assert not log.append(2, mine)
        assert log.read()[-1] == Entry(2, mine)

    def test_an_append_after_a_gap_is_refused_and_writes_nothing(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        entries = filled(log, 2)
        with pytest.raises(LogCorrupt, match="ends before position 2, so 3 cannot"):
            log.append(3, commit(2))
        assert list(log.read()) == entries

    def test_a_position_below_zero_is_a_callers_mistake(self, open_log: Callable[[], EpochLog]) -> None:
        with pytest.raises(ValueError, match="counts from 0, not -1"):
            open_log().append(-1, fence())

    def test_a_large_record_comes_back_whole(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        large = commit(0, padding="é\n" * 1_750_000)
        assert log.append(0, large)
        assert open_log().read()[0].record == large

    def test_many_writers_race_for_each_position_and_one_wins(self, open_log: Callable[[], EpochLog]) -> None:
        writers, positions = 4, 12
        logs = [open_log() for _ in range(writers)]
        gate = threading.Barrier(writers)

        def race(writer: int, position: int) -> bool:
            gate.wait(WAIT_S)
            return logs[writer].append(position, commit(position, token=writer))

        with ThreadPoolExecutor(writers) as pool:
            for position in range(positions):
                won = list(pool.map(race, range(writers), [position] * writers))
                assert won.count(True) == 1
                assert open_log().read()[position].record == commit(position, token=won.index(True))

    # --- lost answers and faults ----------------------------------------------------------------

    def test_a_lost_answer_is_unknown_and_the_repeat_finds_the_record(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        with failpoints.armed("log-after-append:0=drop-answer"), pytest.raises(OutcomeUnknown):
            log.append(0, commit(0))
        assert not log.append(0, commit(0))
        assert list(log.read()) == [Entry(0, commit(0))]

    def test_a_fault_before_the_append_leaves_nothing(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        with failpoints.armed("log-before-append:0=raise"), pytest.raises(FailpointError):
            log.append(0, commit(0))
        assert list(log.read()) == []
        assert log.append(0, commit(0))

    # --- compaction -----------------------------------------------------------------------------

    def test_compaction_keeps_what_is_asked_and_all_from_the_floor_on(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        entries = filled(log, 6)
        log.compact(4, [entries[0], entries[2]])
        assert list(open_log().read()) == [entries[0], entries[2], entries[4], entries[5]]
        assert log.append(6, commit(5))
        assert log.read()[-1] == Entry(6, commit(5))

    def test_an_equal_or_lower_floor_changes_nothing(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        entries = filled(log, 6)
        log.compact(4, entries[:1])
        after = list(log.read())
        open_log().compact(4, entries[:1])
        open_log().compact(4, [])
        open_log().compact(3, entries[:1])
        open_log().compact(0, [])
        assert list(log.read()) == after

    def test_floors_rise_one_after_another(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        entries = filled(log, 6)
        log.compact(2, entries[:1])
        log.compact(5, [entries[0], entries[3]])
        assert list(open_log().read()) == [entries[0], entries[3], entries[5]]

    def test_a_compaction_of_everything_leaves_the_next_position(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        entries = filled(log, 3)
        log.compact(3, entries[:1])
        assert list(open_log().read()) == entries[:1]
        assert not log.append(2, commit(1))
        assert log.append(3, commit(2))
        assert list(open_log().read()) == [entries[0], Entry(3, commit(2))]

    def test_an_append_below_the_floor_is_never_true_and_never_visible(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        entries = filled(log, 6)
        log.compact(4, [entries[0]])
        for position in range(6):
            assert not open_log().append(position, commit(9, token=99))
        assert list(open_log().read()) == [entries[0], *entries[4:]]

    @pytest.mark.parametrize(
        ("floor", "kept", "message"),
        [
            (5, [], "floor 5 lies above the end of the log, 4"),
            (3, [Entry(1, commit(8))], "no such record below floor 3 at position 1"),
            (2, [Entry(3, commit(2))], "no such record below floor 2 at position 3"),
            (2, [Entry(2, commit(1))], "no such record below floor 2 at position 2"),
            (3, [Entry(1, commit(0)), Entry(0, fence())], "must ascend"),
        ],
    )
    def test_a_compaction_that_would_lose_or_invent_is_refused(
        self, open_log: Callable[[], EpochLog], floor: int, kept: Sequence[Entry], message: str
    ) -> None:
        log = open_log()
        entries = filled(log, 4)
        with pytest.raises(ValueError, match=message):
            log.compact(floor, kept)
        assert list(open_log().read()) == entries

    @pytest.mark.parametrize("left", [0, 1])
    @pytest.mark.parametrize("position", [2, 6])
    @pytest.mark.parametrize("point", [Point.LOG_BEFORE_APPEND, Point.LOG_AFTER_APPEND])
    def test_a_creator_that_slept_over_a_compaction_is_told_taken(
        self, open_log: Callable[[], EpochLog], point: Point, position: int, left: int
    ) -> None:
        """A slow writer found its position free, or wrote it; then others appended more records and compacted."""
        log, slow = open_log(), open_log()
        entries = filled(log, position)
        late = commit(77, token=99)

        def others_go_on(at: Point, _sink: str, epoch: int) -> None:
            if at is not point or epoch != 77:
                return
            start = len(log.read())
            for p in range(start, position + 3):
                assert log.append(p, commit(p))
            log.compact(position + 3 - left, entries[:1])

        with failpoints.handler(others_go_on):
            answer = slow.append(position, late)
        read = list(open_log().read())
        assert [e.position for e in read] == [0, position + 2][: 1 + left]
        assert late not in [e.record for e in read]
        assert not answer or point is Point.LOG_AFTER_APPEND, "true only for a record that was decided in time"
        assert not open_log().append(position, late)
        assert list(open_log().read()) == read

    def test_the_floor_holds_before_anything_else_happens(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        entries = filled(log, 4)
        after = [entries[0], entries[3]]
        seen = []

        def look(at: Point, _sink: str, _epoch: int) -> None:
            if at is Point.LOG_AFTER_FLOOR:
                seen.append(list(open_log().read()))
                assert not open_log().append(1, commit(9, token=99))
                raise FailpointError("the process dies here")

        with failpoints.handler(look), pytest.raises(FailpointError):
            log.compact(3, entries[:1])
        assert seen == [after]
        assert list(open_log().read()) == after
        open_log().compact(3, entries[:1])
        assert list(open_log().read()) == after

    def test_two_compactions_at_once_agree(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        entries = filled(log, 12)
        gate = threading.Barrier(4)

        def compact(floor: int) -> None:
            handle = open_log()
            gate.wait(WAIT_S)
            handle.compact(floor, entries[:1])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(compact, [8, 8, 10, 5]))
        assert list(open_log().read()) == [entries[0], *entries[10:]]

    def test_readers_see_a_whole_log_while_it_grows_and_shrinks(self, open_log: Callable[[], EpochLog]) -> None:
        log = open_log()
        entries = filled(log, 3)
        done = threading.Event()
        tails: list[int] = []

        def read_on() -> None:
            reader = open_log()
            while not done.is_set():
                read = reader.read()
                positions = [e.position for e in read]
                assert positions[0] == 0
                assert positions[1:] == list(range(positions[1], positions[-1] + 1))
                tails.append(positions[-1])

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read_on) for _ in range(2)]
            try:
                for position in range(3, 43):
                    assert log.append(position, commit(position))
                    if position % 4 == 0:
                        log.compact(position - 2, entries[:1])
            finally:
                done.set()
            for reader in readers:
                reader.result(WAIT_S)
        assert tails, "no reader read"

    def test_it_says_where_it_is(self, open_log: Callable[[], EpochLog]) -> None:
        assert open_log().describe()


_RACER = """
import sys
from pathlib import Path
from epochal.chaos.contract.logs import commit
from time import sleep, monotonic
{source}
me, folder, positions = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
limit = monotonic() + 60
for position in range(positions):
    (folder / f"{{position}}.{{me}}").touch()
    while not (folder / f"{{position}}.{{1 - me}}").exists():
        assert monotonic() < limit
        sleep(0.0005)
    print(int(log.append(position, commit(position, token=me))), flush=True)
    if position % 5 == 4:
        kept = [e for e in log.read() if e.position == 0]
        log.compact(position - 1, kept)
"""


class ProcessContract(LogContract):
    """A log that several processes share.

    Also define the fixture ``source``: Python code that opens the log and assigns it to the variable ``log``.
    """

    @pytest.fixture
    def source(self) -> str:
        raise NotImplementedError

    def test_two_processes_race_and_one_wins_each_position(
        self, open_log: Callable[[], EpochLog], source: str, tmp_path: Path
    ) -> None:
        meeting = tmp_path / "meeting"
        meeting.mkdir()
        positions = 40
        argv = [sys.executable, "-c", _RACER.format(source=source)]
        racers = [
            subprocess.Popen(
                [*argv, str(me), str(meeting), str(positions)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for me in range(2)
        ]
        try:
            ends = [racer.communicate(timeout=120) for racer in racers]
        finally:
            for racer in racers:
                racer.kill()
                racer.wait()
        assert [errors for _, errors in ends] == ["", ""]
        first, second = ([line == "1" for line in out.split()] for out, _ in ends)
        assert len(first) == len(second) == positions
        assert all(a != b for a, b in zip(first, second, strict=True))
        assert any(first)
        assert any(second)
        read = open_log().read()
        assert [e.position for e in read] == [0, 38, 39]
        for entry in read:
            assert entry.record == commit(entry.position, token=0 if first[entry.position] else 1)
