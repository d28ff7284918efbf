"""Takes secrets out of text that people pass on, such as what the doctor prints.

The texts of Epochal name no secret.  But they quote what servers, clients and users' addresses say.  So this is the
second line of defence: it knows the usual forms of a secret, and the values of the environment that are called one.
"""

from __future__ import annotations

import os
import re

HIDDEN = "***"

_WORD = r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credential|jaas|assertion|(?:api|access|account)[_.\-]?key)"
_NAME = rf"[\w.\-]*{_WORD}"
_VALUE = r"""'(?:\\.|''|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\s,;&)}\]'"]+"""
_SHORTEST = 6
"""A value of the environment with fewer characters is no secret, and would be found everywhere."""

_FORMS = (
    (re.compile(r"-----BEGIN [A-Z ]*-----.*?(?:-----END [A-Z ]*-----|\Z)", re.S), HIDDEN),
    (re.compile(r"(\w://[^\s/@:'\"]*):[^\s'\"]*@"), rf"\1:{HIDDEN}@"),
    (re.compile(rf"""({_NAME}[\w.\-]*["']?\s?(?:=|:)\s?)(?:{_VALUE})""", re.I), rf"\1{HIDDEN}"),
    (re.compile(r"([?&](?:sig|signature|key)=)[^\s&'\"]+", re.I), rf"\1{HIDDEN}"),
    (re.compile(r"\b(Bearer|Authorization:\s*\w+)\s+[\w.~+/=-]+", re.I), rf"\1 {HIDDEN}"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]+"), HIDDEN),  # a JSON web token
)
_CALLED_SECRET = re.compile(_NAME, re.I)


def redacted(text: str) -> str:
    """Return the text with ``***`` in place of what is a secret by its form, or by the environment."""
    for value in _of_the_environment():
        text = text.replace(value, HIDDEN)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def _of_the_environment() -> list[str]:
    """Return the values of variables that are called a password or the like, the longest first."""
    found = {value for name, value in os.environ.items() if _CALLED_SECRET.search(name) and len(value) >= _SHORTEST}
    return sorted((value for value in found if not os.path.exists(value)), key=len, reverse=True)
