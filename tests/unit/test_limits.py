"""docs/limits.md says what the code says: each message that it quotes is one that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text()
ANY = "…"
QUOTED = [
    quoted for row in re.findall(r"^\|.*\| (.*) \|$", PAGE, re.MULTILINE) for quoted in re.findall(r"`([^`]+)`", row)
]


def words(node: ast.expr) -> str | None:
    """The text that an expression gives, with ``ANY`` for what is only known later; None for what is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(ANY if isinstance(part, ast.FormattedValue) else words(part) or "" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [words(side) for side in (node.left, node.right)]
        return "".join(part if part is not None else ANY for part in parts) if any(parts) else None
    return None


def said() -> set[str]:
    """Every text in the code of production."""
    files = [file for folder in ("coordinator", "checkpoints", "sinks") for file in (ROOT / folder).rglob("*.py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.expr))
    return {text for node in nodes if (text := words(node))}


@pytest.fixture(scope="module")
def code() -> set[str]:
    return said()


@pytest.mark.parametrize("quoted", QUOTED)
def test_what_the_page_quotes_is_what_the_code_says(code: set[str], quoted: str) -> None:
    assert any(quoted in text for text in code), quoted


def test_the_page_is_linked_and_quotes_enough_to_be_one() -> None:
    assert len(QUOTED) > 60
    assert all(len(quoted.replace(ANY, "")) > 8 for quoted in QUOTED)
    assert "docs/limits.md" in (ROOT / "README.md").read_text()
