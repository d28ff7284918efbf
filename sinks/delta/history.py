"""The epochs that a sink shows, from the history of its Delta table.

The commit that makes an epoch visible holds the facts of the epoch as ``userMetadata``, in JSON.  Delta removes them
when it cleans the table's log (``delta.logRetentionDuration``, 30 days by default).  Nothing else limits this audit.

The history is read through the Spark session if one runs, else by delta-rs, the package ``deltalake``, without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from epochal.coordinator.environment import versions
from epochal.coordinator.model.epoch import Committable, Digest, Json
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.delta import jvm, lineage
from epochal.sinks.delta.target import Target
from epochal.sinks.delta.without_spark import located
from epochal.sinks.epochs import Epochs, ShownEpoch, Wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1
"""The version of the facts.  The protocol does not use them, so facts of a newer version are read too."""
FIRST_LOOK = 20
"""How many versions of the table the first read takes.  Each further read takes ten times as many."""

Commit = tuple[int, str]
"""Milliseconds since 1970, and the user metadata, which is empty if a later RESTORE has taken the commit back."""
Newest = Callable[[int], "list[Commit]"]
"""Returns the table's newest commits, the newest first: as many as the argument says; fewer if there are no more."""


def facts(app: str, c: Committable) -> str:
    """Return the facts of an epoch, as JSON text for its commit."""
    told: Json = {
        "app": app,
        "sink": c.sink,
        "incarnation": c.decision.incarnation,
        "epoch": c.decision.epoch,
        "position": c.position,
        "decision": c.decision.id,
        "rows": c.rows,
        "offsets": c.payload["offsets"],
        "watermark": c.payload["watermark"],
        "version": VERSION,
        **({"digest": c.digest.to_json()} if c.digest is not None else {}),
    }
    return json.dumps(told)


def read(newest: Newest, app: str, sink: str, wanted: Wanted) -> Epochs:
    """Return the epochs that are asked for.  Read the history from the newest version back, no further than needed."""
    many = FIRST_LOOK
    while True:
        commits = newest(many)
        found = list(_rows(commits, app, sink))
        if len(commits) < many or wanted.is_met(row.position for row in found):
            return wanted.of_all(found)
        many *= 10


def by_spark(session: SparkSession, target: Target, many: int) -> list[Commit]:
    """Return the newest ``many`` commits, read through Spark.  ``JavaFailure``: Delta cannot read the history."""
    from pyspark.sql import functions as f

    with jvm.java_errors():
        told = jvm.run(session, f"DESCRIBE HISTORY {target.sql} LIMIT {many}")
        columns = ("version", f.unix_millis("timestamp"), "userMetadata", "operation", "operationParameters")
        return _commits([_HistoryLine(*row) for row in told.select(*columns).collect()])


def by_delta_rs(path: str, sink: str) -> Newest:
    """Return a function that reads the newest commits with delta-rs.

    ``Misconfigured``: the package is missing, or finds no table.  ``SinkUnavailable``: see ``located``.
    """
    where = located(Target.of(path, None), sink)
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as missing:
        raise Misconfigured(
            f"no Spark runs in this process, and the package that reads Delta without it is missing: {missing}",
            sink=sink,
            help=f"pip install 'deltalake>={versions.DELTALAKE}', or start a SparkSession",
        ) from None
    try:
        table = DeltaTable(where)
    except DeltaError as error:
        raise Misconfigured(
            f"delta-rs reads no Delta table at {path}",
            sink=sink,
            state=str(error).partition("\n")[0],
            help="name the path of a table, on a file system that delta-rs knows; or start a SparkSession",
        ) from error
    names = ("version", "timestamp", "userMetadata", "operation", "operationParameters")
    return lambda many: _commits([_HistoryLine(*map(commit.get, names)) for commit in table.history(many)])


class _HistoryLine(NamedTuple):
    """One line of a table's history."""

    version: Any
    milliseconds: Any
    user_metadata: Any
    operation: Any
    parameters: Any


def _commits(told: Sequence[_HistoryLine]) -> list[Commit]:
    """Return the commits, newest first like ``told``."""
    infos = ((line.version, {"operation": line.operation, "operationParameters": line.parameters}) for line in told)
    kept = set(lineage.counted(infos))
    return [(int(line.milliseconds), str(line.user_metadata or "") if line.version in kept else "") for line in told]


def _rows(commits: Sequence[Commit], app: str, sink: str) -> Iterator[ShownEpoch]:
    """Yield the epochs, newest first.  Commits of others, and our commits that only fence, belong to no epoch."""
    for milliseconds, text in commits:
        told = _facts(text)
        if (told.get("app"), told.get("sink")) == (app, sink) and "position" in told:
            yield _row(told, datetime.fromtimestamp(milliseconds / 1000, timezone.utc))


def _facts(text: str) -> Json:
    """Parse the user metadata of a commit.  Somebody else may have written it: then it may be any text."""
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _row(told: Json, at: datetime) -> ShownEpoch:
    return ShownEpoch(
        app=str(told["app"]),
        sink=str(told["sink"]),
        position=int(told["position"]),
        epoch=int(told["epoch"]),
        incarnation=str(told["incarnation"]),
        decision=int(told["decision"]),
        offsets=str(told["offsets"]),
        rows=int(told["rows"]),
        digest=Digest.from_json(told["digest"]) if "digest" in told else None,
        watermark=told["watermark"],
        committed_at=at,
    )
