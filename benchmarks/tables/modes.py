"""What each mode of each sink costs, beside a plain foreachBatch with that system's native writer.

The plain job appends, whatever the mode beside it does: Spark's JDBC and Kafka writers can do nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks import ours
from benchmarks.measuring import ratio, turns
from benchmarks.natives import native
from benchmarks.results import Result
from benchmarks.rows import SMALL, source
from benchmarks.world import World
from epochal.sinks import delta as d
from epochal.sinks import postgres as p

if TYPE_CHECKING:
    from benchmarks.tables import Options

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


def jobs(world: World, rows: int) -> tuple[dict[str, Callable[[], float]], dict[str, str]]:
    """Each job, and the peer of those that have one."""
    path = source(world.spark, world.folder, [SMALL, rows])
    schema = world.spark.read.parquet(str(path)).schema
    found: dict[str, Callable[[], float]] = {}
    peers: dict[str, str] = {}
    for system, modes in MODES.items():
        peer = f"plain {system}"
        found[peer] = lambda system=system: world.epochs(path, native(world, system))[-1]  # type: ignore[misc]
        for name, options in modes.items():
            ways = {"two-phase": "", **({"idempotent": ", idempotent"} if name in IDEMPOTENT[system] else {})}
            for way, suffix in ways.items():
                job = f"epochal {system}, {name}{suffix}"
                peers[job] = peer
                found[job] = lambda system=system, options=options, way=way: world.epochs(  # type: ignore[misc]
                    path, ours.pipeline(world, schema, system, mode=way, **{system: options})
                )[-1]
    return found, peers


def run(options: Options) -> Result:
    result = Result("modes", options.rounds, options.quick)
    with World() as world:
        for rows in (10_000,) if options.quick else (1_000, 1_000_000):
            each, peers = jobs(world, rows)
            taken = turns(each, options.rounds, {"rows": rows}, "s", after=world.clear)
            result.add(taken, *(ratio(taken, job, peer, "s") for job, peer in peers.items()))
    return result
