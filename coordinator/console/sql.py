"""``epochal sql``: the SQL that a DBA runs for a Postgres sink."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from epochal.coordinator.console.load import load
from epochal.coordinator.console.options import JsonOption, PipelineOption
from epochal.coordinator.console.render import Answer, Usage, answering, line
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.rows.rejects import Rejects

if TYPE_CHECKING:
    from epochal.sinks.postgres import PostgresSink


@answering
def sql(
    pipeline: PipelineOption = "",
    sink: Annotated[str, typer.Option(help="The sink's name, if the pipeline has several sinks in Postgres.")] = "",
    schema: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS",
            help='The columns of the rows as Spark writes them, such as "id bigint, at timestamp". Without it,'
            " they are read from the existing table.",
        ),
    ] = "",
    filter_: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="COLUMN", help="A column that readers filter by. It may be repeated."),
    ] = None,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Print the DDL, grants, reader view and index advice of a Postgres sink. This runs no SQL.

    Example: epochal sql --pipeline job.py:pipeline --schema "id bigint, at timestamp" --filter at
    """
    from epochal.coordinator.console.columns import parse

    found = load(pipeline)
    chosen = _chosen(found, sink)
    script = chosen.script(found.app, parse(schema) if schema else None, filter_ or ())
    data = {"app": found.app, "sink": chosen.name, **asdict(script)}
    lines: list[str] = [f"-- app {found.app}, sink {chosen.name}"]
    for title, statements in (
        ("what create() runs if nothing exists yet", ["BEGIN", *script.ddl, "COMMIT"]),
        ("who needs which right", script.grants),
        ("indexes for what readers filter by; run them after create, one at a time", script.indexes),
    ):
        if statements:
            lines += [f"-- {title}", *(f"{statement};" for statement in statements)]
    lines += [f"-- {note}" for note in script.notes]
    shown: list[RenderableType] = [line(text) for text in lines]
    return Answer("sql", data, shown=shown)


def _chosen(pipeline: Pipeline, name: str) -> PostgresSink:
    from epochal.sinks.postgres import PostgresSink

    given = [sink.into if isinstance(sink, Rejects) else sink for sink in pipeline.sinks]
    ours = {sink.name: sink for sink in given if isinstance(sink, PostgresSink)}
    if name:
        if name not in ours:
            raise Usage(f"--sink {name!r} is no Postgres sink; there is {', '.join(map(repr, ours)) or 'none'}")
        return ours[name]
    if len(ours) != 1:
        raise Usage(f"name one sink with --sink: {', '.join(map(repr, ours)) or 'the pipeline has none in Postgres'}")
    return next(iter(ours.values()))
