"""What does a run look like to people?

The report: one HTML file that holds a verdict and all that it stands on, readable without a network.

``write(path, [Round.judged(run)], about)`` for one run; a campaign of many rounds passes them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from epochal.chaos.report.account import Round

__all__ = ["Round", "html", "write"]


def write(path: Path, rounds: Sequence[Round], about: Mapping[str, Any]) -> None:
    """Write the report as a file below 5 MB.  ``about``: seed, target, command, versions, and whatever else there is.

    The same rounds and the same ``about`` give the same bytes.  Needs matplotlib, of the extra ``chaos``.
    """
    path.write_text(html(rounds, about), encoding="utf-8")


def html(rounds: Sequence[Round], about: Mapping[str, Any]) -> str:
    """The page that :func:`write` writes."""
    from epochal.chaos.report.page import Page  # brings matplotlib, which whoever writes no report need not have

    return Page(rounds, about).html()
