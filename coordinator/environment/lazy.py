"""Names of a package that are imported only when they are first used (PEP 562).

A Spark task imports the few modules of a sink that it needs, and Python then imports their packages, too.  A task needs
nothing of what a package offers to the driver, so the package must not import that.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def when_asked(
    package: dict[str, Any], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package.

    ``package``: the package's ``globals()``.  ``modules``: for each name, the module that defines it.  A name that is
    also the last part of that module's name stands for the module itself.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        is_meant = modules[name].rpartition(".")[2] == name
        package[name] = module if is_meant else getattr(module, name)  # kept, so that `get` runs once per name
        return package[name]

    def names() -> list[str]:
        return sorted({*package["__all__"], *modules})

    return get, names
