"""How a sink is copied and unpickled, also one that an earlier version pickled."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def take_state(sink: object, state: Mapping[str, Any]) -> None:
    """Do the work of a sink's ``__setstate__``, which ``copy.copy`` and ``pickle`` call.

    Each start copies the sinks of its pipeline.  A copy gets its own core, because the core holds what one start has
    seen.  ``state`` holds the sink's arguments in ``_made_with``, whatever version pickled it.  An older version, which
    had no ``_core``, stored other attributes: then the sink is made again from its arguments.
    """
    if "_core" in state:
        sink.__dict__.update(state, _core=copy.copy(state["_core"]))
    else:
        sink.__init__(**state["_made_with"])  # type: ignore[misc]
