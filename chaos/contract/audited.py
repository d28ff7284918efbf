"""What a sink must do, in addition to the other suites, if it lists its epochs.

Such a sink is an :class:`~epochal.sinks.protocol.AuditedSink`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from epochal.chaos.contract.harness import SinkHarness
from epochal.coordinator.model.epoch import Digest, Epoch
from epochal.sinks.protocol import AuditedSink


@dataclass(frozen=True)
class Given:
    """One committed epoch and what the sink was given for it."""

    epoch: Epoch
    rows: int
    digest: Digest | None = None


def tells(harness: SinkHarness, given: Sequence[Given]) -> None:
    """Assert that a new sink object, without ``look``, lists exactly the epochs ``given``.

    Do nothing if the sink is not an AuditedSink.
    """
    sink = harness.sink()
    if not isinstance(sink, AuditedSink):
        return
    told = sink.epochs(harness.app).rows
    assert [
        (row.app, row.sink, row.position, row.epoch, row.incarnation, row.decision, row.offsets, row.watermark)
        for row in told
    ] == [
        (
            harness.app,
            sink.name,
            of.epoch.position,
            of.epoch.number,
            of.epoch.decision.incarnation,
            of.epoch.decision.id,
            of.epoch.offsets,
            of.epoch.watermark,
        )
        for of in given
    ]
    assert [(row.rows, row.digest) for row in told] == [(of.rows, of.digest) for of in given]
    times = [row.committed_at for row in told]
    assert all(time.utcoffset() == timedelta(0) for time in times)
    assert times == sorted(times)
    assert sink.epochs(harness.app, limit=1).rows == told[-1:]
    assert sink.epochs(harness.app, limit=len(told) + 5).rows == told
    assert sink.epochs(harness.app, first=2, last=2).rows == told[1:2]
    assert sink.epochs(harness.app, last=2, limit=1).rows == told[1:2]
    assert sink.epochs(harness.app, first=len(told) + 1).rows == ()
    sink.close()
