"""What each mode of each sink costs, beside a plain foreachBatch with that system's native writer.

``python benchmarks/modes.py [--rounds N] [--rows N] [--small N]`` starts its own servers and leaves none running.

The plain job appends, whatever the mode beside it does: Spark's JDBC and Kafka writers can do nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from bench import Bench, Jobs, Write, run

import epochal
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks import delta as d
from epochal.sinks import postgres as p
from epochal.sinks.protocol import Sink

MODES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {  # system, mode: what the sink is given
    "postgres": {
        "append": {},
        "plain table": {"mode": p.Plain()},
        "upsert": {"mode": p.Upsert(key="id")},
        "select and where": {"select": ["id", "k", "v"], "where": "x < 0.9"},
    },
    "delta": {
        "append": {},
        "overwrite": {"mode": d.Overwrite()},
        "merge": {"mode": d.Merge(key="id")},
    },
    "kafka": {"one transaction": {}, "two slots": {"slots": 2}},
}
IDEMPOTENT = {"postgres": ("append", "upsert"), "delta": ("append",), "kafka": ("one transaction",)}


def ours(bench: Bench, system: str, options: Mapping[str, Any], mode: str) -> Write:
    """A pipeline into one new target."""
    app = f"bench-{uuid.uuid4().hex[:8]}"
    made: Mapping[str, Callable[[], Sink]] = {
        "postgres": lambda: PostgresSink(bench.dsn, table=app.replace("-", "_"), **options),
        "kafka": lambda: KafkaSink(bench.kafka.bootstrap, topic=app, key="k", partitions=4, **options),
        "delta": lambda: DeltaSink(str(bench.folder / app), **options),
    }
    pipeline = epochal.Pipeline(app=app, sinks=[made[system]()], mode=mode)
    pipeline.create(bench.schema)
    return pipeline


def jobs(bench: Bench) -> Jobs:
    found: dict[str, Callable[[], Write]] = {}
    for system, modes in MODES.items():
        found[f"plain {system}"] = lambda system=system: bench.plain(system)  # type: ignore[misc]
        for name, options in modes.items():
            job = lambda mode, system=system, options=options: ours(bench, system, options, mode)  # noqa: E731
            found[f"epochal {system}, {name}"] = lambda job=job: job("two-phase")  # type: ignore[misc]
            if name in IDEMPOTENT[system]:
                found[f"epochal {system}, {name}, idempotent"] = lambda job=job: job("idempotent")  # type: ignore[misc]
    return found


if __name__ == "__main__":
    run("modes", __doc__, jobs)
