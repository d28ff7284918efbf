"""Our own pipelines on the kit's servers.  ``epochal chaos run`` strikes them if no target of the user's is named.

Each access to ``epochal.chaos.campaign.own:pipeline``, or to another name of :data:`OWN`, makes a new pipeline from the
environment that :mod:`epochal.chaos.campaign.bench` sets for every round.

==============  =======================================================================================
``pipeline``    Postgres, Kafka and Delta, which all append rows
``upsert``      Postgres, Delta and Kafka, which upsert and delete rows by key (Kafka with tombstones)
``plain``       Postgres without columns of ours, and Kafka with two transactions per epoch
``overwrite``   two Delta tables that each epoch replaces, with output mode ``complete``
``idempotent``  the sinks of ``pipeline``, in idempotent mode
==============  =======================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochal.chaos.campaign.bench import FOLDER, KAFKA, POSTGRES
from epochal.chaos.job.moments import Moments
from epochal.chaos.job.targets import RUN
from epochal.chaos.strike.strikes import SERVERS
from epochal.coordinator.model.epoch import IDEMPOTENT, TWO_PHASE
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink, delta, postgres
from epochal.sinks.protocol import Sink

TARGET = "epochal.chaos.campaign.own:pipeline"
SINKS = ("delta", "kafka", "postgres")
LOSING = ("delta", "postgres")
"""The sinks that hold rows between prepare and commit.  Kafka writes them in the commit."""
COMPACT_EVERY = 8  # records; so few that a run of some minutes also compacts its log
OLD_NAME = "epochal.chaos.own"
"""The module's name before it moved: older plans and commands name it."""
HELD_AT_ROWS = ("through",)
"""Name of the function in which the kit holds tasks at rows.  It changes no row, so it is deterministic."""


@dataclass(frozen=True)
class Own:
    """One of our pipelines: where it can be struck, and the workload that it is for."""

    moments: Moments
    make: Callable[[], Pipeline]
    workload: str = "rows"

    @property
    def servers(self) -> Sequence[str]:
        """The servers that it needs; its sinks are named after them."""
        return [kind for kind in SERVERS if kind in self.moments.sinks]


def make(names: Sequence[str] = SINKS, mode: str = TWO_PHASE) -> Pipeline:
    """Return a pipeline over the named sinks.  Only this run has its app, table, topic and folder."""
    makers: Mapping[str, Callable[[], Sink]] = {
        "postgres": lambda: PostgresSink(os.environ[POSTGRES], table=_table(), name="postgres"),
        "kafka": lambda: KafkaSink(os.environ[KAFKA], topic=_topic(), partitions=2, name="kafka"),
        "delta": lambda: DeltaSink(_folder(), name="delta"),
    }
    return _pipeline([one() for name, one in makers.items() if name in names], mode)


def _upsert() -> Pipeline:
    """A pipeline of upserts.  ``n`` counts up with the inputs, so the highest ``n`` of a key is its last change."""
    how: Any = {"key": "id", "delete_when": "deleted", "order_by": "n"}
    record = [
        "CAST(id AS STRING) AS key",
        "CASE WHEN deleted THEN NULL ELSE to_json(struct(id, n, attempt)) END AS value",
    ]
    kafka = KafkaSink(
        os.environ[KAFKA],
        topic=_topic(),
        partitions=2,
        name="kafka",
        key="key",
        value="value",
        tombstones=True,
        select=record,
    )
    return _pipeline(
        [
            PostgresSink(os.environ[POSTGRES], table=_table(), name="postgres", mode=postgres.Upsert(**how)),
            kafka,
            DeltaSink(_folder(), name="delta", mode=delta.Merge(**how)),
        ]
    )


def _plain() -> Pipeline:
    return _pipeline(
        [
            PostgresSink(os.environ[POSTGRES], table=_table(), name="postgres", mode=postgres.Plain()),
            KafkaSink(os.environ[KAFKA], topic=_topic(), partitions=4, name="kafka", slots=2),
        ]
    )


def _overwrite() -> Pipeline:
    return _pipeline(
        [DeltaSink(f"{_folder()}-{name}", name=name, mode=delta.Overwrite()) for name in ("delta", "mirror")]
    )


def _pipeline(sinks: Sequence[Sink], mode: str = TWO_PHASE) -> Pipeline:
    return Pipeline(
        app=os.environ[RUN],
        compact_every=COMPACT_EVERY,
        sinks=sinks,
        mode=mode,
        deterministic=HELD_AT_ROWS if mode == IDEMPOTENT else (),
    )


def _table() -> str:
    return os.environ[RUN].replace("-", "_")


def _topic() -> str:
    return f"{os.environ[RUN]}-out"


def _folder() -> str:
    return f"{os.environ[FOLDER]}/{os.environ[RUN]}"


OWN: Mapping[str, Own] = {
    "pipeline": Own(Moments(SINKS, LOSING), make),
    "upsert": Own(Moments(SINKS, LOSING), _upsert, "upsert"),
    "plain": Own(Moments(("kafka", "postgres"), ("postgres",)), _plain),
    "overwrite": Own(Moments(("delta", "mirror"), ("delta", "mirror")), _overwrite, "complete"),
    "idempotent": Own(Moments(SINKS, LOSING, idempotent=True, applied=("kafka",)), lambda: make(mode=IDEMPOTENT)),
}


def target(name: str) -> str:
    """Return the name of one of our pipelines as an argument for ``--target``."""
    return f"epochal.chaos.campaign.own:{name}"


def named(text: str) -> Own | None:
    """Return our own pipeline for a ``--target``: ``pipeline`` if it is empty, None if it is a user's."""
    if not text:
        return OWN["pipeline"]
    module, _, name = text.partition(":")
    return OWN.get(name) if module in (__name__, OLD_NAME) else None


def __getattr__(name: str) -> Any:
    if name in OWN:
        return OWN[name].make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
