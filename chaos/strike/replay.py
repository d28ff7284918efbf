"""Makes Spark run a streaming query's newest epoch once more, as it would after a death of the driver.

A driver that dies after the sinks have shown epoch N, and before Spark has written ``commits/N``, leaves a
checkpoint behind whose newest ``offsets/N`` has no ``commits/N``; the next start then runs epoch N again, with
the same offsets.  Taking ``commits/N`` away *is* that state, so what a sink makes of a replay can be tested with
no kill at all (apache/paimon#9666)::

    query.stop()
    epoch = replay_last_epoch(checkpoint)
    ...  # start the query again: Spark replays `epoch`; the output must not change

It fits stateless and stateful queries, with state store format 1 and 2: an epoch builds on the state that
``commits/<N-1>`` names and writes its own anew.  For that the function of ``foreachBatch`` must read the whole
batch on a replay too.
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

_MOMENT = 0.3  # seconds in which a busy query of another process goes on, and so shows that it runs


def replay_last_epoch(checkpoint: str | os.PathLike[str]) -> EpochNumber:
    """Delete the newest ``commits/N`` of a checkpoint on a local disk; N, which Spark runs at the next start.

    Where the newest planned epoch has no ``commits/N``, Spark runs it again anyway: nothing is deleted, but for a
    checksum of it that surgery by hand has left behind, as Spark would stumble over it.  Refused, with nothing
    changed: a path that is no checkpoint (``Misconfigured``), one of which a query of this process is
    running or that changes meanwhile (``Misconfigured``), one in which no epoch was ever planned
    (``Misconfigured``), and one whose files do not tell one story (``CheckpointMismatch``).
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
    """Of this process Spark can be asked; another process's query shows only when it goes on."""
    running = [name for name, place in _queries() if _same(place, root)]
    if running:
        raise Misconfigured(
            f"the query of {root} is still running",
            state=f"query {running[0]}",
            help="call query.stop() first, and let awaitTermination() return",
        )


def _queries() -> Iterator[tuple[str, Path]]:
    """(id, checkpoint) of the running queries of this process's Spark, if it has one."""
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
    """Spark goes on from the epoch before: it must be planned and committed."""
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
    """The files that Spark takes for entries: those whose names are numbers."""
    return sorted(int(name) for name in os.listdir(folder) if name.isascii() and name.isdigit())


def _drop_checksum(commits: Path, epoch: EpochNumber) -> None:
    """A file without a checksum is read, but a checksum without its file is in Spark's way.

    Spark then cannot write ``commits/N`` again, and blames another query (``CONCURRENT_STREAM_LOG_UPDATE``).
    """
    (commits / f".{epoch}.crc").unlink(missing_ok=True)
    _sync(commits)


def _forget(commits: Path, epoch: EpochNumber, planned: list[EpochNumber]) -> None:
    """Take ``commits/N`` away, durably; back again, if the query turns out to run."""
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
