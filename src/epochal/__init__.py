"""Exactly-once sinks for Spark Structured Streaming: one query, several sinks, one decision per epoch.

Importing this package needs nothing but Python.  Spark and the sinks' clients are imported only where they are used.
"""

from typing import TYPE_CHECKING

from epochal.coordinator.environment.lazy import when_asked
from epochal.coordinator.environment.moved import find_old_names
from epochal.coordinator.model import errors
from epochal.coordinator.model.errors import (
    CalledTwice,
    CheckpointMismatch,
    CommitInDoubt,
    EpochalError,
    Fenced,
    Interrupted,
    LogCorrupt,
    MarkerLost,
    Misconfigured,
    NonDeterministicReplay,
    OutcomeUnknown,
    PreparedLost,
    PrepareRefused,
    SinkUnavailable,
)

if TYPE_CHECKING:
    from epochal import sinks as sinks  # an attribute, but not part of `import *`
    from epochal.coordinator.model import events
    from epochal.coordinator.protocol.retry import Retry
    from epochal.coordinator.query.answers import Guarantee, PipelineStatus
    from epochal.coordinator.query.diagnosis import Diagnosis
    from epochal.coordinator.query.pipeline import Pipeline
else:
    __getattr__, __dir__ = when_asked(
        globals(),
        {
            "Diagnosis": "epochal.coordinator.query.diagnosis",
            "Guarantee": "epochal.coordinator.query.answers",
            "Pipeline": "epochal.coordinator.query.pipeline",
            "PipelineStatus": "epochal.coordinator.query.answers",
            "Retry": "epochal.coordinator.protocol.retry",
            "events": "epochal.coordinator.model.events",
            "sinks": "epochal.sinks",
        },
    )

find_old_names()

__version__ = "0.1.0"

__all__ = [
    "CalledTwice",
    "CheckpointMismatch",
    "CommitInDoubt",
    "Diagnosis",
    "EpochalError",
    "Fenced",
    "Guarantee",
    "Interrupted",
    "LogCorrupt",
    "MarkerLost",
    "Misconfigured",
    "NonDeterministicReplay",
    "OutcomeUnknown",
    "Pipeline",
    "PipelineStatus",
    "PrepareRefused",
    "PreparedLost",
    "Retry",
    "SinkUnavailable",
    "__version__",
    "errors",
    "events",
]
