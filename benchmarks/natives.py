"""The usual Spark writer of each system, with a new target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.peers import delta, kafka, postgres
from benchmarks.world import new_name

if TYPE_CHECKING:
    from benchmarks.world import World, Write


def native(world: World, kind: str) -> Write:
    return named(world, kind)[0]


def named(world: World, kind: str) -> tuple[Write, str]:
    """Return the writer with the name of its table, its topic or its folder."""
    if kind == "postgres":
        table = world.table()
        return postgres.jdbc(world.jdbc(reWriteBatchedInserts="true"), table), table
    if kind == "kafka":
        topic = world.topic()
        return kafka.spark(world.kafka.bootstrap, topic), topic
    name = new_name("delta")
    return delta.spark(str(world.new_folder(name))), name
