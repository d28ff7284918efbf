"""Checks the types of what a user passes to a class, by the annotations of that class, before anything uses it.

Without this check a wrong argument ends deep inside in an error of Python, which names no argument.  Whoever makes a
class for users calls :func:`check_types` first; what an argument must be beyond its type is checked where it is used.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from epochal.coordinator.model.errors import Misconfigured

T = TypeVar("T")
WITH_OWN_CHECKS = ("select", "where", "topics", "slots", "keep_epochs", "keep_days", "deterministic")
"""Arguments whose own checks take a value of any type, and say more in their help."""
_OR = re.compile(r" \| (?![^\[]*\])")
"""Between the parts of a union, not inside brackets."""


def check_types(annotated: Mapping[str, str], given: Mapping[str, object], sink: str | None = None) -> None:
    """Raise ``Misconfigured`` for the first argument in ``given`` whose value is of no type in its annotation.

    ``annotated``: the ``__annotations__`` of a function or a dataclass.  An argument is not checked here if a part of
    its annotation is not in :data:`TYPES`.
    """
    for name, value in given.items():
        if name in WITH_OWN_CHECKS:
            continue
        parts = _OR.split(annotated.get(name, ""))
        if all(part in TYPES for part in parts) and not any(TYPES[part][0](value) for part in parts):
            wanted = " or ".join(TYPES[part][1] for part in parts)
            raise Misconfigured(
                f"{name}={value!r} is not {wanted}",
                sink=sink,
                state=f"a value of the type {type(value).__name__}",
                help=f"give {name}= {wanted}",
            )


def _is_text(value: object) -> bool:
    """Return whether this is a text that can be sent anywhere: half of a surrogate pair cannot."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_list(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping | range)


def are_texts(value: object) -> bool:
    """Return whether this is a list, or another collection, of texts."""
    return _is_list(value) and isinstance(value, Collection) and all(map(_is_text, value))


def _are_named(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, value))


TYPES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "None": (lambda value: value is None, "None"),
    "str": (_is_text, "a text"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (_is_whole, "a whole number"),
    "float": (_is_number, "a number"),
    "Sequence[str]": (are_texts, "a list of texts"),
    "Sequence[Sink]": (_is_list, "a list of sinks"),
    "Mapping[str, str]": (lambda value: isinstance(value, Mapping) and _are_named(value), "a dict of texts"),
    "Options": (_are_named, "a dict of options"),
    "Dsn": (lambda value: _is_text(value) or callable(value), "a connection string"),
    "Callable[[], str]": (callable, "a function that returns one"),
    "os.PathLike[str]": (lambda value: isinstance(value, os.PathLike), "a path"),
    "MakeValue": (callable, "a function"),
    "Callable[[], Options]": (callable, "a function that returns one"),
    "Callable[[float], None]": (callable, "a function"),
}
"""Parts of annotations: which values are of the type, and its name in plain words."""
