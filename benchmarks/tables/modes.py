"""What each mode of each sink costs, compared with a plain foreachBatch with the system's usual Spark writer.

The plain job always appends, because Spark's JDBC and Kafka writers can do nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks import names, ours
from benchmarks.measuring import ratio, turns
from benchmarks.natives import native
from benchmarks.results import Result
from benchmarks.rows import SMALL, source
from benchmarks.world import World
from epochal.sinks import delta as d
from epochal.sinks import postgres as p

if TYPE_CHECKING:
    from benchmarks.tables import Options

MODES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {  # system -> mode -> arguments of the sink
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
KEYED = ("upsert", "merge")
"""Modes that are measured with new keys, and again with the same number of keys that are all in the table already."""
IDEMPOTENT = {"postgres": ("append", "upsert"), "delta": ("append",), "kafka": ("one transaction",)}


def jobs(world: World, rows: int) -> tuple[dict[str, Callable[[], float]], dict[str, str]]:
    """Return the jobs, and job -> peer for those that have one."""
    new, known = (source(world.spark, world.folder, [SMALL, rows], again=again) for again in (False, True))
    schema = world.spark.read.parquet(str(new)).schema
    found: dict[str, Callable[[], float]] = {}
    peers: dict[str, str] = {}
    for system, modes in MODES.items():
        peer = f"plain {system}"
        found[peer] = lambda system=system: world.epochs(new, native(world, system))[-1]  # type: ignore[misc]
        for name, options in modes.items():
            ways = {"two-phase": "", **({"idempotent": ", idempotent"} if name in IDEMPOTENT[system] else {})}
            paths = {"": new, **({", known keys": known} if name in KEYED else {})}
            for (way, suffix), (which, path) in itertools.product(ways.items(), paths.items()):
                job = f"{names.of(system)}, {name}{which}{suffix}"
                peers[job] = peer
                found[job] = lambda system=system, options=options, way=way, path=path: world.epochs(  # type: ignore[misc]
                    path, ours.pipeline(world, schema, system, mode=way, **{system: options})
                )[-1]
    return found, peers


def run(options: Options) -> Result:
    result = Result("modes", options.rounds, options.quick)
    with World() as world:
        for rows in (10_000,) if options.quick else (1_000, 1_000_000):
            each, peers = jobs(world, rows)
            taken = turns(each, options.rounds, {"rows": rows}, "s", warm_up=options.warm_up, after=world.clear)
            result.add(taken, *(ratio(taken, job, peer, "s") for job, peer in peers.items()))
    return result
