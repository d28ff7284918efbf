"""Names of a package that are imported when they are first asked for (PEP 562).

A task of Spark loads the few modules of a sink that it runs, and Python the packages that these lie in; what a package
offers to a driver, no task has a use for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def when_asked(
    package: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    ``package``: its ``globals()``.  ``modules``: of each name the module that has it; where that module's own last name
    is the same, the module itself is meant.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        is_meant = modules[name].rpartition(".")[2] == name
        package[name] = module if is_meant else getattr(module, name)  # so that it is asked once
        return package[name]

    def names() -> list[str]:
        return sorted({*package["__all__"], *modules})

    return get, names
