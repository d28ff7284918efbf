"""Names of a package that are imported when they are first asked for (PEP 562).

A task of Spark loads a sink's own few modules, and with them the packages around these; it has no use for what these
offer to a driver.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def when_asked(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of the package; ``modules``: the module of each name, or the module it is."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        found = module if modules[name].endswith(f".{name}") else getattr(module, name)
        setattr(sys.modules[package], name, found)  # asked once
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names
