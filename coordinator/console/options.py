"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

CheckpointArgument = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.", show_default=False)
]
PipelineOption = Annotated[
    str,
    typer.Option(
        "--pipeline",
        metavar="MODULE:NAME",
        envvar="EPOCHAL_PIPELINE",
        help="job:pipeline or path/to/job.py:pipeline. It names an epochal.Pipeline, or a function without arguments"
        " that returns one.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it. Without --yes, only show what would be done.")]
