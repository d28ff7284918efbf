"""The file surgery on a checkpoint, on folders that look like one; what Spark makes of it: integration/spark."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from epochal import chaos
from epochal.chaos import replay_last_epoch
from epochal.coordinator.model.errors import CheckpointMismatch, EpochalError, Misconfigured


def checkpoint(folder: Path, planned: Iterable[int], committed: Iterable[int]) -> Path:
    """A checkpoint with these epochs, and what else Spark leaves beside them."""
    (folder / "metadata").write_text(json.dumps({"id": "11111111-2222"}))
    for name, epochs in (("offsets", planned), ("commits", committed)):
        (folder / name).mkdir()
        (folder / name / ".0a1b.tmp").touch()
        for epoch in epochs:
            (folder / name / f"{epoch}").write_text("v1\n{}")
            (folder / name / f".{epoch}.crc").write_bytes(b"crc")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_newest_commit_and_its_checksum_are_taken_away_and_nothing_else(tmp_path: Path) -> None:
    root = checkpoint(tmp_path, range(9, 12), range(9, 12))
    before = content(root)
    assert replay_last_epoch(root) == 11
    after = content(root)
    assert before.keys() - after.keys() == {"commits/11", "commits/.11.crc"}
    assert after.items() <= before.items()


def test_a_commit_without_a_checksum_is_taken_away_too(tmp_path: Path) -> None:
    root = checkpoint(tmp_path, [0, 1], [0, 1])
    (root / "commits" / ".1.crc").unlink()
    assert replay_last_epoch(root) == 1


def test_the_first_epoch_can_be_replayed(tmp_path: Path) -> None:
    assert replay_last_epoch(checkpoint(tmp_path, [0], [0])) == 0


@pytest.mark.parametrize(("planned", "committed"), [([0], []), ([0, 1], [0]), ([8, 9, 10], [8, 9])])
def test_an_epoch_that_is_replayed_anyway_is_named_and_nothing_is_touched(
    tmp_path: Path, planned: list[int], committed: list[int]
) -> None:
    root = checkpoint(tmp_path, planned, committed)
    before = content(root)
    assert replay_last_epoch(root) == replay_last_epoch(root) == planned[-1]
    assert content(root) == before


def test_a_path_may_be_text_or_an_address(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    root = checkpoint(folder, range(3), range(3))
    assert replay_last_epoch(str(root)) == 2
    for address in (root.as_uri(), f"file:{tmp_path}/a%20b"):
        assert replay_last_epoch(address) == 2


def test_a_checksum_that_was_left_behind_is_taken_away(tmp_path: Path) -> None:
    root = checkpoint(tmp_path, [0, 1], [0, 1])
    (root / "commits" / "1").unlink()
    before = content(root)
    assert replay_last_epoch(root) == 1
    assert before.keys() - content(root).keys() == {"commits/.1.crc"}


# --- refused ----------------------------------------------------------------------------------------


def refused(root: str | Path, kind: type[EpochalError]) -> str:
    """What the refusal says; the files are as they were."""
    before = content(Path(root))
    with pytest.raises(kind) as error:
        replay_last_epoch(root)
    assert content(Path(root)) == before
    assert type(error.value) is kind
    return str(error.value)


@pytest.mark.parametrize("missing", ["metadata", "offsets", "commits"])
def test_a_folder_that_is_no_checkpoint(tmp_path: Path, missing: str) -> None:
    root = checkpoint(tmp_path, [], [])
    for path in (root / missing).rglob("*"):
        path.unlink()
    (root / missing).rmdir() if (root / missing).is_dir() else (root / missing).unlink()
    said = refused(root, Misconfigured)
    assert f"{root} is not the checkpoint of a streaming query" in said
    assert f"missing in it: {missing}" in said


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    said = refused(tmp_path / "nowhere", Misconfigured)
    assert "missing in it: metadata, offsets, commits" in said


@pytest.mark.parametrize("metadata", ["", "[]", "{}", '{"id": ""}'])
def test_metadata_that_name_no_query(tmp_path: Path, metadata: str) -> None:
    root = checkpoint(tmp_path, [0], [0])
    (root / "metadata").write_text(metadata)
    assert "its metadata names no query" in refused(root, Misconfigured)


@pytest.mark.parametrize("address", ["hdfs://namenode/checkpoint", "s3a://bucket/checkpoint", "dbfs://x/y"])
def test_a_place_that_is_not_on_a_local_disk(address: str) -> None:
    with pytest.raises(Misconfigured, match=f"the checkpoint {address} is not on a local disk"):
        replay_last_epoch(address)


def test_a_checkpoint_in_which_nothing_was_planned(tmp_path: Path) -> None:
    said = refused(checkpoint(tmp_path, [], []), Misconfigured)
    assert "none was ever planned" in said


def test_a_commit_that_nobody_planned(tmp_path: Path) -> None:
    said = refused(checkpoint(tmp_path, [0, 1], [0, 1, 2]), CheckpointMismatch)
    assert "commits/2 has no offsets/2" in said
    assert "offsets 0 to 1, commits 0 to 2" in said


@pytest.mark.parametrize(("planned", "committed"), [([4, 5], [5]), ([5], [4, 5]), ([5], [5])])
def test_an_epoch_whose_past_is_gone(tmp_path: Path, planned: list[int], committed: list[int]) -> None:
    said = refused(checkpoint(tmp_path, planned, committed), CheckpointMismatch)
    assert "epoch 5 cannot be replayed: epoch 4 before it is not both planned and committed" in said


@pytest.mark.parametrize("commits_again", [False, True])
def test_a_query_of_another_process_that_goes_on_is_noticed_and_gets_its_entry_back(
    tmp_path: Path, commits_again: bool
) -> None:
    root = checkpoint(tmp_path, [0, 1], [0, 1])

    def go_on() -> None:
        limit = time.monotonic() + 120
        while (root / "commits" / "1").exists():
            assert time.monotonic() < limit
        (root / "offsets" / "2").write_text("v1")
        if commits_again:
            (root / "commits" / "1").write_text("of the other")

    other = threading.Thread(target=go_on)
    other.start()
    with pytest.raises(Misconfigured, match="is still running: its checkpoint changes") as error:
        replay_last_epoch(root)
    other.join(120)
    assert "newest offsets were 1, now 2" in str(error.value)
    assert (root / "commits" / "1").read_text() == ("of the other" if commits_again else "v1\n{}")
    assert not list((root / "commits").glob("*.replay"))


def test_the_package_names_what_it_does_not_have() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'replay_first_epoch'"):
        chaos.replay_first_epoch  # noqa: B018
