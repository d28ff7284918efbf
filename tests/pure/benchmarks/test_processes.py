"""What the benchmarks of recovery, latency and memory see of other processes, without any server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from deltalake import write_deltalake
from pyarrow import parquet

from benchmarks import peaks, reader, rows
from benchmarks.driver import Note, Settings, read_notes
from benchmarks.tables import latency, memory, recovery
from epochal.coordinator.model import failpoints


def test_a_note_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    assert read_notes(file) == []
    whole = '{"what": "epoch", "at": 1.5, "epoch": 3, "seconds": {"look": 0.2}, "error": ""}\n'
    file.write_text(whole + '{"what": "epo')
    assert read_notes(file) == [Note("epoch", 1.5, 3, {"look": 0.2})]


def test_settings_come_through_a_file(tmp_path: Path) -> None:
    settings = Settings("app", "source", "checkpoint", "notes", sinks={"delta": "lake"}, columns=["id"])
    assert Settings(**json.loads(settings.write(tmp_path / "settings.json").read_text())) == settings


@pytest.mark.parametrize("kinds", recovery.FAULTS)
def test_every_fault_strikes_at_points_that_there_are(kinds: Sequence[str]) -> None:
    for fault in recovery.FAULTS[kinds]:
        rules = failpoints.parse("; ".join(fault.rules(7)))
        assert {rule.epoch for rule in rules} <= {7}
        assert {rule.sink for rule in rules if rule.sink} <= set(kinds)
        assert bool(rules) == (fault is not recovery.IDLE)


def test_rows_by_hand_appear_whole_and_carry_their_id(tmp_path: Path) -> None:
    rows.write_file(tmp_path / "source" / "one.parquet", [1_795_448_316_794_302, 7])
    assert [path.name for path in (tmp_path / "source").iterdir()] == ["one.parquet"]
    table = parquet.read_table(tmp_path / "source" / "one.parquet")
    assert table["k"].to_pylist() == ["1795448316794302", "0000000000000007"]
    assert {len(value) for value in table["v"].to_pylist()} == {100}


def test_a_reader_of_delta_sees_each_version_once(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with reader.delta(str(lake), "") as look:
        assert look() == []
        for first in (0, 10):
            source = tmp_path / f"{first}.parquet"
            rows.write_file(source, range(first, first + 3))
            write_deltalake(str(lake), parquet.read_table(source), mode="append")
        assert sorted(look()) == [0, 1, 2, 10, 11, 12]
        assert look() == []


def test_quantiles_of_rows() -> None:
    assert latency.quantiles([float(n) for n in range(101)]) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}


COLLECTIONS = """\
[0.9s][info][gc] Using G1
[1.2s][info][gc] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 51M->9M(1024M) 8.1ms
[1.9s][info][gc] GC(1) Concurrent Mark Cycle
[2.2s][info][gc] GC(2) Pause Young (Mixed) (G1 Evacuation Pause) 520M->37M(1024M) 9.9ms
[2.9s][info][gc] GC(3) Pause Full (System.gc()) 300M->21M(1024M) 40.0ms
"""


def test_the_heap_that_is_left_is_read_from_the_jvms_log() -> None:
    assert peaks.heap_after_collection(COLLECTIONS) == 37
    assert peaks.heap_after_collection(COLLECTIONS.splitlines()[0]) is None


def test_memory_of_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert peaks.memory(process.pid) is None
    assert (peaks.memory(os.getpid()) or (0, 0))[0] > 10 * 1024


ALLOCATE = """
import subprocess, sys
most = bytearray({megabytes} << 20); del most
if {below}:
    pipe = subprocess.PIPE
    below = subprocess.Popen([sys.executable, "-c", {below}], stdin=pipe, stdout=pipe)
    below.stdout.readline()
print(1, flush=True); input()
if {below}:
    below.communicate(b"x")
"""


def test_peaks_tell_a_driver_from_a_worker_after_memory_was_given_back() -> None:
    """What the driver has forked itself is no worker: it may be the JVM to be."""
    source = ""
    for megabytes in (100, 400, 200):  # worker, in between, driver
        source = ALLOCATE.format(megabytes=megabytes, below=repr(source))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", source], stdin=pipe, stdout=pipe, text=True) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        with peaks.Peaks(driver.pid) as found:
            limit = time.monotonic() + 120
            while "worker" not in found.of():
                assert driver.poll() is None
                assert time.monotonic() < limit, f"no worker among {found.of()}"
                time.sleep(0.01)
            driver.communicate("x")
    most = found.of()
    assert "jvm" not in most
    assert 200 < most["driver"] < 300
    assert 100 < most["worker"] < 200


def test_what_ends_the_looking_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_pid: int) -> None:
        raise PermissionError("status")

    monkeypatch.setattr(peaks, "memory", unreadable)
    with pytest.raises(PermissionError, match="status"), peaks.Peaks(os.getpid()) as found:
        found._thread.join(120)


def test_what_ends_the_feeding_ends_the_measurement(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    feeder = latency.Feeder(tmp_path / "taken")
    feeder.check()
    feeder.start()
    feeder.join(120)
    with pytest.raises(OSError, match="taken"):
        feeder.check()


def test_rows_without_room_on_the_disk_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10 * 10**9))
    assert memory._disk_missing(tmp_path, ["delta"], 1_000_000) == ""
    assert memory._disk_missing(tmp_path, ["delta"], 50_000_000) == "11 GB of disk are needed, 10 GB are free"
    assert memory._disk_missing(tmp_path, [], 10**9) == "", "nothing is written"
