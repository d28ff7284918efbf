"""What does a run look like to people?

The report is one HTML file with the verdict and everything behind it.  It can be read without a network.  Call
``write(path, [Round.judged(run)], about)`` for one run; a campaign of many rounds passes all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from epochal.chaos.report.account import Round

__all__ = ["Round", "html", "write"]


def write(path: Path, rounds: Sequence[Round], about: Mapping[str, Any]) -> None:
    """Write the report as a file of less than 5 MB.

    ``about`` may hold anything, such as seed, target, command and versions.  The same rounds and the same ``about``
    give the same bytes.  This needs matplotlib, which the extra ``chaos`` installs.
    """
    path.write_text(html(rounds, about), encoding="utf-8")


def html(rounds: Sequence[Round], about: Mapping[str, Any]) -> str:
    """Return the page that :func:`write` writes."""
    from epochal.chaos.report.page import Page  # imports matplotlib, which only reports need

    return Page(rounds, about).html()
