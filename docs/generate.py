"""Writes docs/errors.md and docs/options.md from the source: ``make docs``.

It reads the code and runs none of it, so it needs neither Spark nor a client library.
``tests/pure/project/test_docs.py`` compares what it makes with the files.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
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
    """How an error of one class begins, where it is made, and each help that it may have."""

    kind: str
    what: str
    helps: tuple[str, ...]
    path: str


@dataclass(frozen=True)
class Maker:
    """A place in the code that makes errors, and the messages that they have; none: it passes on those of others."""

    kind: str
    path: str
    function: str
    messages: tuple[Message, ...]


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
    found = {message for maker in makers() for message in maker.messages}
    return sorted(found, key=lambda m: (m.kind, m.what.lower(), m.path, m.helps))


@cache
def makers() -> tuple[Maker, ...]:
    """Every place that makes an error."""
    trees = dict(sources())
    return tuple(
        maker
        for package in dict.fromkeys(map(_package, trees))
        for maker in _Calls({path: tree for path, tree in trees.items() if _package(path) == package}).makers()
    )


def _package(path: str) -> str:
    """The folder within which functions are known by their names alone."""
    return "/".join(path.split("/")[: 2 if path.startswith("sinks/") else 1])


OBJECTION = "Objection"
"""An object of Kafka's sink that becomes a ``PrepareRefused``: its third and fourth fields are text and help."""
STEPS = 6
"""How often a text is followed: from a name to what is assigned to it, or to those who call the function."""


@dataclass(frozen=True)
class _Call:
    """A call, the class that it stands in, the functions around it (the innermost last), and the file."""

    node: ast.Call
    owner: str
    scope: tuple[Function, ...]
    path: str

    @property
    def name(self) -> str:
        name = ast.unparse(self.node.func).rsplit(".", 1)[-1]
        return self.owner if name == "cls" else name


