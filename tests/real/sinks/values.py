"""Values that every sink must hold exactly."""

from __future__ import annotations

PLANES = "".join(chr(plane << 16 | 0xF600) for plane in range(17)) + "é€\U0001f600\ue000"
"""A character of each of Unicode's 17 planes, and of each length in UTF-8."""
