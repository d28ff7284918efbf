"""Exactly-once sinks for Spark Structured Streaming: one query, several sinks, one decision per epoch.

Needs nothing but Python to import; Spark and the sinks' clients are imported where they are used.
"""

from typing import TYPE_CHECKING

from epochal.coordinator import errors
from epochal.coordinator.errors import (
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
from epochal.coordinator.imports import when_asked

if TYPE_CHECKING:
    from epochal import sinks as sinks  # an attribute, and no part of `import *`
    from epochal.coordinator import events
    from epochal.coordinator.coordinator import Retry
    from epochal.coordinator.pipeline import Guarantee, Pipeline, PipelineStatus
else:
    __getattr__, __dir__ = when_asked(
        globals(),
        {
            "Guarantee": "epochal.coordinator.pipeline",
            "Pipeline": "epochal.coordinator.pipeline",
            "PipelineStatus": "epochal.coordinator.pipeline",
            "Retry": "epochal.coordinator.coordinator",
            "events": "epochal.coordinator.events",
            "sinks": "epochal.sinks",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "CalledTwice",
    "CheckpointMismatch",
    "CommitInDoubt",
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
