"""How a sink is copied and unpickled, also one that an earlier version pickled."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def take_state(sink: object, state: Mapping[str, Any]) -> None:
    """Do the work of a sink's ``__setstate__``, which ``copy.copy`` and ``pickle`` call.

    A copy gets a core of its own: each start copies the sinks of its pipeline, and what a start has seen is its own.
    ``state`` holds the sink's arguments in ``_made_with``, whatever version pickled it.  A state from before ``_core``
    existed has the attributes of the sink in another form: that sink is made anew from its arguments.
    """
    if "_core" in state:
        sink.__dict__.update(state, _core=copy.copy(state["_core"]))
    else:
        sink.__init__(**state["_made_with"])  # type: ignore[misc]
