"""The names of the jobs.  Results of different runs, goals and figures are matched by these names."""

from __future__ import annotations

OURS = "epochal"
"""The name of each job of ours begins with this.  It is the whole name if the case says which sinks."""
KINDS = ("postgres", "kafka", "delta")
THREE = f"{OURS} three"
"""All kinds of sinks in one pipeline."""

BARE = "bare foreachBatch"
JDBC, JDBC_REWRITTEN = "spark jdbc", "spark jdbc, rewritten batches"
PSYCOPG = "psycopg COPY"
SERVER_BINARY, SERVER_TEXT = "server-side COPY of a binary file", "server-side COPY of a text file"
SPARK_KAFKA, SPARK_KAFKA_TUNED = "spark kafka", "spark kafka, tuned"
CONFLUENT = "confluent-kafka, no transaction"
DELTA_APPEND, DELTA_TXN = "delta append", "delta append, txnAppId"
DELTA_RS = "delta-rs"
SPARK_THREE = "spark's three"

NATIVES = {"postgres": JDBC_REWRITTEN, "kafka": SPARK_KAFKA, "delta": DELTA_APPEND}
"""Kind of system -> the writer that users of the system usually have."""


def of(*kinds: str) -> str:
    """Return the name of our job that writes to sinks of these kinds: to one, or to all three."""
    assert len(kinds) == 1 or kinds == KINDS, f"no job of ours is called after {kinds}"
    return f"{OURS} {kinds[0]}" if len(kinds) == 1 else THREE
