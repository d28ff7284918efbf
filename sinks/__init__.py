"""What is a sink?

This package holds the sinks.  Each sink class is imported when it is first used, so that no sink needs the client
library of another one.

Other packages can add sinks.  A package registers its class under the entry point group ``epochal.sinks``; the class
can then be imported from here by its registered name.  A registered class never replaces a sink of Epochal.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.errors import Misconfigured

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


GROUP = "epochal.sinks"
"""The group of the entry points: ``name = "package.module:Class"``."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        return _registered(name)
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


def _registered(name: str) -> Any:
    """Return the sink class of another package: the one that a single entry point registers under ``name``."""
    import importlib.metadata

    found = {entry.value: entry for entry in importlib.metadata.entry_points(group=GROUP, name=name)}
    if not found:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if len(found) > 1:
        raise Misconfigured(
            f"several packages register a sink {name}",
            state=f"entry points {sorted(found)}",
            help="import it from its own package, or uninstall all but one",
        )
    [(value, entry)] = found.items()
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise Misconfigured(
            f"the sink {name} is registered as {value} and is not there: {error}",
            help="reinstall its package, with what it needs",
        ) from error
