"""The three sinks on the kit's servers: what ``epochal chaos run`` strikes when no target is named.

``epochal.chaos.own:pipeline`` is made anew whenever it is asked for, from the environment that
:mod:`epochal.chaos.bench` sets for every round.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from epochal.chaos.bench import FOLDER, KAFKA, POSTGRES
from epochal.chaos.targets import RUN
from epochal.coordinator.pipeline import Pipeline
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.protocol import Sink

TARGET = "epochal.chaos.own:pipeline"
SINKS = ("delta", "kafka", "postgres")
LOSING = ("delta", "postgres")
"""Those that hold rows between prepare and commit; Kafka's are written in the commit."""
COMPACT_EVERY = 8  # records, so that a run of some minutes compacts its log too


def make(names: Sequence[str] = SINKS) -> Pipeline:
    """A pipeline over Postgres, Kafka and Delta, or those named, whose app, table and topic are this run's alone."""
    run = os.environ[RUN]
    makers: Mapping[str, Callable[[], Sink]] = {
        "postgres": lambda: PostgresSink(os.environ[POSTGRES], table=run.replace("-", "_"), name="postgres"),
        "kafka": lambda: KafkaSink(os.environ[KAFKA], topic=f"{run}-out", partitions=2, name="kafka"),
        "delta": lambda: DeltaSink(f"{os.environ[FOLDER]}/{run}", name="delta"),
    }
    return Pipeline(
        app=run, compact_every=COMPACT_EVERY, sinks=[one() for name, one in makers.items() if name in names]
    )


def __getattr__(name: str) -> Any:
    if name == "pipeline":
        return make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
