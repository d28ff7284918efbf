"""``epochal reconcile``: compares the content of two sinks epoch by epoch, and shows the first rows that differ.

The content is compared by count and digest.  The digest is computed here, over the columns that both sinks have and
that mean the same in both systems (``inspection.py`` of the sinks).  Rows are streamed.  Of an epoch that differs, only
``BUCKETS_SHOWN`` of ``BUCKETS`` parts are kept in memory.

A sink of bad rows is refused, because no other sink gets its rows.  If the rows of an epoch cannot be found in a sink,
only the sinks' own audits are compared.  An audit says what was written, not what is there now.  So it does not prove
equal content, and the command ends with "cannot tell".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from epochal.coordinator.console import audit, render
from epochal.coordinator.console.load import load
from epochal.coordinator.console.options import CheckpointArgument, JsonOption, PipelineOption
from epochal.coordinator.console.render import (
    FINE,
    UNKNOWN,
    WRONG,
    Answer,
    CannotTell,
    Usage,
    answering,
    line,
    table,
)
from epochal.coordinator.console.standing import log_of, resolve
from epochal.coordinator.model.epoch import Digest, EpochNumber, Json, Position, Query
from epochal.coordinator.model.errors import SinkUnavailable
from epochal.coordinator.protocol.history import History
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.epochs import ShownEpoch
from epochal.sinks.inspection import KINDS, Inspection, Value, audited, inspection_of, row_hash
from epochal.sinks.protocol import Sink
from epochal.sinks.rows.rejects import Rejects

BUCKETS = 1024
BUCKETS_SHOWN = 8
"""How many differing buckets are searched for rows.  A row whose values differ on the two sides is in two buckets."""
DIFFERING = 10
"""How many differing epochs are reported at most."""
Hashed = tuple[int, tuple[Value, ...]]


@dataclass(frozen=True)
class Columns:
    """The names and kinds of the columns that are compared.  ``left``: the other columns, each with the reason."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    left: Mapping[str, str]


@dataclass(frozen=True)
class Side:
    """One of the two sinks.  If ``content`` is None, its rows are not compared."""

    sink: Sink
    epochs: Mapping[EpochNumber, ShownEpoch]
    content: Inspection | None


