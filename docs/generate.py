"""Writes docs/errors.md and docs/options.md from the source: ``make docs``.

It reads the code and runs none of it, so it needs neither Spark nor a client library.
``tests/pure/project/test_docs.py`` compares what it makes with the files.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCTION = ("coordinator", "checkpoints", "sinks")
ERRORS = ROOT / "coordinator" / "model" / "errors.py"
HOLE = "…"
"""For what a message fills in when it is made."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Path below the checkout -> syntax, of every file of production but the references in memory."""
    for folder in PRODUCTION:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name != "memory.py":
                yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def words(node: ast.expr) -> str | None:
    """The text that an expression gives, with ``HOLE`` for what is only known later; None for what is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(HOLE if isinstance(part, ast.FormattedValue) else words(part) or "" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [words(side) for side in (node.left, node.right)]
        return "".join(part if part is not None else HOLE for part in parts) if any(parts) else None
    return None


def plain(text: str) -> str:
    """A docstring's text as Markdown, on one line."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    return " ".join(text.replace("``", "`").split())


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def prose(text: str) -> str:
    """A message's text in a cell, where it is no Markdown."""
    return cell(re.sub(r"([*_<`\[])", r"\\\1", " ".join(text.split())))


def code(text: str) -> str:
    """The same to the letter, for those who search it."""
    text = " ".join(text.split())
    return cell(f"`` {text} ``" if "`" in text else f"`{text}`")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("|--- |", "|---|")


# --- errors --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """One class of error, as its docstring and attributes have it."""

    name: str
    definite: bool
    meaning: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class Message:
    """How an error of one class begins, where it is made, and its help."""

    kind: str
    what: str
    help: str
    path: str


def kinds() -> list[Kind]:
    """Every class below ``EpochalError``, in the order of the file."""
    classes = [node for node in ast.parse(ERRORS.read_text()).body if isinstance(node, ast.ClassDef)]
    return [_kind(node) for node in classes if node.name != "EpochalError"]


def _kind(node: ast.ClassDef) -> Kind:
    meaning, *rest = (ast.get_docstring(node) or "").split("\n\n")
    parts = {name: text for name, _, text in (part.partition(": ") for part in rest)}
    definite = not any(ast.unparse(line) == "definite: ClassVar[bool] = False" for line in node.body)
    told = [plain(text) for text in (meaning, parts.get("Cause", ""), parts.get("Remedy", ""))]
    return Kind(node.name, definite, *told)


def messages() -> list[Message]:
    """All beginnings of messages that can be read in the code, sorted."""
    names = {kind.name for kind in kinds()}
    found = {message for path, tree in sources() for message in _Calls(path, tree, names).messages()}
    return sorted(found, key=lambda m: (m.kind, m.what.lower(), m.path, m.help))


class _Calls:
    """The errors that one file makes; texts that reach them by a name are followed one step."""

    def __init__(self, path: str, tree: ast.Module, kinds: set[str]) -> None:
        self._path, self._tree, self._kinds = path, tree, kinds

    def messages(self) -> Iterator[Message]:
        for scope, call, kind in self._calls():
            if call.args:
                remedies = [keyword.value for keyword in call.keywords if keyword.arg == "help"]
                told = next((text for remedy in remedies for text in self._texts(remedy, scope)), "")
                for what in self._texts(call.args[0], scope):
                    if re.search(r"\w{2}", what):
                        yield Message(kind, what, told, self._path)

    def _calls(self) -> Iterator[tuple[list[Function], ast.Call, str]]:
        """With the functions that a call stands in, the innermost last."""

        def walk(node: ast.AST, scope: list[Function], owner: str) -> Iterator[tuple[list[Function], ast.Call, str]]:
            for child in ast.iter_child_nodes(node):
                inner = [*scope, child] if isinstance(child, Function) else scope
                if isinstance(child, ast.Call):
                    name = ast.unparse(child.func).rsplit(".", 1)[-1]
                    name = owner if name == "cls" else name
                    if name in self._kinds:
                        yield inner, child, name
                yield from walk(child, inner, child.name if isinstance(child, ast.ClassDef) else owner)

        return walk(self._tree, [], "")

    def _texts(self, node: ast.expr, scope: list[Function]) -> list[str]:
        if isinstance(node, ast.IfExp):
            return [*self._texts(node.body, scope), *self._texts(node.orelse, scope)]
        if isinstance(node, ast.Name):
            found = [words(value) for value in self._values(node.id, scope)]
            return [text for text in found if text is not None]
        text = words(node)
        return [text] if text is not None else []

    def _values(self, name: str, scope: list[Function]) -> list[ast.expr]:
        """What is assigned to a name: in the function, by who calls it, or in the module."""
        for function in reversed(scope):
            parameters = [a.arg for a in (*function.args.args, *function.args.kwonlyargs)]
            if found := _assigned(name, function):
                return found
            if name in parameters:
                return self._passed(function.name, [p for p in parameters if p not in ("self", "cls")], name)
        return _assigned(name, self._tree)

    def _passed(self, function: str, parameters: Sequence[str], name: str) -> list[ast.expr]:
        at = parameters.index(name)
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]
        calls = [call for call in calls if ast.unparse(call.func).rsplit(".", 1)[-1] == function]
        by_name = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == name]
        return [call.args[at] for call in calls if len(call.args) > at] + by_name


