"""Write the durable copy of an epoch as Kafka's own record batches, where no other sink reads the copy.

The rows are evaluated, judged and encoded in one pass.  What is delivered is a header in front of the bytes that lie in
the copy's files, so neither the vote nor a redo needs the rows again.
"""

from __future__ import annotations

from epochal.coordinator.model.epoch import Copy, Epoch
from epochal.coordinator.model.errors import EpochalError, PrepareRefused, SinkUnavailable
from epochal.sinks.kafka import possible, voting
from epochal.sinks.kafka.core import Core, Watched
from epochal.sinks.kafka.delivery import encoding, index
from epochal.sinks.kafka.judging import (
    check_topics,
    gives_equal_records,
    judged_while_copied,
    judging_for,
    projected,
    record_columns,
    topics_of,
)
from epochal.sinks.kafka.objections import watched
from epochal.sinks.kafka.rows import KEPT
from epochal.sinks.protocol import Rows
from epochal.sinks.spark import stage
from epochal.sinks.spark.expressions import computed
from epochal.sinks.spark.names import quoted

_ARROW = {"spark.sql.execution.arrow.useLargeVarTypes": "false"}


def stage_records(sink: Core, epoch: Epoch, rows: Rows, folder: str) -> Copy | None:
    """See ``epochal.sinks.protocol.StagingSink``.  None: the sink does not vote, or the copy cannot be records."""
    sink.watched = sink.staged = None
    local = stage.local_path(folder)
    if local is None or not gives_equal_records(sink, rows):
        return None
    link = sink.link()
    try:
        with voting.named(link, epoch.number):
            now = topics_of(sink, epoch)
            if possible.reason_now(sink, link, now, folder) is not None:
                return None
    except SinkUnavailable:  # the vote asks again
        return None
    check_topics(sink, epoch, now)
    given = projected(sink, rows)
    judging = judging_for(sink, given.schema, now)
    seen, figures = watched(given.select(*judging.record), judging.figures)
    marks = [KEPT] if sink.encoding.projection.where is not None else []
    records = computed(seen, [*map(quoted, [*record_columns(seen), *marks])])
    layout = voting.layout_of(sink, link, now)
    job = encoding.Job(layout, local, sink.name, epoch.number, is_durable=True, is_marked=bool(marks))
    try:
        with sink.encoding.projection.evaluating(epoch.number, of_query=True):
            encoded = encoding.encode(records, job, sink.bounds, _ARROW)
    except encoding.EncodingFailed as failed:
        sink.watched = Watched(epoch.decision.id, judging, figures)
        judged_while_copied(sink, epoch, now)  # the same rows may meet an objection, whose error says more
        raise voting.not_encoded(sink, epoch, failed) from failed
    except EpochalError:
        raise
    except Exception as error:
        raise voting.not_encoded(sink, epoch, error) from error
    sink.watched = Watched(epoch.decision.id, judging, figures)
    sink.staged = epoch.decision.id, encoded
    try:
        return index.write(encoded, folder, local, rows.schema.json())
    except OSError as error:
        raise PrepareRefused(
            f"the index of the durable copy could not be written: {error}",
            sink=sink.name,
            epoch=epoch.number,
            state=f"copy {folder}, nothing was decided",
            help="correct the disk of the checkpoint (space, rights), and restart: the epoch is evaluated again",
        ) from error
