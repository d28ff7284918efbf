"""What the growth table writes in Spark's place: a checkpoint that a query goes on from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from benchmarks import history
from benchmarks.history import LINKS, RETAINED, Progress
from epochal.coordinator.model.epoch import Query

QUERY = Query("app", "q1", "r1", "file:/checkpoint")
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795448591000,"conf":{"spark.sql.shuffle.partitions":"2"}}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """After three epochs, with the fourth one planned, as Spark 4.2 leaves it."""
    (tmp_path / "metadata").write_text('{"id":"q1"}')
    for folder, epochs in (("offsets", range(4)), ("commits", range(3))):
        (tmp_path / folder).mkdir()
        for epoch in epochs:
            text = offsets(epoch) if folder == "offsets" else 'v1\n{"nextBatchWatermarkMs":0}'
            (tmp_path / folder / str(epoch)).write_text(text)
            (tmp_path / folder / f".{epoch}.crc").write_bytes(b"crc")
    return tmp_path


def offsets(epoch: int) -> str:
    return f'v1\n{METADATA}\n{{"offset":{50 * (epoch + 1)},"timestamp":{1000 * (epoch + 1)}}}'


def test_an_epoch_has_the_offsets_that_spark_would_have_given_it(checkpoint: Path) -> None:
    progress = Progress(checkpoint)
    assert (progress.query_id, progress.committed) == ("q1", 2)
    for epoch in (2, 3, 99_999):
        ask = progress.ask(QUERY, epoch)
        assert (ask.epoch, ask.offsets) == (epoch, offsets(epoch))
        assert ask.fingerprint == hashlib.sha256(offsets(epoch).encode()).hexdigest()


@pytest.mark.parametrize("upto", [50, 250])
def test_spark_goes_on_after_the_history_and_the_planned_epoch_is_forgotten(checkpoint: Path, upto: int) -> None:
    Progress(checkpoint).go_to(upto)
    first = max(0, upto - RETAINED)
    for folder in ("offsets", "commits"):
        names = [file.name for file in (checkpoint / folder).iterdir()]
        assert sorted(int(name) for name in names if name.isdigit()) == list(range(first, upto))
        assert {name for name in names if name.endswith(".crc")} <= {f".{old}.crc" for old in range(first, 3)}
    assert (checkpoint / "offsets" / str(upto - 1)).read_text() == offsets(upto - 1)


def test_a_source_whose_offsets_are_not_linear_is_refused(checkpoint: Path) -> None:
    (checkpoint / "offsets" / "2").write_text(f"v1\n{METADATA}\n{json.dumps({'offset': 151})}")
    with pytest.raises(AssertionError, match="not linear"):
        Progress(checkpoint)


def test_no_data_file_has_more_names_than_a_file_system_lets_it_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LINKS + 1 < 65_000, "what ext4 takes; other file systems of today take more"
    monkeypatch.setattr(history, "LINKS", 3)
    (tmp_path / "part").write_bytes(b"rows")
    for epoch in range(1, 9):
        named = history._linked(tmp_path, {"path": "part", "size": 4}, epoch)
        assert named == {"path": f"{epoch}-part", "size": 4}
        assert (tmp_path / f"{epoch}-part").read_bytes() == b"rows"
    assert max(file.stat().st_nlink for file in tmp_path.iterdir()) == 3 + 1
