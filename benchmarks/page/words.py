"""Units as words, for titles and axes."""

from __future__ import annotations

import re

from epochal.chaos.report.text import line


def spelled(unit: str) -> str:
    """Return the unit in words: ``s`` and ``s more`` become seconds; any other unit stays as it is."""
    return re.sub(r"^s(?=$| )", "seconds", line(unit, 80))


def begun(unit: str) -> str:
    """Return the unit in words with a capital, for the beginning of a title."""
    text = spelled(unit)
    return text[:1].upper() + text[1:]