def _assigned(name: str, where: ast.AST) -> list[ast.expr]:
    found = []
    for node in ast.walk(where):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found += [value for key, value in _pairs(target, node.value) if key == name]
    return found


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, other)


def errors() -> str:
    """docs/errors.md, whole."""
    known, found = kinds(), messages()
    sure = {True: "definite", False: "indefinite"}
    head = f"""# Errors

<!-- Written by `make docs` from coordinator/model/errors.py and the code: edit these. -->

Each error says where it happened (sink, epoch), what happened, in which state, and what to do (`Help:`). *Definite*:
the refused step made nothing visible. *Indefinite*: the step may have made something visible. The next start finds that
out, so never repeat the step by hand. Spark puts only the text of the error into its own error; the error object is
`pipeline.last_error`. To find a message, search this page for a part of it; `{HOLE}` stands for names and values.

"""
    index = table(
        ("error", "", "meaning"),
        ((f"[{kind.name}](#{kind.name.lower()})", sure[kind.definite], cell(kind.meaning)) for kind in known),
    )
    parts = (_section(kind, sure[kind.definite], [m for m in found if m.kind == kind.name]) for kind in known)
    return head + index + "".join(parts)


def _section(kind: Kind, sure: str, found: Sequence[Message]) -> str:
    rows = ((code(m.what), prose(m.help), f"`{m.path}`") for m in found)
    listed = "\n" + table(("message", "help", "from"), rows) if found else ""
    return f"""
## {kind.name}

{kind.meaning} *{sure.capitalize()}.*

- **Causes:** {kind.cause}
- **What to do:** {kind.remedy}
{listed}"""


# --- options -------------------------------------------------------------------------------------

PUBLIC: Mapping[str, str] = {  # what a user makes, by the name to import it by -> where it is
    "epochal.Pipeline": "coordinator/query/pipeline.py",
    "epochal.Retry": "coordinator/protocol/retry.py",
    "epochal.sinks.PostgresSink": "sinks/postgres/sink.py",
    "epochal.sinks.postgres.Append": "sinks/postgres/modes.py",
    "epochal.sinks.postgres.Plain": "sinks/postgres/modes.py",
    "epochal.sinks.postgres.Upsert": "sinks/postgres/modes.py",
    "epochal.sinks.KafkaSink": "sinks/kafka/sink.py",
    "epochal.sinks.DeltaSink": "sinks/delta/sink.py",
    "epochal.sinks.delta.Append": "sinks/delta/modes.py",
    "epochal.sinks.delta.Overwrite": "sinks/delta/modes.py",
    "epochal.sinks.delta.Merge": "sinks/delta/modes.py",
    "epochal.checkpoints.files.FilesLog": "checkpoints/files.py",
    "epochal.checkpoints.hadoop.HadoopLog": "checkpoints/hadoop.py",
    "epochal.checkpoints.postgres.PostgresLog": "checkpoints/postgres.py",
}
REQUIRED = "required"
_ITEM = re.compile(r"^((?:``\w+``(?:, | and )?)+): ", re.MULTILINE)


