"""The operators of the mechanical mutator: small changes, each of which removes something from the protocol.

=============  =========================================================================================
drop-raise     a ``raise`` becomes ``pass``
drop-refusal   a returned error becomes ``None`` (the rules of ``judge.py`` refuse by returning one)
drop-check     a call of a condition (``check_*``, ``already_committed``, ``raise_if_refused``) is left out
drop-call      any other statement that is a call is left out
drop-set       an attribute or item is not set
drop-jump      a ``break`` or ``continue`` is left out
empty-except   a handler does nothing
negate         a condition is negated, or the result of a function that returns ``bool``
compare        ``<`` and ``<=`` are exchanged, ``>`` and ``>=``, ``==`` and ``!=``, and so on
logic          ``and`` and ``or`` are exchanged
operand        one side of an ``and`` or ``or`` is left out
number         an integer in arithmetic, a comparison, an index or a default is one more
arithmetic     ``+`` and ``-`` are exchanged
flag           ``True`` and ``False`` are exchanged in an argument
extreme        ``min`` and ``max`` are exchanged, and ``any`` and ``all``
=============  =========================================================================================

Some code is never changed, because only texts or types would change: docstrings, annotations, the making of an error
and its text, log lines, ``__repr__`` and ``__str__``, f-strings, assertions, failpoints, and all code outside of
functions.  The first three operators remove a *guard*: see ``guards.py``.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ERRORS = Path("coordinator", "model", "errors.py")
GUARD_OPERATORS = ("drop-raise", "drop-refusal", "drop-check")

_TEXT_FUNCTIONS = ("__repr__", "__str__", "_text", "_line", "describe", "guarantee", "_describe")
_SILENT = ("hit", "debug", "info", "warning", "error", "exception", "super")
_QUIET_FLAGS = ("daemon", "strict", "exist_ok", "repr", "compare", "eq", "order", "frozen", "text", "cancel_futures")
_CONDITIONS = ("already_committed", "raise_if_refused")
_OPPOSITE: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_NEIGHBOUR: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_OTHER_NAME = {"min": "max", "max": "min", "any": "all", "all": "any"}
_TEXT = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)


@dataclass(frozen=True)
class Mutant:
    """Replaces the bytes ``start`` to ``end`` of ``file`` by ``new``.

    ``name`` is for people and has the line number.  ``key`` stays the same as long as the function does not change,
    even if its lines move.
    """

    file: str
    line: int
    end_line: int
    function: str  # with its class, e.g. ``History.took_part``
    operator: str
    old: str  # the old text in one line, for people
    new: str
    start: int
    end: int
    nth: int = 1  # number among mutants whose key is otherwise the same, from the top

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.operator}"

    @property
    def key(self) -> str:
        again = f" #{self.nth}" if self.nth > 1 else ""
        return f"{self.file} {self.function} {self.operator}: {self.old}{again}"

    @property
    def takes_a_guard(self) -> bool:
        return self.operator in GUARD_OPERATORS

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.name} `{self.old}` -> `{_one_line(self.new)}`"


def mutants(root: Path, file: str) -> list[Mutant]:
    """Return all mutants of one file, from the top."""
    source = (root / file).read_bytes()
    seen: set[tuple[int, int, str]] = set()
    found: list[Mutant] = []
    times: Counter[str] = Counter()
    for mutant in _Walk(file, source, error_kinds(root)).module():
        where = (mutant.start, mutant.end, mutant.new)
        if where not in seen:
            seen.add(where)
            times[mutant.key] += 1
            found.append(replace(mutant, nth=times[mutant.key]))
    return found


def error_kinds(root: Path) -> frozenset[str]:
    """Return the names of the errors that a guard may raise or return."""
    path = root / ERRORS
    tree = ast.parse(path.read_bytes()) if path.is_file() else ast.Module([], [])
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    return frozenset(own | {"ValueError", "TypeError", "KeyError", "RuntimeError", "AssertionError", "OSError"})


def called(node: ast.expr) -> str:
    """Return the last name in a call: ``already_committed`` for ``self._conditions.already_committed(...)``."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def is_condition(node: ast.expr) -> bool:
    """Return whether the call is a condition, which refuses by raising, or returns that nothing must be written."""
    name = called(node)
    return name in _CONDITIONS or name.lstrip("_").startswith("check_")


def only_makes_an_error(function: ast.FunctionDef | ast.AsyncFunctionDef, kinds: frozenset[str]) -> bool:
    """Return whether the function only makes an error and returns it.  Then the guards are in its callers."""
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return)]
    return len(returns) == 1 and returns[0].value is not None and called(returns[0].value) in kinds


