"""What this version of Epochal writes down, kept in ``formats/``: it is read from now on, whatever is written later.

A file stays as it is for ever.  Where a form gets a new version, the test that holds "and is written so" moves on to a
new file, and the old one goes on being read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FORMATS = Path(__file__).with_name("formats")
AS_HERE = "<as here>"
"""In a kept file: what depends on server, topic and path is what it is here."""


def kept(name: str, here: Any) -> Any:
    """The file, with what depends on the place taken from ``here``, which was made now."""
    return _filled(json.loads((FORMATS / name).read_text()), here)


def _filled(old: Any, here: Any) -> Any:
    if old == AS_HERE:
        return here
    if isinstance(old, dict):
        return {key: _filled(value, here.get(key) if isinstance(here, dict) else None) for key, value in old.items()}
    if isinstance(old, list) and isinstance(here, list) and len(old) == len(here):
        return [_filled(value, now) for value, now in zip(old, here, strict=True)]
    return old
