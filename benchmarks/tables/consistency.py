"""What faults do to each sink, each mode and each peer: lost, duplicated, torn, out of order; and what each costs.

Each run is one of the chaos kit (tier 4, real processes and servers): three epochs without a fault, an epoch per
strike, readers from outside all the time, one more epoch.  A cell is one kind of fault
(:data:`benchmarks.faults.KINDS`) on one output, over all seeds, and :mod:`benchmarks.cells` counts what readers saw.
A strike that was not seen to land counts as none, and a cell without any is *not struck*, never clean.

The cost is that of an epoch of :data:`ROWS` rows without a fault, over a ``foreachBatch`` that evaluates the same rows
and writes nothing, in turn in one session of Spark with all its compilers: the drivers that are struck are made to
start soon and tell nothing about speed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks import ours
from benchmarks.cells import Cell, Contradiction, Judged, together
from benchmarks.faults import KINDS, AsPlanned, Planned, plans
from benchmarks.measuring import Case, Job, Measure, Ratio, ratio, say, turns
from benchmarks.peers import delta, kafka, postgres
from benchmarks.results import Result
from benchmarks.rows import SMALL, source
from benchmarks.targets import OURS, TARGETS, Target
from benchmarks.world import World, new_name
from epochal.chaos import jvm
from epochal.chaos.bench import Bench, bench
from epochal.chaos.campaign import Campaign
from epochal.chaos.checker import Verdict
from epochal.chaos.plan import Plan
from epochal.chaos.plan import Result as Struck
from epochal.chaos.roles import SERVERS
from epochal.sinks.delta import Merge, Overwrite
from epochal.sinks.postgres import Plain, Upsert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.__main__ import Options
    from benchmarks.world import Write

SEEDS = (1, 2)
QUICK_SEEDS = (1,)
QUICK_TARGETS = ("pipeline", "delta_append")
QUICK_KINDS = ("no commits/N", "zombie")
ROWS = 100_000
QUICK_ROWS = 10_000
BARE = "bare foreachBatch"

ONLY = "EPOCHAL_CONSISTENCY_TARGETS"
"""Environment variable: names of :data:`benchmarks.targets.TARGETS`, with commas between; all without it."""
FAULTS = "EPOCHAL_CONSISTENCY_FAULTS"
"""The same for kinds of faults."""
LIMIT = 300  # characters of a reason


def run(options: Options) -> Result:
    result = Result("consistency", options.rounds, options.quick)
    names = _asked(ONLY, TARGETS, QUICK_TARGETS if options.quick else tuple(TARGETS))
    kinds = _asked(FAULTS, KINDS, QUICK_KINDS if options.quick else tuple(KINDS))
    seeds = QUICK_SEEDS if options.quick else SEEDS
    told: list[dict[str, object]] = []
    result.cells = together(_strike(names, kinds, seeds, told))
    rows = QUICK_ROWS if options.quick else ROWS
    jobs = list(dict.fromkeys(cell.job for cell in result.cells))
    measures, ratios = _costs(jobs, rows, 1 if options.quick else options.rounds)
    result.add(measures, *ratios)
    result.facts = {
        "seeds": list(seeds),
        "faults": {name: KINDS[name].about for name in kinds},
        "runs": told,
        "ours that is not clean": [f"{c.job}, {c.fault}: {c.verdict}" for c in result.cells if _alarms(c)],
    }
    return result


def _asked(variable: str, known: Mapping[str, object], default: Sequence[str]) -> Sequence[str]:
    """What the environment asks for; a name that there is not ends the table before it begins."""
    words = [word.strip() for word in os.environ.get(variable, "").split(",") if word.strip()]
    if unknown := [word for word in words if word not in known]:
        raise SystemExit(f"{variable}: {unknown[0]!r} is none of {', '.join(known)}")
    return words or default


def _alarms(cell: Cell) -> bool:
    return cell.job.startswith(OURS) and cell.verdict != "clean"


# --- striking ---------------------------------------------------------------------------------------


def _strike(
    names: Sequence[str], kinds: Sequence[str], seeds: Sequence[int], told: list[dict[str, object]]
) -> list[Cell]:
    """The cells of all runs; what each run was and found is added to ``told``."""
    jvm.short_lived()  # made, where it has to be, before any driver is waited for
    todo = [(name, seed, planned) for seed in seeds for name in names for planned in plans(TARGETS[name], seed, kinds)]
    servers = [kind for kind in SERVERS if any(kind in TARGETS[name].servers for name in names)]
    cells: list[Cell] = []
    with bench(servers, proxied=bool(servers)) as where:
        for number, (name, seed, planned) in enumerate(todo, start=1):
            say(f"run {number}/{len(todo)}: {name}, seed {seed}, {len(planned)} strikes")
            began = time.monotonic()
            found = _campaign(TARGETS[name], seed, planned, where)
            judged, why = _cells(TARGETS[name], planned, found)
            cells += judged
            record = {"target": name, "seed": seed, **_about(planned, found), **({"contradiction": why} if why else {})}
            told.append(record)
            wrong = [f"{cell.job}, {cell.fault}: {cell.verdict}" for cell in judged if cell.verdict != "clean"]
            say(
                f"  {time.monotonic() - began:.0f} s, {found.verdict.value}; not clean: {'; '.join(wrong) or 'nothing'}"
            )
    return cells


def _campaign(target: Target, seed: int, planned: Sequence[Planned], where: Bench) -> Struck:
    plan = Plan(
        target.named,
        readers=tuple(target.readers),
        source=target.source,
        workload=target.workload,
        seed=seed,
        strikes=len(planned),
    )
    with where.round() as folder:
        target.before()
        menu = AsPlanned(planned)
        links = {name: where.links[name] for name in target.servers}
        return Campaign(plan, folder, _tell, menu=menu, servers=where.servers, links=links).run()


def _tell(text: str) -> None:
    for line in text.splitlines()[:1]:
        say(f"    {line}")


def _cells(target: Target, planned: Sequence[Planned], found: Struck) -> tuple[list[Cell], str]:
    """The cells of one run; where its counts and verdicts differ, cells that say nothing, and why."""
    judged = judged_of(planned, found)
    try:
        return judged.cells(target.outputs), ""
    except Contradiction as error:
        say(f"  CONTRADICTION: {error}")
        silent = replace(judged, run=replace(judged.run, proves_nothing=str(error)), findings={})
        return silent.cells(target.outputs), str(error)


def judged_of(planned: Sequence[Planned], found: Struck) -> Judged:
    """A fault of one server concerns the outputs there, and those of no server that was struck."""
    by_epoch = {one.strike.epoch: one for one in planned}

    def concerns(epoch: int, output: str) -> bool:
        victim = by_epoch[epoch].strike.victim
        return victim not in SERVERS or victim == output

    return Judged(
        found.run,
        found.findings,
        {epoch: one.kind for epoch, one in by_epoch.items()},
        [strike.epoch for strike in found.struck],
        concerns,
    )


def _about(planned: Sequence[Planned], found: Struck) -> dict[str, object]:
    struck = set(found.struck)
    return {
        "verdict": found.verdict.value,
        "proves nothing": found.run.proves_nothing[:LIMIT],
        "violated": {n: f.why[:LIMIT] for n, f in found.findings.items() if f.verdict is Verdict.FALSE},
        "strikes": [{"fault": one.kind, "strike": str(one.strike), "struck": one.strike in struck} for one in planned],
    }


# --- what it costs ----------------------------------------------------------------------------------


def _costs(jobs: Sequence[str], rows: int, rounds: int) -> tuple[list[Measure], list[Ratio]]:
    """Seconds of an epoch of each job, and their ratio over the bare one; the second table of a pipeline has none."""
    with World() as world:
        files = source(world.spark, world.folder, [SMALL, rows])
        made = {name: job for name, job in Costs(world, files).jobs().items() if name in (BARE, *jobs)}
        case: Case = {"rows": rows}
        taken = turns(made, rounds, case, "s")
    return taken, [ratio(taken, job, BARE, "s") for job in made if job != BARE]


class Costs:
    """The jobs of the table, without the chaos kit; a job answers with the seconds of its second epoch."""

    def __init__(self, world: World, files: Any) -> None:
        self._world, self._files = world, files
        self._schema = world.spark.read.parquet(str(files)).schema

    def jobs(self) -> Mapping[str, Job]:
        return {BARE: lambda: self._epoch(bare), **self._ours(), **self._peers()}

    def _ours(self) -> Mapping[str, Job]:
        key: Any = {"key": "id"}
        key_of_kafka = {"kafka": {"tombstones": True}}
        made: Mapping[str, Callable[[], Write]] = {
            "postgres": lambda: self._pipeline("postgres"),
            "kafka": lambda: self._pipeline("kafka"),
            "delta": lambda: self._pipeline("delta"),
            "postgres, idempotent": lambda: self._pipeline("postgres", mode="idempotent"),
            "kafka, idempotent": lambda: self._pipeline("kafka", mode="idempotent"),
            "delta, idempotent": lambda: self._pipeline("delta", mode="idempotent"),
            "postgres, upsert": lambda: self._pipeline("postgres", postgres={"mode": Upsert(**key)}),
            "kafka, tombstones": lambda: self._pipeline("kafka", **key_of_kafka),
            "delta, merge": lambda: self._pipeline("delta", delta={"mode": Merge(**key)}),
            "postgres, plain table": lambda: self._pipeline("postgres", postgres={"mode": Plain()}),
            "kafka, two slots": lambda: self._pipeline("kafka", kafka={"slots": 2}),
            "delta, overwrite": lambda: self._pipeline("delta", delta={"mode": Overwrite()}),
        }
        return {f"{OURS} {name}": lambda make=make: self._epoch(make()) for name, make in made.items()}  # type: ignore[misc]

    def _pipeline(self, kind: str, *, mode: str = "two-phase", **options: Mapping[str, object]) -> Write:
        return ours.pipeline(self._world, self._schema, kind, mode=mode, **options)

    def _peers(self) -> Mapping[str, Job]:
        world = self._world
        bootstrap, folder = world.kafka.bootstrap, lambda: str(world.folder / new_name("delta"))
        rewritten = {"reWriteBatchedInserts": "true"}
        return {
            "spark jdbc": lambda: self._into_table(lambda table: postgres.jdbc(world.jdbc(), table)),
            "spark jdbc, rewritten batches": lambda: self._into_table(
                lambda table: postgres.jdbc(world.jdbc(**rewritten), table)
            ),
            "psycopg COPY": lambda: self._into_table(lambda table: postgres.copy(world.dsn, table)),
            "spark kafka": lambda: self._epoch(kafka.spark(bootstrap, world.topic())),
            "confluent-kafka, no transaction": lambda: self._epoch(kafka.confluent(bootstrap, world.topic())),
            "delta append": lambda: self._epoch(delta.spark(folder())),
            "delta append, txnAppId": lambda: self._epoch(delta.spark(folder(), app="bench")),
            "delta-rs": lambda: self._epoch(delta.delta_rs(folder())),
        }

    def _epoch(self, write: Write) -> float:
        return self._world.epochs(self._files, write)[-1]

    def _into_table(self, peer: Callable[[str], Write]) -> float:
        table = new_name("peer")
        postgres.create(self._world.dsn, table)
        seconds = self._epoch(peer(table))
        postgres.drop(self._world.dsn, table)
        return seconds


def bare(df: DataFrame, _: int) -> None:
    """Evaluates the rows and writes none."""
    df.write.format("noop").mode("overwrite").save()
