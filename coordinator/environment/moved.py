"""The old names of modules that moved, so that old imports and old pickles still work.

A pickle names classes by their modules.  An import of an old name gives the same module object as the new name, so each
class exists only once.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

MOVED = {
    "epochal.chaos.checker": "epochal.chaos.observe.checker",
    "epochal.chaos.failpoints": "epochal.coordinator.model.failpoints",
    "epochal.chaos.history": "epochal.chaos.observe.history",
    "epochal.chaos.own": "epochal.chaos.campaign.own",
    "epochal.chaos.recording": "epochal.chaos.observe.recording",
    "epochal.chaos.schedule": "epochal.chaos.simulate.schedule",
    "epochal.chaos.simulation": "epochal.chaos.simulate.simulation",
    "epochal.chaos.targets": "epochal.chaos.job.targets",
    "epochal.coordinator.acts": "epochal.coordinator.protocol.actions",
    "epochal.coordinator.cli": "epochal.coordinator.console.cli",
    "epochal.coordinator.coordinator": "epochal.coordinator.protocol.coordinator",
    "epochal.coordinator.epoch": "epochal.coordinator.model.epoch",
    "epochal.coordinator.errors": "epochal.coordinator.model.errors",
    "epochal.coordinator.events": "epochal.coordinator.model.events",
    "epochal.coordinator.imports": "epochal.coordinator.environment.lazy",
    "epochal.coordinator.judge": "epochal.coordinator.protocol.judge",
    "epochal.coordinator.lint": "epochal.coordinator.query.lint",
    "epochal.coordinator.log_keys": "epochal.coordinator.model.log_keys",
    "epochal.coordinator.metrics": "epochal.coordinator.telemetry.metrics",
    "epochal.coordinator.operate": "epochal.coordinator.query.operate",
    "epochal.coordinator.pipeline": "epochal.coordinator.query.pipeline",
    "epochal.coordinator.plan": "epochal.coordinator.query.plan",
    "epochal.coordinator.progress": "epochal.coordinator.telemetry.progress",
    "epochal.coordinator.records": "epochal.coordinator.telemetry.records",
    "epochal.coordinator.spark": "epochal.coordinator.query.spark",
    "epochal.coordinator.versions": "epochal.coordinator.environment.versions",
    "epochal.sinks.digest": "epochal.sinks.rows.digest",
    "epochal.sinks.executors": "epochal.sinks.spark.executors",
    "epochal.sinks.formats": "epochal.sinks.rows.formats",
    "epochal.sinks.keyed": "epochal.sinks.rows.keyed",
    "epochal.sinks.projection": "epochal.sinks.rows.projection",
    "epochal.sinks.rejects": "epochal.sinks.rows.rejects",
    "epochal.sinks.stage": "epochal.sinks.spark.stage",
    "epochal.sinks.threads": "epochal.sinks.spark.threads",
    "epochal.sinks.workers": "epochal.sinks.spark.workers",
}


class OldNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules in ``MOVED`` under their old names."""

    def __init__(self) -> None:
        self._specs: dict[str, importlib.machinery.ModuleSpec | None] = {}  # of the modules, by their new names

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in MOVED:
            return None
        found = importlib.util.find_spec(MOVED[fullname])
        return importlib.machinery.ModuleSpec(fullname, self, origin=found.origin if found is not None else None)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(MOVED[spec.name])
        self._specs.setdefault(module.__name__, module.__spec__)  # a second thread may find it overwritten
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Put back the module's spec, which the import system has overwritten.  The module's code has run already."""
        module.__spec__ = self._specs[module.__name__]

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module, for ``python -m`` with an old name."""
        found = importlib.util.find_spec(MOVED[fullname])
        assert found is not None
        assert isinstance(found.loader, importlib.abc.InspectLoader)
        return found.loader.get_code(MOVED[fullname])


def find_old_names() -> None:
    """Make imports of old names work from now on.  The package calls this once, when it is imported."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.append(OldNames())
