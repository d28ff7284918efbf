"""What was written down under old names, and is read today."""

from __future__ import annotations

import importlib.machinery
import subprocess
import sys

from epochal.chaos.campaign import own
from epochal.coordinator.environment.moved import MOVED, OldNames


def test_our_own_pipelines_are_known_under_the_target_that_was_documented() -> None:
    assert {name: own.named(f"epochal.chaos.own:{name}") is one for name, one in own.OWN.items()} == dict.fromkeys(
        own.OWN, True
    )


def test_two_threads_that_import_old_names_at_once_leave_each_module_its_spec() -> None:
    """The steps of ``import``, of one thread and of another: create, create, run, run."""
    [finder] = [found for found in sys.meta_path if isinstance(found, OldNames)]
    names = ("epochal.coordinator.epoch", "epochal.coordinator.errors")
    modules = [finder.create_module(importlib.machinery.ModuleSpec(name, finder)) for name in names]
    kept = [module.__spec__ for module in modules]
    try:
        for module in modules:
            finder.exec_module(module)
        assert [module.__spec__ and module.__spec__.name for module in modules] == [MOVED[name] for name in names]
    finally:
        for module, spec in zip(modules, kept, strict=True):
            module.__spec__ = spec


def test_a_module_runs_as_a_program_under_its_old_name() -> None:
    command = [sys.executable, "-m", "epochal.coordinator.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
