"""A pipeline over two sinks instead of three, for what is struck beside the sinks: without Delta its drivers start in
half the time. Made anew whenever it is asked for.
"""

from __future__ import annotations

from typing import Any

from epochal.chaos.campaign import own

TARGET = "tests.real.chaos.campaign.fewer:pipeline"
SINKS = ("postgres", "kafka")


def __getattr__(name: str) -> Any:
    if name == "pipeline":
        return own.make(SINKS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
