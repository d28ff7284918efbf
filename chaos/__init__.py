"""What can go wrong, and how would we know?

What can go wrong, and how we would know.  Each part is imported when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochal.chaos.strike.replay import replay_last_epoch

__all__ = ["replay_last_epoch"]


def __getattr__(name: str) -> Any:
    """Production code imports this package for its failpoints alone, and pays for nothing else."""
    if name == "replay_last_epoch":
        from epochal.chaos.strike.replay import replay_last_epoch

        return replay_last_epoch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
