"""What jobs are called.  Results of different runs, goals and figures find each other by these words."""

from __future__ import annotations

OURS = "epochal"
"""With it the name of each job of ours begins; it is the whole name where the case says which sinks."""
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
"""The writer that a system's own users have, by the kind of system."""


def of(*kinds: str) -> str:
    """Our job into sinks of these kinds: of one, or of all three."""
    assert len(kinds) == 1 or kinds == KINDS, f"no job of ours is called after {kinds}"
    return f"{OURS} {kinds[0]}" if len(kinds) == 1 else THREE
