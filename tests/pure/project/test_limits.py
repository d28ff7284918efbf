"""docs/limits.md says what the code says: each message that it quotes is one that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs.generate import HOLE, sources, words

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "limits.md").read_text()
QUOTED = [
    quoted for row in re.findall(r"^\|.*\| (.*) \|$", PAGE, re.MULTILINE) for quoted in re.findall(r"`([^`]+)`", row)
]


def said() -> set[str]:
    """Every text in the code of production."""
    nodes = (node for _, tree in sources() for node in ast.walk(tree) if isinstance(node, ast.expr))
    return {text for node in nodes if (text := words(node))}


@pytest.fixture(scope="module")
def code() -> set[str]:
    return said()


@pytest.mark.parametrize("quoted", QUOTED)
def test_what_the_page_quotes_is_what_the_code_says(code: set[str], quoted: str) -> None:
    assert any(quoted in text for text in code), quoted


def test_the_page_is_linked_and_quotes_enough_to_be_one() -> None:
    assert len(QUOTED) > 60
    assert all(len(quoted.replace(HOLE, "")) > 8 for quoted in QUOTED)
    assert "docs/limits.md" in (ROOT / "README.md").read_text()