class _Calls:
    """The errors that the files of one package make; texts that reach them by a name or a function are followed."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self._trees = trees
        self._calls = [call for path, tree in trees.items() for call in _calls(tree, path)]
        self._named = {kind.name: kind.name for kind in kinds()} | {OBJECTION: "PrepareRefused"}
        nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
        for _, node in nodes:
            if isinstance(node, ast.ClassDef) and node.bases and (base := ast.unparse(node.bases[0])) in self._named:
                self._named.setdefault(node.name, self._named[base])
        self._functions = [(path, node) for path, node in nodes if isinstance(node, Function)]

    def makers(self) -> Iterator[Maker]:
        for call in self._calls:
            for kind in self._kinds(call):
                found = tuple(self._messages(call, kind))
                yield Maker(kind, call.path, call.scope[-1].name if call.scope else "", found)

    def _kinds(self, call: _Call) -> list[str]:
        """The classes of errors that a call may make; it may know them by a name of its own."""
        if call.name in self._named:
            return [self._named[call.name]]
        if not isinstance(call.node.func, ast.Name) or not call.scope:
            return []
        chosen = [value for value in _assigned(call.name, call.scope[-1]) if isinstance(value, ast.IfExp)]
        names = [ast.unparse(side) for value in chosen for side in (value.body, value.orelse)]
        return [self._named[name] for name in names if name in self._named]

    def _messages(self, call: _Call, kind: str) -> Iterator[Message]:
        given = call.node.args
        if call.name == OBJECTION:
            whats, remedies = given[2:3], given[3:4]
        else:
            whats, remedies = given[:1], [keyword.value for keyword in call.node.keywords if keyword.arg == "help"]
        found = {place: tuple(self._told(whats, remedies, place)) for place in self._places(call, [*whats, *remedies])}
        told_by_callers = len(set(found.values())) > 1
        for place, told in found.items():
            path = place.caller.path if told_by_callers and place.caller is not None else call.path
            yield from (Message(kind, what, helps, path) for what, helps in told)

    def _told(
        self, whats: Sequence[ast.expr], remedies: Sequence[ast.expr], place: _Place
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        helps = tuple(dict.fromkeys(text for remedy in remedies for text in self._texts(remedy, place)))
        for what in dict.fromkeys(text for node in whats for text in self._texts(node, place)):
            if _says_something(what):
                yield what, helps

    def _places(self, call: _Call, told: Sequence[ast.expr]) -> list[_Place]:
        """Where the texts of a call are resolved: once per caller, if the function gets them from its callers."""
        place = _Place(call.scope, call.path)
        function = call.scope[-1] if call.scope else None
        open_ = (text for text in told if isinstance(text, ast.Name) or not _says_something(words(text) or ""))
        names = {node.id for text in open_ for node in ast.walk(text) if isinstance(node, ast.Name)}
        if function is None or not names & set(_parameters(function)):
            return [place]
        return [replace(place, caller=caller) for caller in self._calls if caller.name == function.name]

    def _texts(self, node: ast.expr, place: _Place, steps: int = STEPS) -> list[str]:
        """All texts that an expression may give."""
        if steps == 0:
            return []
        follow = partial(self._texts, place=place, steps=steps - 1)
        if isinstance(node, ast.IfExp):
            return [*follow(node.body), *follow(node.orelse)]
        if isinstance(node, (ast.BoolOp, ast.Dict)):
            return [text for value in node.values for text in follow(value)]
        if isinstance(node, ast.Lambda):
            return follow(node.body)
        if isinstance(node, ast.Subscript):
            return follow(node.value)
        if isinstance(node, ast.Name):
            found = self._values(node.id, place)
            return [text for value, there in found for text in self._texts(value, there, steps - 1)]
        if isinstance(node, ast.Call):
            return self._answers(node, place.path, follow, steps)
        text = words(node)
        if isinstance(node, ast.JoinedStr) and text is not None and not _says_something(text):
            return _filled(node, follow)
        return [text] if text is not None else []

    def _answers(self, node: ast.Call, at: str, follow: Callable[[ast.expr], list[str]], steps: int) -> list[str]:
        """What a function of the package may return, or a dict may answer."""
        name = ast.unparse(node.func).rsplit(".", 1)[-1]
        if name in ("get", "fromkeys") and isinstance(node.func, ast.Attribute):
            return [text for value in (node.func.value, *node.args[1:]) for text in follow(value)]
        if name == "join" and isinstance(node.args[0], ast.GeneratorExp):
            return follow(node.args[0].elt)
        return [
            text
            for path, function in self._functions
            if function.name == name and (path == at or not name.startswith("_"))
            for line in ast.walk(function)
            if isinstance(line, ast.Return) and line.value is not None
            for text in self._texts(line.value, _Place((function,), path), steps - 1)
        ]

    def _values(self, name: str, place: _Place) -> list[tuple[ast.expr, _Place]]:
        """What is assigned to a name, and where: in the function, by who calls it, or in the module."""
        for depth in range(len(place.scope), 0, -1):
            function, around = place.scope[depth - 1], replace(place, scope=place.scope[:depth])
            if found := _assigned(name, function):
                return [(value, around) for value in found]
            if name in _parameters(function):
                callers = [call for call in self._calls if call.name == function.name]
                if place.caller is not None and place.caller.name == function.name:
                    callers = [place.caller]
                return [value for call in callers for value in _passed(function, name, call, place.path)]
        there = self._home(name, place.path)
        return [(value, _Place((), there)) for value in _assigned(name, self._trees[there])]

    def _home(self, name: str, path: str) -> str:
        """The file of the package that a file imports a name from, or else the file itself."""
        for line in self._trees[path].body:
            if isinstance(line, ast.ImportFrom) and name in [alias.name for alias in line.names]:
                home = "/".join((line.module or "").split(".")[1:]) + ".py"
                return home if home in self._trees else path
        return path


@dataclass(frozen=True)
class _Place:
    """Where an expression stands: the functions around it, its file, and the call of the innermost, if it is one."""

    scope: tuple[Function, ...]
    path: str
    caller: _Call | None = None


def _filled(node: ast.JoinedStr, follow: Callable[[ast.expr], list[str]]) -> list[str]:
    """The texts of an f-string that has no words of its own, with those of its holes."""
    filled = [""]
    for part in node.values:
        texts = [HOLE]
        if isinstance(part, ast.Constant):
            texts = [str(part.value)]
        elif isinstance(part, ast.FormattedValue):
            texts = follow(part.value) or [HOLE]
        filled = [before + text for before in filled for text in texts]
    return filled


def _parameters(function: Function) -> list[str]:
    return [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]


def _passed(function: Function, name: str, call: _Call, path: str) -> list[tuple[ast.expr, _Place]]:
    """What one call passes as one parameter, or else the parameter's default."""
    there = _Place(call.scope, call.path)
    places = [a.arg for a in function.args.args if a.arg not in ("self", "cls")]
    if name in places and len(call.node.args) > places.index(name):
        return [(call.node.args[places.index(name)], there)]
    found = [(keyword.value, there) for keyword in call.node.keywords if keyword.arg == name]
    return found or [(value, _Place((), path)) for value in _defaults(function, name)]


def _says_something(text: str) -> bool:
    return re.search(r"\w{2}", text) is not None


def _calls(tree: ast.Module, path: str) -> Iterator[_Call]:
    def walk(node: ast.AST, scope: tuple[Function, ...], owner: str) -> Iterator[_Call]:
        for child in ast.iter_child_nodes(node):
            inner = (*scope, child) if isinstance(child, Function) else scope
            if isinstance(child, ast.Call):
                yield _Call(child, owner, inner, path)
            yield from walk(child, inner, child.name if isinstance(child, ast.ClassDef) else owner)

    return walk(tree, (), "")


def _defaults(function: Function, name: str) -> Iterator[ast.expr]:
    places, given = function.args.args, function.args.defaults
    for argument, value in zip(places[len(places) - len(given) :], given, strict=True):
        if argument.arg == name:
            yield value
    for argument, other in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if argument.arg == name and other is not None:
            yield other


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
`pipeline.last_error`. To find a message, search this page for a part of it; `{HOLE}` stands for names and values. Where
several helps stand beside one message, the case decides which one the error has.

"""
    index = table(
        ("error", "", "meaning"),
        ((f"[{kind.name}](#{kind.name.lower()})", sure[kind.definite], cell(kind.meaning)) for kind in known),
    )
    parts = (_section(kind, sure[kind.definite], [m for m in found if m.kind == kind.name]) for kind in known)
    return head + index + "".join(parts)


def _section(kind: Kind, sure: str, found: Sequence[Message]) -> str:
    rows = ((code(m.what), " *or:* ".join(map(prose, m.helps)), f"`{m.path}`") for m in found)
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
    "epochal.checkpoints.objects.ObjectLog": "checkpoints/objects.py",
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
    if made.args.kwarg is not None:
        yield made.args.kwarg.arg, "{}"


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