@dataclass(frozen=True)
class Options:
    """One class: what it is, its arguments with their defaults, and what its docstring says of each."""

    name: str
    about: str
    defaults: Mapping[str, str]
    meanings: Mapping[str, str]


def options_of(name: str) -> Options:
    module = ast.parse((ROOT / PUBLIC[name]).read_text())
    node = _class(module, name.rsplit(".", 1)[-1])
    about, meanings = _told(ast.get_docstring(node) or "")
    defaults = dict(_arguments(node, module))
    if any(ast.unparse(base) == "Keyed" for base in node.bases):
        keyed = ast.parse((ROOT / "sinks/rows/keyed.py").read_text())
        keys = _class(keyed, "Keyed")
        defaults = dict(_arguments(keys, keyed)) | defaults
        meanings = _told(ast.get_docstring(keys) or "")[1] | meanings
    return Options(name, about, defaults, meanings)


def _class(module: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)


def _told(docstring: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of the class, and of each argument: paragraphs that begin with its name and a colon."""
    about, meanings = [], {}
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        first, *items = _ITEM.split(paragraph)
        about += [first] if first.strip() else []
        for names, text in zip(items[::2], items[1::2], strict=True):
            meanings.update(dict.fromkeys(re.findall(r"``(\w+)``", names), plain(text)))
    return "\n\n".join(plain(text) for text in about), meanings


def _arguments(node: ast.ClassDef, module: ast.Module) -> Iterator[tuple[str, str]]:
    """Of ``__init__``, or of a dataclass."""
    made = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
    if made is None:
        fields = (part for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name))
        yield from ((ast.unparse(part.target), _default(part.value, module)) for part in fields)
        return
    places, given = made.args.args[1:], made.args.defaults
    padded = [*[None] * (len(places) - len(given)), *given]
    for argument, value in zip((*places, *made.args.kwonlyargs), (*padded, *made.args.kw_defaults), strict=True):
        yield argument.arg, _default(value, module)


def _default(value: ast.expr | None, module: ast.Module) -> str:
    if value is None:
        return REQUIRED
    if isinstance(value, ast.Name):
        value = _constant(value.id, module) or value
    return ast.unparse(value).replace("'", '"')


def _constant(name: str, module: ast.Module) -> ast.expr | None:
    """What a module, or the one of ours that it is imported from, assigns to ``name``."""
    if found := _assigned(name, module):
        return found[0]
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            path = ROOT.joinpath(*(node.module or "").split(".")[1:]).with_suffix(".py")
            return _constant(name, ast.parse(path.read_text()))
    return None


def options() -> str:
    """docs/options.md, whole."""
    head = """# Options

<!-- Written by `make docs` from the signatures and docstrings: edit these. -->

Every argument of what a user makes; one that is "required" has no default. More about them: [sinks.md](sinks.md),
[postgres.md](postgres.md), [kafka.md](kafka.md), [delta.md](delta.md), [idempotent.md](idempotent.md).
"""
    return head + "".join(_described(options_of(name)) for name in PUBLIC)


def _described(options: Options) -> str:
    module, _, name = options.name.rpartition(".")
    parent = module.rsplit(".", 1)[-1]
    title = (
        f"### {parent}.{name}"
        if parent in ("postgres", "delta") and module.startswith("epochal.sinks")
        else f"## {name}"
    )
    rows = (
        (f"`{key}`", default if default == REQUIRED else code(default), cell(options.meanings.get(key, "")))
        for key, default in options.defaults.items()
    )
    listed = table(("argument", "default", "meaning"), rows) if options.defaults else "No arguments.\n"
    return f"\n{title}\n\n`from {module} import {name}`\n\n{options.about}\n\n{listed}"


PAGES = {"errors.md": errors, "options.md": options}


def main() -> None:
    for name, make in PAGES.items():
        (ROOT / "docs" / name).write_text(make())


if __name__ == "__main__":
    main()