@answering
def reconcile(
    checkpoint: CheckpointArgument,
    sink_a: Annotated[str, typer.Argument(metavar="SINK_A", help="A sink's name.", show_default=False)],
    sink_b: Annotated[str, typer.Argument(metavar="SINK_B", help="Another sink's name.", show_default=False)],
    pipeline: PipelineOption = "",
    first: Annotated[int, typer.Option("--from", min=0, help="The first epoch.")] = 0,
    last: Annotated[
        int | None, typer.Option("--to", min=0, help="The last epoch; by default the newest that both have.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="How many rows to show that only one sink has, per sink.")] = 5,
    only_audit: Annotated[bool, typer.Option("--audit", help="Compare only what the sinks' audits say.")] = False,
    as_json: JsonOption = False,  # noqa: ARG001
) -> Answer:
    """Compare what two sinks hold of each epoch, by count and digest, and show the first rows that differ.

    Epochs that only one of them has are named. The exit code is 0 only if the content of all epochs was compared and
    nothing differs; if nothing differs but some content was not compared, it is 3. With --audit only the sinks' own
    records are compared, and equal records give exit code 0.

    Example: epochal reconcile /data/checkpoint postgres-flights delta-flights --from 100 --to 200
    """
    where, found = resolve(checkpoint), load(pipeline)
    history = History.of(log_of(found, where).read())
    if not history.fences:
        raise CannotTell("the epoch log is empty: no epoch of this checkpoint is known")
    incarnation = history.fences[-1].query.query_id
    a, b = (_side(found, name, incarnation, first, last, only_audit) for name in (sink_a, sink_b))
    return _compared(a, b, rows, only_audit)


def _side(
    pipeline: Pipeline, name: str, incarnation: str, first: EpochNumber, last: EpochNumber | None, only_audit: bool
) -> Side:
    named = {sink.name: sink for sink in pipeline.sinks}
    if name not in named:
        raise Usage(f"the pipeline has no sink {name!r}; it has {', '.join(map(repr, named))}")
    sink = named[name]
    if isinstance(sink, Rejects):
        raise CannotTell(f"sink {name!r} gets the rows that sink {sink.of!r} cannot hold, and no other sink gets these")
    asked = audited(sink)
    if asked is None:
        raise CannotTell(f"sink {name!r} has no audit of the epochs that it shows")
    epochs = {
        row.epoch: row
        for page in audit.pages(asked, pipeline.app)
        for row in page
        if row.incarnation == incarnation and first <= row.epoch and (last is None or row.epoch <= last)
    }
    content = None if only_audit else inspection_of(sink, Query(pipeline.app, "", "", ""))
    return Side(sink, epochs, content)


# --- the comparison ---------------------------------------------------------------------------------


def _compared(a: Side, b: Side, rows: int, only_audit: bool) -> Answer:
    epochs = _common(a, b)
    reasons = [] if only_audit else _reasons(a, b)
    columns = _columns(a, b) if not only_audit and not reasons else None
    if columns is not None and not columns.names:
        reasons, columns = ["the two sinks have no column of the same name and kind"], None
    differing: list[Json] = []
    compared, untold = 0, dict[EpochNumber, str]()
    with render.progress("reconcile", len(epochs)) as at:
        for number, epoch in enumerate(epochs):
            told, why = _epoch(a, b, epoch, columns, rows if len(differing) < DIFFERING else 0)
            compared += columns is not None and not why
            if why:
                untold[epoch] = why
            if told is not None and len(differing) < DIFFERING:
                differing.append(told)
            elif told is not None:
                break
            at(number + 1)
    lacking = _lacking(a, b, epochs[0])
    return _answer(a, b, epochs, columns, reasons, differing, compared, untold, lacking, only_audit)


def _common(a: Side, b: Side) -> list[EpochNumber]:
    """Return the epochs that both have.  One sink may be an epoch behind, and its audit may keep fewer epochs."""
    common = sorted(a.epochs.keys() & b.epochs.keys())
    if not common:
        raise CannotTell("there is no epoch in this range that the audit of both sinks tells of")
    return common


def _lacking(a: Side, b: Side, first: EpochNumber) -> Mapping[str, Sequence[EpochNumber]]:
    """Return, per sink, the epochs after ``first`` that only the other sink's audit has."""
    pairs = ((a, b), (b, a))
    return {
        one.sink.name: sorted(e for e in other.epochs.keys() - one.epochs.keys() if e > first) for one, other in pairs
    }


def _reasons(a: Side, b: Side) -> list[str]:
    """Return the reasons why the content of the two sinks cannot be compared."""
    found = [f"{s.sink.name}: the sink cannot be asked for its rows" for s in (a, b) if s.content is None]
    for side in (a, b):
        if side.content is not None and side.content.unattributed:
            found.append(f"{side.sink.name}: {side.content.unattributed}")
    if a.content is not None and b.content is not None and a.content.projection != b.content.projection:
        found.append("the two sinks get different columns or rows of an epoch (select=, where=, bad_rows=)")
    return found


def _columns(a: Side, b: Side) -> Columns:
    assert a.content is not None, "asked before"
    assert b.content is not None, "asked before"
    of_a, of_b = a.content.columns(), b.content.columns()
    same: dict[str, str] = {}
    left: dict[str, str] = {}
    for name in sorted(of_a.keys() | of_b.keys()):
        one, other = of_a.get(name), of_b.get(name)
        if one is None or other is None:
            left[name] = f"only in {(b if one is None else a).sink.name}"
        elif one != other or one not in KINDS:
            left[name] = f"{one} in {a.sink.name}, {other} in {b.sink.name}"
        else:
            same[name] = one
    return Columns(tuple(same), tuple(same.values()), left)


def _epoch(a: Side, b: Side, epoch: EpochNumber, columns: Columns | None, rows: int) -> tuple[Json | None, str]:
    """Return what differs (None if nothing does), and the reason if the content of this epoch could not be read."""
    of_a, of_b = a.epochs[epoch], b.epochs[epoch]
    told: Json = {"epoch": epoch, "audit": [_words(of_a), _words(of_b)], "content": None, "rows": None}
    differs = _audit_differs(a, b, of_a, of_b)
    why = ""
    if columns is not None:
        try:
            parts = [list(_digests(side, position, columns)) for side, position in _places(a, b, of_a, of_b)]
        except SinkUnavailable as error:
            why = f"{error.sink}: {error.what}"
        else:
            told["content"] = [_words_of(sum(part, Digest(0, 0))) for part in parts]
            if parts[0] != parts[1]:
                differs = True
                buckets = [n for n in range(BUCKETS) if parts[0][n] != parts[1][n]][:BUCKETS_SHOWN]
                told["rows"] = _rows(a, b, of_a, of_b, columns, buckets, rows) if rows else None
    return (told if differs else None), why


def _audit_differs(a: Side, b: Side, of_a: ShownEpoch, of_b: ShownEpoch) -> bool:
    """Return whether the two audits differ.

    Digests are compared if both have one.  Row counts are compared if both sinks get every row of an epoch.
    """
    if of_a.digest is not None and of_b.digest is not None and of_a.digest != of_b.digest:
        return True
    return _whole(a) and _whole(b) and of_a.rows != of_b.rows


def _whole(side: Side) -> bool:
    """Return whether the sink gets every row of an epoch."""
    return not getattr(side.sink, "leaves_rows_out", False)


def _places(a: Side, b: Side, of_a: ShownEpoch, of_b: ShownEpoch) -> Sequence[tuple[Side, Position]]:
    return (a, of_a.position), (b, of_b.position)


def _digests(side: Side, position: Position, columns: Columns) -> Iterator[Digest]:
    """Return one digest per bucket of rows."""
    counts, sums = [0] * BUCKETS, [0] * BUCKETS
    for hashed, _ in _hashed(side, position, columns):
        counts[hashed % BUCKETS] += 1
        sums[hashed % BUCKETS] += hashed
    whole = (1 << 63) - 1
    return (Digest(count, total & whole) for count, total in zip(counts, sums, strict=True))


def _hashed(side: Side, position: Position, columns: Columns) -> Iterator[Hashed]:
    assert side.content is not None, "asked before"
    for row in side.content.rows(position, columns.names):
        yield row_hash(row, columns.kinds), row


def _rows(
    a: Side, b: Side, of_a: ShownEpoch, of_b: ShownEpoch, columns: Columns, buckets: Sequence[int], most: int
) -> Json:
    """Return up to ``most`` rows per sink that this sink has more often than the other one, from these buckets."""
    held: list[dict[int, tuple[Value, ...]]] = [{}, {}]
    counted: list[Counter[int]] = [Counter(), Counter()]
    for n, (side, position) in enumerate(_places(a, b, of_a, of_b)):
        for hashed, row in _hashed(side, position, columns):
            if hashed % BUCKETS in buckets:
                held[n][hashed] = row
                counted[n][hashed] += 1
    only = [
        [dict(zip(columns.names, map(_plain, held[n][key]), strict=True)) for key in list(more)[:most]]
        for n, more in enumerate((counted[0] - counted[1], counted[1] - counted[0]))
    ]
    return {f"only in {side.sink.name}": found for side, found in zip((a, b), only, strict=True)}


def _plain(value: Value) -> Any:
    """Return the value as JSON can hold it."""
    return value.hex() if isinstance(value, bytes) else value


def _words(row: ShownEpoch) -> Json:
    return {
        "sink": row.sink,
        "position": row.position,
        "rows": row.rows,
        "digest": str(row.digest) if row.digest is not None else None,
    }


def _words_of(digest: Digest) -> Json:
    return {"rows": digest.rows, "digest": f"{digest.sum:016x}"}


def _answer(
    a: Side,
    b: Side,
    epochs: Sequence[EpochNumber],
    columns: Columns | None,
    reasons: Sequence[str],
    differing: Sequence[Json],
    compared: int,
    untold: Mapping[EpochNumber, str],
    lacking: Mapping[str, Sequence[EpochNumber]],
    only_audit: bool,
) -> Answer:
    whole = only_audit or compared == len(epochs)
    gaps = any(missing[0] < epochs[-1] for missing in lacking.values() if missing)  # newer ones may only be late
    code = WRONG if differing or gaps else FINE if whole else UNKNOWN
    data = {
        "sinks": [a.sink.name, b.sink.name],
        "from": epochs[0],
        "to": epochs[-1],
        "epochs": len(epochs),
        "compared_by_content": compared,
        "columns": list(columns.names) if columns is not None else [],
        "columns_left_out": dict(columns.left) if columns is not None else {},
        "not_compared": list(reasons),
        "epochs_not_compared": {str(epoch): why for epoch, why in list(untold.items())[:DIFFERING]},
        "lacking": {name: list(missing) for name, missing in lacking.items()},
        "differing": list(differing),
        "more_differ": len(differing) == DIFFERING,
    }
    return Answer("reconcile", data, code, list(_shown(data)))


def _shown(data: Json) -> Iterator[RenderableType]:
    one, other = data["sinks"]
    yield line(f"epochs {data['from']} to {data['to']} of {one} and {other}")
    if data["columns"]:
        yield line(f"compared by content: {data['compared_by_content']} epochs, columns {', '.join(data['columns'])}")
    for name, why in data["columns_left_out"].items():
        yield line(f"NOT compared: column {name}: {why}", "yellow")
    for why in data["not_compared"]:
        yield line(f"NOT compared by content: {why}", "yellow")
    for epoch, why in data["epochs_not_compared"].items():
        yield line(f"NOT compared by content: epoch {epoch}: {why}", "yellow")
    for name, missing in data["lacking"].items():
        if missing:
            yield line(f"{name} has not got {len(missing)} epochs, {missing[0]} to {missing[-1]}", "red")
    if data["differing"]:
        yield _differing(data)
    for told in data["differing"]:
        for side, rows in (told["rows"] or {}).items():
            for row in rows:
                yield line(f"epoch {told['epoch']}, {side}: {row}", "red")
    if not data["differing"]:
        full = data["compared_by_content"] == data["epochs"]
        alike = "the content of these is equal" if any(data["lacking"].values()) else "the content is equal"
        yield line(alike if full else "no difference in what could be compared", "bold")


def _differing(data: Json) -> RenderableType:
    made = table("epoch", *(f"{what} of {name}" for name in data["sinks"] for what in ("audit", "content")))
    for told in data["differing"]:
        cells = []
        for n in (0, 1):
            row, content = told["audit"][n], (told["content"] or [None, None])[n]
            cells.append(f"{row['rows']} rows at position {row['position']}")
            cells.append(f"{content['rows']} rows, {content['digest']}" if content is not None else "-")
        made.add_row(str(told["epoch"]), *cells, style="red")
    return made
