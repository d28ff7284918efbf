"""Units in full, for titles and axes."""

from __future__ import annotations

import re

from epochal.chaos.report.text import line


def spelled(unit: str) -> str:
    """``s`` and ``s more`` are seconds; all else is as it is."""
    return re.sub(r"^s(?=$| )", "seconds", line(unit, 80))


def begun(unit: str) -> str:
    """The same as a title begins with it."""
    text = spelled(unit)
    return text[:1].upper() + text[1:]
