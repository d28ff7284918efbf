"""How a pickled sink becomes a sink again, also one that an earlier version pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def take_state(sink: object, state: Mapping[str, Any]) -> None:
    """Do the work of a sink's ``__setstate__``.  Both forms of ``state`` hold the sink's arguments in ``_made_with``.

    Earlier versions had no ``_core``: their state is that of one large object.  Such a sink is made anew from its
    arguments.
    """
    if "_core" in state:
        sink.__dict__.update(state)
    else:
        sink.__init__(**state["_made_with"])  # type: ignore[misc]