def _is_text(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the function makes a text for people."""
    return function.name in _TEXT_FUNCTIONS and isinstance(function.returns, ast.Name) and function.returns.id == "str"


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 80 else f"{words[:77]}..."


class _Walk:
    """Goes through one file and yields its mutants."""

    def __init__(self, file: str, source: bytes, kinds: frozenset[str]) -> None:
        self._file = file
        self._source = source
        self._kinds = kinds
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._function = ""
        self._answers_bool = False

    def module(self) -> Iterator[Mutant]:
        yield from self._definitions(ast.parse(self._source).body, "")

    def _definitions(self, body: list[ast.stmt], outer: str) -> Iterator[Mutant]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from self._definitions(node.body, f"{outer}{node.name}.")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from self._definition(node, outer)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef, outer: str) -> Iterator[Mutant]:
        if _is_text(node) or only_makes_an_error(node, self._kinds):
            return
        before = self._function, self._answers_bool
        self._function = f"{outer}{node.name}"
        self._answers_bool = isinstance(node.returns, ast.Name) and node.returns.id == "bool"
        for statement in node.body:
            yield from self._statement(statement)
        self._function, self._answers_bool = before

    # --- statements -----------------------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> Iterator[Mutant]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from self._definition(node, f"{self._function}.")
            return
        if isinstance(node, (ast.Assert, ast.ClassDef, ast.Import, ast.ImportFrom)):
            return
        yield from self._whole(node)
        if isinstance(node, (ast.If, ast.While)):
            yield from self._negated(node.test)
        if isinstance(node, ast.Return) and node.value is not None:
            yield from self._returned(node.value)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from self._statement(child)
            elif isinstance(child, ast.ExceptHandler):
                yield from self._handler(child)
            elif isinstance(child, ast.withitem):
                yield from self._expression(child.context_expr, node)
            elif isinstance(child, ast.expr) and not self._is_annotation(node, child):
                yield from self._expression(child, node)

    def _whole(self, node: ast.stmt) -> Iterator[Mutant]:
        """Mutants that leave out the whole statement."""
        if isinstance(node, ast.Raise):
            yield self._mutant(node, "drop-raise", "pass")
        elif isinstance(node, (ast.Break, ast.Continue)):
            yield self._mutant(node, "drop-jump", "pass")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if is_condition(node.value):
                yield self._mutant(node, "drop-check", "pass")
            elif not self._is_silent(node.value):
                yield self._mutant(node, "drop-call", "pass")
        elif self._sets(node) and not self._function.endswith("__init__"):
            yield self._mutant(node, "drop-set", "pass")

    @staticmethod
    def _sets(node: ast.stmt) -> bool:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.AnnAssign) and node.value is not None):
            targets = [node.target]
        parts = [part for t in targets for part in (t.elts if isinstance(t, ast.Tuple) else [t])]
        return bool(parts) and all(isinstance(p, (ast.Attribute, ast.Subscript)) for p in parts)

    def _returned(self, value: ast.expr) -> Iterator[Mutant]:
        if called(value) in self._kinds:
            yield self._mutant(value, "drop-refusal", "None")
        elif self._answers_bool:
            yield from self._negated(value)

    def _handler(self, node: ast.ExceptHandler) -> Iterator[Mutant]:
        for child in node.body:
            yield from self._statement(child)
        first, last = node.body[0], node.body[-1]
        if not all(self._does_nothing(child) for child in node.body):
            yield self._mutant(first, "empty-except", "pass", until=last)

    def _does_nothing(self, node: ast.stmt) -> bool:
        return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and self._is_silent(node.value))

    @staticmethod
    def _is_annotation(node: ast.stmt, child: ast.expr) -> bool:
        return isinstance(node, ast.AnnAssign) and child is node.annotation

    # --- expressions ----------------------------------------------------------------------------

    def _expression(self, node: ast.expr, parent: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr) or called(node) in self._kinds or self._is_silent(node):
            return
        if isinstance(parent, ast.Raise) and isinstance(node, ast.Call):
            return
        yield from self._changed(node, parent)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                yield from self._comprehension(child)
            elif isinstance(child, ast.keyword):
                yield from self._keyword(child, node)
            elif isinstance(child, ast.expr):
                yield from self._expression(child, node)

    def _comprehension(self, node: ast.comprehension) -> Iterator[Mutant]:
        yield from self._expression(node.iter, node)
        for condition in node.ifs:
            yield from self._negated(condition)
            yield from self._expression(condition, node)

    def _keyword(self, node: ast.keyword, call: ast.expr) -> Iterator[Mutant]:
        value = node.value
        if node.arg == "default" and isinstance(value, (ast.Constant, ast.UnaryOp)):
            yield from self._number(value)
        if isinstance(value, ast.Constant) and isinstance(value.value, bool) and node.arg not in _QUIET_FLAGS:
            yield self._mutant(value, "flag", str(not value.value))
        yield from self._expression(value, call)

    def _changed(self, node: ast.expr, parent: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Call):
            yield from self._call(node, parent)
        elif isinstance(node, ast.IfExp):
            yield from self._negated(node.test)
        elif isinstance(node, ast.BoolOp):
            yield from self._bool_op(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._mutant(node, "negate", f"({self._text(node.operand)})")
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from self._compare(node)
        elif isinstance(node, ast.BinOp):
            yield from self._binary(node)
        elif isinstance(node, ast.Subscript):
            for index in ast.iter_child_nodes(node.slice) if isinstance(node.slice, ast.Slice) else [node.slice]:
                if isinstance(index, (ast.Constant, ast.UnaryOp)):
                    yield from self._number(index)

    def _call(self, node: ast.Call, parent: ast.AST) -> Iterator[Mutant]:
        if is_condition(node) and not isinstance(parent, ast.Expr):
            yield self._mutant(node, "drop-check", "False")
        if isinstance(node.func, ast.Name) and node.func.id in _OTHER_NAME:
            yield self._mutant(node.func, "extreme", _OTHER_NAME[node.func.id])
        for value in node.args:
            if isinstance(value, ast.Constant) and isinstance(value.value, bool):
                yield self._mutant(value, "flag", str(not value.value))
        if called(node) in ("get", "range", "pop"):
            for value in node.args:
                if isinstance(value, (ast.Constant, ast.UnaryOp)):
                    yield from self._number(value)

    def _bool_op(self, node: ast.BoolOp) -> Iterator[Mutant]:
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        sides = [f"({self._text(value)})" for value in node.values]
        yield self._mutant(node, "logic", f"({f' {other} '.join(sides)})")
        for out in range(len(sides)):
            kept = f" {word} ".join(side for n, side in enumerate(sides) if n != out)
            yield self._mutant(node, "operand", f"({kept})", old=node.values[out])

    def _compare(self, node: ast.Compare) -> Iterator[Mutant]:
        left, kind, right = self._text(node.left), type(node.ops[0]), self._text(node.comparators[0])
        other = _NEIGHBOUR.get(kind) or _OPPOSITE[kind]
        yield self._mutant(node, "compare", f"({left} {other} {right})")
        for side in (node.left, node.comparators[0]):
            yield from self._number(side)

    def _binary(self, node: ast.BinOp) -> Iterator[Mutant]:
        sides = (node.left, node.right)
        if isinstance(node.op, (ast.Add, ast.Sub)) and not any(self._is_text(side) for side in sides):
            sign = "-" if isinstance(node.op, ast.Add) else "+"
            yield self._mutant(node, "arithmetic", f"({self._text(node.left)} {sign} {self._text(node.right)})")
        for side in sides:
            yield from self._number(side)

    @staticmethod
    def _is_text(node: ast.expr) -> bool:
        return isinstance(node, _TEXT) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))

    def _number(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            if type(node.operand.value) is int:
                yield self._mutant(node, "number", str(1 - node.operand.value))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield self._mutant(node, "number", str(node.value + 1))

    def _negated(self, node: ast.expr) -> Iterator[Mutant]:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield self._mutant(node, "negate", str(not node.value))
        elif not self._has_an_opposite(node):
            yield self._mutant(node, "negate", f"(not ({self._text(node)}))")

    @staticmethod
    def _has_an_opposite(node: ast.expr) -> bool:
        """Whether ``_changed`` negates the expression already."""
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.Not)
        return isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPPOSITE

    # --- text -----------------------------------------------------------------------------------

    def _is_silent(self, node: ast.expr) -> bool:
        """Whether the call writes a log line, is a failpoint, or calls a parent class."""
        if called(node) in _SILENT:
            return True
        return (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node.func.value) == "super"
        )

    def _offset(self, line: int, column: int) -> int:
        return self._lines[line - 1] + column

    def _span(self, node: ast.expr | ast.stmt, until: ast.stmt | None = None) -> tuple[int, int]:
        last = until or node
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(last.end_lineno, last.end_col_offset)

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _mutant(
        self,
        node: ast.expr | ast.stmt,
        operator: str,
        new: str,
        *,
        until: ast.stmt | None = None,
        old: ast.expr | None = None,
    ) -> Mutant:
        start, end = self._span(node, until)
        text = self._text(old) if old is not None else self._source[start:end].decode()
        if operator == "number":  # a number alone would tell people nothing
            line = self._source[self._lines[node.lineno - 1] : self._lines[node.lineno]].decode()
            text = f"{text} in {line.strip()}"
        last = until or node
        assert last.end_lineno is not None
        return Mutant(
            self._file, node.lineno, last.end_lineno, self._function, operator, _one_line(text), new, start, end
        )
