"""``epochal doctor``: all that a start asks, in one list, for people who look for the trouble or report it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from epochal.coordinator.console.load import find
from epochal.coordinator.console.options import JsonOption, PipelineOption
from epochal.coordinator.console.render import FINE, UNKNOWN, WRONG, Answer, answering, line
from epochal.coordinator.query.asking import of_checkpoint, of_process, of_session
from epochal.coordinator.query.checkpoint import located
from epochal.coordinator.query.diagnosis import Diagnosis, Finding, Verdict
from epochal.coordinator.query.doctor import SECONDS, Part, diagnose
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.spark.executors import running_session

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NO_PIPELINE = "the sinks were not asked: give --pipeline, or set EPOCHAL_PIPELINE"
NO_CHECKPOINT = "the checkpoint and its log were not asked: name the checkpoint"


@answering
def doctor(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation; it need not exist yet.")
    ] = "",
    pipeline: PipelineOption = "",
    schema: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS",
            help='The columns of the rows as Spark writes them, such as "id bigint, at timestamp". Without it, nothing'
            " is asked about columns.",
        ),
    ] = "",
    seconds: Annotated[
        float, typer.Option("--timeout", min=0.1, help="After so many seconds, what has no answer is told as such.")
    ] = SECONDS,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Ask all that a start asks, and show every answer: versions, rights, settings, limits, executors, disk, log.

    This writes nothing that stays, goes on after a wrong answer, and shows no secret: attach it to a report of a bug.
    Executors and Delta are asked only if --pipeline names a function that makes a Spark session.

    Example: epochal doctor /data/checkpoint --pipeline job.py:pipeline --schema "id bigint, at timestamp"
    """
    found = find(pipeline)
    columns = _columns(schema)
    diagnosis = _without_pipeline(checkpoint, seconds) if found is None else _of(found, checkpoint, columns, seconds)
    notes = [*([] if found is not None else [NO_PIPELINE]), *([] if checkpoint else [NO_CHECKPOINT])]
    data = {
        "checkpoint": checkpoint or None,
        "app": found.app if found is not None else None,
        "findings": [finding.to_json() for finding in diagnosis.findings],
        "counts": diagnosis.counts(),
        "notes": notes,
    }
    return Answer("doctor", data, _code(diagnosis), _shown(diagnosis, notes))


def _columns(text: str) -> StructType | None:
    from epochal.coordinator.console.columns import parse

    return parse(text) if text else None


def _of(pipeline: Pipeline, checkpoint: str, columns: StructType | None, seconds: float) -> Diagnosis:
    return pipeline.doctor(checkpoint=checkpoint or None, schema=columns, seconds=seconds)


def _without_pipeline(checkpoint: str, seconds: float) -> Diagnosis:
    spark = running_session()
    parts = [Part("this process", of_process), Part("Spark", lambda: of_session(spark))]
    if checkpoint:
        parts.append(Part("checkpoint", lambda: of_checkpoint(located(checkpoint), spark, None)))
    return diagnose(parts, seconds, spark)


def _code(diagnosis: Diagnosis) -> int:
    """Return the exit code.  What was not asked changes nothing: its reason is shown."""
    return WRONG if diagnosis.of(Verdict.WRONG) else UNKNOWN if diagnosis.of(Verdict.UNKNOWN) else FINE


_STYLES = {Verdict.CAUTION: "yellow", Verdict.WRONG: "red", Verdict.UNKNOWN: "red", Verdict.NOT_ASKED: "dim"}


def _shown(diagnosis: Diagnosis, notes: list[str]) -> list[RenderableType]:
    shown: list[RenderableType] = []
    about = ""
    for finding in diagnosis.findings:
        shown += [line(_printable(finding.of), "bold")] if finding.of != about else []
        about = finding.of
        shown.append(line(_indented(finding), _STYLES.get(finding.verdict, "")))
    return [*shown, *(line(note, "yellow") for note in notes), line(diagnosis.summary(), "bold")]


def _indented(finding: Finding) -> str:
    return _printable("\n".join(f"  {text}" for text in str(finding).splitlines()))


def _printable(text: str) -> str:
    """Return the text with other signs where standard output cannot write them, as ticks in a terminal of ASCII."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return text.replace("✓", "+").replace("✗", "x").encode(encoding, "backslashreplace").decode(encoding)
