"""Make Spark run the newest epoch of a streaming query again, as it does after the driver died.

Suppose that a driver dies after the sinks showed epoch N and before Spark wrote ``commits/N``.  Then the newest
``offsets/N`` of the checkpoint has no ``commits/N``, and the next start runs epoch N again with the same offsets.
Deleting ``commits/N`` makes the same state.  So you can test how a sink treats a replay without killing anything
(apache/paimon#9666)::

    query.stop()
    epoch = replay_last_epoch(checkpoint)
    ...  # start the query again: Spark replays `epoch`; the output must not change

It works for stateless and stateful queries, with state store format 1 and 2.  An epoch starts from the state that
``commits/<N-1>`` names and writes its own state again.  Therefore the function of ``foreachBatch`` must read the whole
batch also on a replay.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.errors import CheckpointMismatch, Misconfigured

_MOMENT = 0.3  # seconds; a busy query of another process changes the checkpoint in this time


def replay_last_epoch(checkpoint: str | os.PathLike[str]) -> EpochNumber:
    """Delete the newest ``commits/N`` of a checkpoint on a local disk.  Return N, which Spark runs at the next start.

    If the newest planned epoch has no ``commits/N``, Spark runs it again anyway.  Then only a checksum file that was
    left behind for ``commits/N`` is deleted, because it would disturb Spark.

    Raises, without any change of the checkpoint:

    * ``Misconfigured`` if the path is not a checkpoint on a local disk;
    * ``Misconfigured`` if its query is running in this process, or if its files change meanwhile;
    * ``Misconfigured`` if no epoch was ever planned in it;
    * ``CheckpointMismatch`` if its offsets and commits do not fit together.
    """
    root = _local(checkpoint)
    _check_is_checkpoint(root)
    _check_not_running(root)
    planned, committed = epochs(root / "offsets"), epochs(root / "commits")
    if not planned:
        raise Misconfigured(
            f"there is no epoch to replay in {root}: none was ever planned",
            state=f"offsets: none, commits: {committed or 'none'}",
            help="run the query over some input first",
        )
    newest = planned[-1]
    _check_story(root, planned, committed)
    if newest in committed:
        _forget(root / "commits", newest, planned)
    else:
        _drop_checksum(root / "commits", newest)
    return newest


# --- what is refused --------------------------------------------------------------------------------


def _local(checkpoint: str | os.PathLike[str]) -> Path:
    text = os.fspath(checkpoint)
    url = urlparse(text)
    if url.scheme == "file":
        return Path(unquote(url.path))
    if url.scheme and "://" in text:
        raise Misconfigured(
            f"the checkpoint {text} is not on a local disk",
            help="test with a checkpointLocation on a local disk, or delete its newest commits/N by hand",
        )
    return Path(text)


def _check_is_checkpoint(root: Path) -> None:
    missing = [name for name in ("metadata", "offsets", "commits") if not (root / name).exists()]
    if not missing:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            if json.loads((root / "metadata").read_text(encoding="utf-8"))["id"]:
                return
    raise Misconfigured(
        f"{root} is not the checkpoint of a streaming query",
        state=f"missing in it: {', '.join(missing)}" if missing else "its metadata names no query",
        help="give the folder that the query has as checkpointLocation, after the query has run",
    )


def _check_not_running(root: Path) -> None:
    """Ask the Spark of this process for running queries.

    A query of another process cannot be seen here.  It is noticed later, when it changes the checkpoint.
    """
    running = [name for name, place in _queries() if _same(place, root)]
    if running:
        raise Misconfigured(
            f"the query of {root} is still running",
            state=f"query {running[0]}",
            help="call query.stop() first, and let awaitTermination() return",
        )


def _queries() -> Iterator[tuple[str, Path]]:
    """(id, checkpoint) of each running query of this process's Spark session, if there is one."""
    if "pyspark" not in sys.modules:
        return
    from epochal.sinks.spark.executors import running_session

    spark = running_session()
    if spark is None or not hasattr(spark, "_jsparkSession"):
        return
    for query in list(spark._jsparkSession.sharedState().activeStreamingQueries().values()):
        with contextlib.suppress(Misconfigured):
            yield str(query.id()), _local(str(query.resolvedCheckpointRoot()))


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return one.samefile(other)
    return False


def _check_story(root: Path, planned: list[EpochNumber], committed: list[EpochNumber]) -> None:
    """Check that the epoch before is planned and committed, because Spark continues from it."""
    newest, state = planned[-1], f"offsets {_few(planned)}, commits {_few(committed)}"
    if committed and committed[-1] > newest:
        raise CheckpointMismatch(
            f"commits/{committed[-1]} has no offsets/{committed[-1]} in {root}",
            epoch=committed[-1],
            state=state,
            help="the checkpoint was edited or copied while it changed: take a whole one",
        )
    before = newest - 1
    if before >= 0 and (before not in planned or before not in committed):
        raise CheckpointMismatch(
            f"epoch {newest} cannot be replayed: epoch {before} before it is not both planned and committed in {root}",
            epoch=newest,
            state=state,
            help="run the query for one more epoch, or take a whole checkpoint",
        )


def _few(epochs: list[EpochNumber]) -> str:
    return f"{epochs[0]} to {epochs[-1]}" if epochs else "none"


# --- the surgery ------------------------------------------------------------------------------------


def epochs(folder: Path) -> list[EpochNumber]:
    """Return the epochs in a folder: Spark takes each file whose name is a number as an entry."""
    return sorted(int(name) for name in os.listdir(folder) if name.isascii() and name.isdigit())


def _drop_checksum(commits: Path, epoch: EpochNumber) -> None:
    """Delete the checksum file of ``commits/N``.

    Spark reads a file without a checksum.  But if a checksum is left without its file, Spark cannot write ``commits/N``
    again, and reports another query (``CONCURRENT_STREAM_LOG_UPDATE``).
    """
    (commits / f".{epoch}.crc").unlink(missing_ok=True)
    _sync(commits)


def _forget(commits: Path, epoch: EpochNumber, planned: list[EpochNumber]) -> None:
    """Delete ``commits/N`` durably.  If the query turns out to be running, put the file back and raise."""
    entry, aside = commits / str(epoch), commits / f".{epoch}.{uuid.uuid4()}.replay"
    entry.rename(aside)
    _sync(commits)
    time.sleep(_MOMENT)
    now = epochs(commits.parent / "offsets")
    if now != planned or entry.exists():
        if not entry.exists():
            aside.rename(entry)
            _sync(commits)
        aside.unlink(missing_ok=True)
        raise Misconfigured(
            f"the query of {commits.parent} is still running: its checkpoint changes",
            state=f"newest offsets were {planned[-1]}, now {now[-1]}",
            help="stop the query, in whichever process it runs",
        )
    _drop_checksum(commits, epoch)
    aside.unlink()
    _sync(commits)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
