"""Rows per second and time of a small epoch: Epochal beside a plain foreachBatch with each native writer.

``python benchmarks/main_job.py [--rounds N] [--rows N] [--small N]`` starts its own servers and leaves none running.
"""

from __future__ import annotations

import uuid

from bench import Bench, Jobs, Write, run

import epochal
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink


def ours(bench: Bench, *kinds: str) -> Write:
    """A pipeline into new targets."""
    app = f"bench-{uuid.uuid4().hex[:8]}"
    made = {
        "postgres": lambda: PostgresSink(bench.dsn, table=app.replace("-", "_")),
        "kafka": lambda: KafkaSink(bench.kafka.bootstrap, topic=app, key="k"),
        "delta": lambda: DeltaSink(str(bench.folder / app)),
    }
    if "kafka" in kinds:
        bench.kafka.create_topic(app, partitions=4)
    pipeline = epochal.Pipeline(app=app, sinks=[made[kind]() for kind in kinds])
    pipeline.create(bench.schema)
    return pipeline


def jobs(bench: Bench) -> Jobs:
    """Each job by name, ``plain X`` the peer of ``epochal X``."""
    return {
        "plain postgres": lambda: bench.plain("postgres"),
        "epochal postgres": lambda: ours(bench, "postgres"),
        "plain kafka": lambda: bench.plain("kafka"),
        "epochal kafka": lambda: ours(bench, "kafka"),
        "plain delta": lambda: bench.plain("delta"),
        "epochal delta": lambda: ours(bench, "delta"),
        "plain three": bench.plain_three,
        "epochal three": lambda: ours(bench, "postgres", "kafka", "delta"),
    }


if __name__ == "__main__":
    run("main-job", __doc__, jobs)
