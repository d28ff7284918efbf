"""The sinks.  Each is imported when it is first asked for, so that none needs another's client library."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from epochal.coordinator.errors import Misconfigured

if TYPE_CHECKING:
    from epochal.sinks.delta import DeltaSink
    from epochal.sinks.kafka import KafkaSink
    from epochal.sinks.memory import MemoryRedoSink, MemoryServer, MemorySink
    from epochal.sinks.postgres import PostgresSink

__all__ = ["DeltaSink", "KafkaSink", "MemoryRedoSink", "MemoryServer", "MemorySink", "PostgresSink"]

_MODULES = {  # name: (module, extra that installs what it needs)
    "DeltaSink": ("epochal.sinks.delta", "delta"),
    "KafkaSink": ("epochal.sinks.kafka", "kafka"),
    "MemoryRedoSink": ("epochal.sinks.memory", ""),
    "MemoryServer": ("epochal.sinks.memory", ""),
    "MemorySink": ("epochal.sinks.memory", ""),
    "PostgresSink": ("epochal.sinks.postgres", "postgres"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _MODULES[name]
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("epochal"):
            raise
        raise Misconfigured(
            f"{name} needs the package {error.name}, which is not installed",
            help=f"pip install 'epochal[{extra}]' (and epochal[spark] where there is no Spark yet)",
        ) from error
