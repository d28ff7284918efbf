"""What can go wrong, and how would we know?

The chaos kit.  Each part is imported only when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochal.chaos.strike.replay import replay_last_epoch

__all__ = ["replay_last_epoch"]


def __getattr__(name: str) -> Any:
    """Import a public name only when it is used, so that nobody pays for parts that they do not use."""
    if name == "replay_last_epoch":
        from epochal.chaos.strike.replay import replay_last_epoch

        return replay_last_epoch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
