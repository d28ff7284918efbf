"""The registry of guards: where production code refuses to continue, and which mutant removes that.

A *guard* is one of these in ``coordinator/``, ``checkpoints/`` and ``sinks/``: a ``raise``; a ``return`` of an error
of ``coordinator/model/errors.py``, as in the rules of ``judge.py``; or a call of a condition (``check_*``,
``already_committed``, ``raise_if_refused``).  The registry is computed and never written by hand, so a new guard is in
it at once.  A test fails if a guard has no mutant.  Guards in SQL, or in the order of two calls, are no statements of
their own and cannot be found in the Python code.  For them, bugs are planted by hand.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from epochal.chaos.mutants.operators import ERRORS, Mutant, called, error_kinds, is_condition, mutants
from epochal.chaos.mutants.planting import bugs

FOLDERS = ("coordinator", "checkpoints", "sinks")


@dataclass(frozen=True)
class Guard:
    """One guard.  ``what`` says what it raises, returns or calls."""

    file: str
    line: int
    what: str


@dataclass(frozen=True)
class Entry:
    """A guard and the ``mutant`` that removes it (None: no mutant does).

    ``planted`` names the bugs that are planted by hand in the same lines.
    """

    guard: Guard
    mutant: Mutant | None
    planted: tuple[str, ...] = ()

    def __str__(self) -> str:
        by = f"{self.mutant.operator}" if self.mutant is not None else "NO MUTANT"
        more = f"; planted: {', '.join(self.planted)}" if self.planted else ""
        return f"{self.guard.file}:{self.guard.line} {self.guard.what}: {by}{more}"


def guards(root: Path) -> Iterator[Guard]:
    """Return all guards of a checkout, found in the syntax tree of every file."""
    kinds = error_kinds(root)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root)
            if file != ERRORS:
                yield from (Guard(str(file), line, what) for line, what in _of(ast.parse(path.read_bytes()), kinds))


def _of(tree: ast.Module, kinds: frozenset[str]) -> Iterator[tuple[int, str]]:
    wording = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (makes := _makes(node, kinds)) is not None
        for part in ast.walk(makes)
    }
    for node in ast.walk(tree):
        if node in wording:
            continue
        if isinstance(node, ast.Raise):
            yield (
                node.lineno,
                f"raise {ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)}"
                if node.exc
                else "raise",
            )
        elif isinstance(node, ast.Return) and node.value is not None and called(node.value) in kinds:
            yield node.value.lineno, f"return {called(node.value)}"
        elif isinstance(node, ast.Call) and is_condition(node):
            yield node.lineno, called(node)


def _makes(function: ast.FunctionDef, kinds: frozenset[str]) -> ast.Return | None:
    """The only return of a function that only makes an error; then the guards are in its callers."""
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return)]
    if len(returns) == 1 and returns[0].value is not None and called(returns[0].value) in kinds:
        return returns[0]
    return None


def registry(root: Path) -> list[Entry]:
    """Return every guard with its mutant."""
    planted = [(bug.name, bug.file, *_lines(root, bug.file, bug.old)) for bug in bugs(root)]
    by_file: dict[str, dict[int, Mutant]] = {}
    found = []
    for guard in guards(root):
        if guard.file not in by_file:
            taking = (m for m in mutants(root, guard.file) if m.takes_a_guard)
            by_file[guard.file] = {mutant.line: mutant for mutant in taking}
        names = tuple(n for n, file, first, last in planted if file == guard.file and first <= guard.line <= last)
        found.append(Entry(guard, by_file[guard.file].get(guard.line), names))
    return found


def _lines(root: Path, file: str, text: str) -> tuple[int, int]:
    """The first and last line of ``text`` in a file; (0, -1) if the file does not contain it."""
    path = root / file
    before, there, _ = path.read_text(encoding="utf-8").partition(text) if path.is_file() else ("", "", "")
    first = before.count("\n") + 1
    return (first, first + text.rstrip("\n").count("\n")) if there else (0, -1)
