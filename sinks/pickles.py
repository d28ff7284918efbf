"""How a sink is unpickled, also one that an earlier version pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def take_state(sink: object, state: Mapping[str, Any]) -> None:
    """Do the work of a sink's ``__setstate__``.

    ``state`` holds the sink's arguments in ``_made_with``, whatever version pickled it.  A state from before ``_core``
    existed has the attributes of the sink in another form: that sink is made anew from its arguments.
    """
    if "_core" in state:
        sink.__dict__.update(state)
    else:
        sink.__init__(**state["_made_with"])  # type: ignore[misc]
