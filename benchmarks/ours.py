"""Epochal's jobs: a pipeline with new targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import epochal
from benchmarks.world import new_name
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from benchmarks.world import World
    from epochal.coordinator.model.events import Event
    from epochal.sinks.protocol import Sink


def pipeline(
    world: World,
    schema: StructType,
    *kinds: str,
    mode: str = "two-phase",
    on_event: Callable[[Event], None] | None = None,
    **options: Mapping[str, object],
) -> epochal.Pipeline:
    """Return a pipeline into sinks of ``kinds``.  ``options``: kind -> more arguments of its sink.

    Kafka writes the columns ``k`` and ``v``.
    """
    name = new_name("ours")
    sinks = [sink(world, kind, name, **options.get(kind, {})) for kind in kinds]
    made = epochal.Pipeline(app=name, sinks=sinks, mode=mode, on_event=on_event)
    made.create(schema)
    world.closing(made.close)
    return made


def sink(world: World, kind: str, name: str, **options: object) -> Sink:
    return sink_at(kind, name, address(world, kind, name), **options)


def address(world: World, kind: str, name: str) -> str:
    """Return the address for a sink: a connection string, a bootstrap server (the topic is created), or a folder."""
    if kind == "postgres":
        world.named_table(name)
        return world.dsn
    if kind == "kafka":
        world.topic(name)
        return world.kafka.bootstrap
    return str(world.new_folder(name))


def sink_at(kind: str, target: str, address: str, **options: object) -> Sink:
    """Return the sink at an address, also in a process without a World.  ``target``: name of the table or topic."""
    if kind == "postgres":
        return PostgresSink(address, table=target, **options)  # type: ignore[arg-type]
    if kind == "kafka":
        return KafkaSink(address, topic=target, **{"key": "k", "value": "v", **options})  # type: ignore[arg-type]
    return DeltaSink(address, **options)  # type: ignore[arg-type]
