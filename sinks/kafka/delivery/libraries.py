"""Whether an executor has the libraries of a vote.  Each task asks, because executors may join after a start."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.errors import EpochalError, PrepareRefused
from epochal.sinks.kafka.batches import frame
from epochal.sinks.spark.executors import error_of_a_worker, lacked_by_a_worker

PACKAGES = "'epochal[kafka]'"
"""What ``pip install`` gives an executor for a vote."""
_HELP = f"pip install {PACKAGES} on that host (and on every other one that may run an executor), then restart the query"
_STANDS = "nothing of the epoch is visible"


def check_here(sink: str) -> None:
    """Raise ``PrepareRefused`` if this Python lacks a library; for a task, whose Spark job may run it elsewhere."""
    if lacking := frame.lacking():
        host = socket.gethostname()
        raise PrepareRefused(
            f"the executors' Python on host {host} cannot load {lacking}",
            sink=sink,
            state=f"an executor on {host} was to write rows; {_STANDS}",
            help=_HELP,
        )


@contextlib.contextmanager
def naming(sink: str, epoch: EpochNumber) -> Iterator[None]:
    """Raise an error that says what an executor lacks, if a Spark job of this scope failed for that."""
    try:
        yield
    except Exception as error:
        lacked = _error_of(error, sink, epoch)
        if lacked is None:
            raise
        raise lacked from error


def _error_of(error: Exception, sink: str, epoch: EpochNumber) -> EpochalError | None:
    """Return an error that says what an executor lacks, if a Spark job failed for that; else None."""
    told = error_of_a_worker(error, epoch)
    if told is not None:
        return told
    if not (lacking := lacked_by_a_worker(error)):
        return None
    return PrepareRefused(
        f"an executor's Python cannot begin a task of the sink: {lacking}",
        sink=sink,
        epoch=epoch,
        state=f"Spark's log names the host where it says 'Lost task'; {_STANDS}",
        help=_HELP,
    )
