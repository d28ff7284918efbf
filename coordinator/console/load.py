"""Finds the user's pipeline: a module, and in it the name of a ``Pipeline`` or of a function that returns one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from epochal.coordinator.console.render import Usage
from epochal.coordinator.model.errors import EpochalError
from epochal.coordinator.query.pipeline import Pipeline

FORM = "it is written as job:pipeline or path/to/job.py:pipeline"


def load(text: str) -> Pipeline:
    """Return the pipeline that ``text`` names.  Raise ``Usage`` if something of it does not exist."""
    if not text:
        raise Usage(f"the sinks are not known: give --pipeline, or set EPOCHAL_PIPELINE; {FORM}")
    module, colon, name = text.rpartition(":")
    if not (module and colon and name.isidentifier()):
        raise Usage(f"--pipeline {text!r} names no pipeline; {FORM}")
    found = getattr(_module(module, text), name, None)
    if found is None:
        raise Usage(f"--pipeline {text!r}: {module} has no {name}")
    return _pipeline(found, text)


def find(text: str) -> Pipeline | None:
    """Return the pipeline that ``text`` names, or None if ``text`` is empty."""
    return load(text) if text else None


def _pipeline(found: Any, text: str) -> Pipeline:
    if not isinstance(found, Pipeline) and callable(found) and not isinstance(found, type):
        try:
            found = found()
        except EpochalError:
            raise
        except Exception as error:
            raise Usage(f"--pipeline {text!r}: calling it raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Pipeline):
        raise Usage(
            f"--pipeline {text!r} is {type(found).__name__}, not an epochal.Pipeline or a function that returns one"
        )
    return found


def _module(name: str, text: str) -> ModuleType:
    if name.endswith(".py") and not Path(name).is_file():
        raise Usage(f"--pipeline {text!r}: there is no file {name}")
    try:
        return _file(Path(name)) if name.endswith(".py") else _importable(name)
    except EpochalError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Usage(f"--pipeline {text!r} cannot be imported: {type(error).__name__}: {error}") from error


def _importable(name: str) -> ModuleType:
    """Import a module by Python's path, and from the current folder, as ``python -m`` does."""
    _search(Path.cwd())
    return importlib.import_module(name)


def _file(path: Path) -> ModuleType:
    """Import a file as Python runs a script: it can import modules from its own folder."""
    _search(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "it ends with .py"
    assert spec.loader is not None, "a file has one"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(path.stem, None)  # as Python does
        raise
    return module


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
