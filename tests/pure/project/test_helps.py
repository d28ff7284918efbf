"""What the helps of errors name is there: options, commands, packages, pages, functions; and they say something.

That a help leads out is shown by the tests that follow it (``test_remedies.py``).
"""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from functools import cache
from typing import Any

import psycopg
import pytest
import tomli
import typer
from pyspark.sql import Column, DataFrame, DataFrameReader, functions
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

import epochal
import epochal.sinks
from docs import generate
from docs.generate import HOLE
from epochal.coordinator.console.app import add_to
from epochal.coordinator.query import operate
from epochal.sinks import delta, postgres
from tests.pure.project.test_docs import DOCS, ROOT, anchors

MESSAGES = generate.messages()
HELPS = sorted({(text, message.path) for message in MESSAGES for text in message.helps})

KEYWORDS = (DataStreamWriter.trigger, epochal.sinks.PostgresSink.epochs, operate.retire)
"""What takes other arguments by name that helps speak of."""
OF_OBSTORE = {"endpoint"}
"""Options of ObjectLog, which are those of obstore's stores; its tests pass them."""
WORDED_BY_OTHERS = {"the table does not take the rows: …"}
"""Messages whose helps are those of another error of ours."""
TABLES = {"attempts"}
"""Tables of the schema `epochal` in Postgres, whose names look like modules of ours."""
CALLED = (
    epochal.Pipeline,
    epochal.sinks,
    epochal.sinks.PostgresSink,
    delta,
    postgres,
    Column,
    DataFrame,
    DataFrameReader,
    DataStreamReader,
    DataStreamWriter,
    functions,
)
"""Where the functions and classes are found that helps call."""
CALLED_BY_NAME = {
    "PostgresLog": "epochal.checkpoints.postgres",
    "ObjectLog": "epochal.checkpoints.objects",
    "of_session": "epochal.checkpoints.hadoop",
    "inheritable_thread_target": "pyspark",
    "isEmpty": "pyspark.sql.DataFrame",
    "pg_terminate_backend": "Postgres",
    "pipeline": "the user's own",
    "create": "pipeline or log",
}


def test_what_is_read() -> None:
    assert len(HELPS) > 250
    assert {message.what for message in MESSAGES if not message.helps} <= WORDED_BY_OTHERS


@pytest.mark.parametrize("path", sorted({path for _, path in HELPS}))
def test_every_argument_that_a_help_names_is_one(path: str) -> None:
    known = arguments_near(path)
    for text, where in HELPS:
        if where == path:
            named = set(re.findall(r"(?<![\w.])([a-zA-Z_]+)=", text))
            assert named <= known, text


def arguments_near(path: str) -> set[str]:
    """What may be given by name where a message of this file is met."""
    kind = path.split("/")[1] if path.startswith("sinks/") else ""
    public = [name for name in generate.PUBLIC if kind not in ("postgres", "kafka", "delta") or kind in name.lower()]
    given = {argument for name in ["epochal.Pipeline", *public] for argument in arguments_of(name)}
    given |= {parameter for function in KEYWORDS for parameter in inspect.signature(function).parameters}
    given |= OF_OBSTORE
    return given | {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}


@cache
def arguments_of(name: str) -> set[str]:
    return set(generate.options_of(name).defaults)


@cache
def commands() -> dict[str, Any]:
    app = typer.Typer()
    add_to(app)
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def quoted() -> list[str]:
    return sorted({found for text, _ in HELPS for found in re.findall(r"`([^`]*)`", text)})


@pytest.mark.parametrize("command", [text for text in quoted() if text.startswith("epochal ")])
def test_every_command_is_one(command: str) -> None:
    """The real parser takes it, with the checkpoint and what else each use of the command needs."""
    name, *given = shlex.split(command.replace(HOLE, "x"))[1:]
    needed = [parameter for parameter in commands()[name].params if parameter.required]
    there = [word for word in given if not word.startswith("-")]
    values = sum(not is_flag(name, word) for word in given if word.startswith("-"))
    lacking = len(needed) - (len(there) - values)
    assert lacking in (0, len(needed)), "either all of them or none"
    commands()[name].make_context(name, [*given, *["x"] * lacking])


def is_flag(command: str, option: str) -> bool:
    return any(option in parameter.opts and parameter.is_flag for parameter in commands()[command].params)


def test_no_command_is_named_without_its_program() -> None:
    assert not [text for text in quoted() if text.split(" ")[0] in commands()]


def test_every_option_of_a_command_is_one() -> None:
    options = {option for command in commands().values() for parameter in command.params for option in parameter.opts}
    assert {found for text, _ in HELPS for found in re.findall(r"(?<!\w)--[a-z-]+", text)} <= options


def test_every_package_is_one_that_we_ask_for() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    packages = {re.split(r"[\[><=]", needed)[0] for needs in extras.values() for needed in needs}
    for text, _ in HELPS:
        for asked in re.findall(r"pip install (?:'([^']+)'|(\w+))", text):
            name, _, extra = "".join(asked).partition("[")
            assert re.split("[><=]", name)[0] in packages | {"epochal"}, text
            assert extra.rstrip("]") in {"", HOLE, *extras}, text


def test_every_page_is_there() -> None:
    for text, _ in HELPS:
        for name, anchor in re.findall(r"docs/([\w.-]+\.md)(?:#([\w-]+))?", text):
            assert (DOCS / name).exists(), text
            assert not anchor or anchor in anchors(DOCS / name), text


def test_every_name_of_ours_can_be_imported() -> None:
    for text, _ in HELPS:
        for dotted in re.findall(r"epochal(?:\.\w+)+", text):
            module, _, name = dotted.rpartition(".")
            if name in TABLES:
                continue
            try:
                importlib.import_module(dotted)
            except ImportError:
                assert hasattr(importlib.import_module(module), name), text


def test_every_function_that_a_help_calls_is_one() -> None:
    there = {name for where in CALLED for name in dir(where)} | set(CALLED_BY_NAME)
    for text, _ in HELPS:
        assert set(re.findall(rf"(?<![\w{HOLE}])([a-zA-Z_]\w+)\(", text)) <= there, text


def test_the_columns_of_ddl_are_asked_as_the_help_says() -> None:
    assert list(inspect.signature(epochal.sinks.PostgresSink.ddl).parameters)[1:3] == ["app", "schema"]


VAGUE = re.compile(
    r"^see (what|whether|who|which|if)\b|(try|check|look) again$|make a new one$|\bby hand$|; see (what|whether|who)\b"
)
"""A help that only sends somebody to look: it does not say what to do with what is seen there."""


def test_a_help_says_what_to_do() -> None:
    vague = [text for text, _ in HELPS if VAGUE.search(text) or not (HOLE in text or len(re.findall(r"\w+", text)) > 2)]
    assert not vague
