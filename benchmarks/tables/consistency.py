"""What faults do to each sink, mode and peer (lost, duplicated, torn, out of order), and what each of them costs.

Each run is a campaign of the chaos kit (tier 4, real processes and servers).  It has three epochs without a fault, one
epoch per strike, and one more epoch, while readers watch from outside.  A cell is one kind of fault
(:data:`benchmarks.faults.KINDS`) on one output, over all seeds; :mod:`benchmarks.cells` counts what readers saw.  A
strike that was not seen to strike does not count.  A cell without any strike is *not struck*, and never clean.

The cost is that of an epoch of :data:`ROWS` rows without a fault, compared with a ``foreachBatch`` that evaluates the
same rows and writes nothing.  The jobs take turns in one Spark session with all compilers, because the struck drivers
are tuned for a fast start and say nothing about speed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks import names, ours
from benchmarks.cells import ALARMS, IN_PARTS, Cell, Contradiction, Judged, together
from benchmarks.faults import KINDS, AsPlanned, Planned, plans
from benchmarks.measuring import Case, Job, Measure, Ratio, ratio, say, turns
from benchmarks.peers.bare import evaluated
from benchmarks.results import Result
from benchmarks.rows import SMALL, source
from benchmarks.tables.throughput import NARROW, Throughput
from benchmarks.targets import TARGETS, Target
from benchmarks.world import World
from epochal.chaos.campaign.bench import Bench, bench
from epochal.chaos.campaign.campaign import Campaign
from epochal.chaos.campaign.plan import Plan
from epochal.chaos.campaign.plan import Result as Struck
from epochal.chaos.job import jvm
from epochal.chaos.observe.checker import Verdict
from epochal.chaos.strike.strikes import SERVERS
from epochal.sinks.delta import Merge, Overwrite
from epochal.sinks.postgres import Plain, Upsert

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.tables import Options
    from benchmarks.world import Write

SEEDS = (1, 2)
QUICK_SEEDS = (1,)
QUICK_TARGETS = ("pipeline", "delta_append")
QUICK_KINDS = ("no commits/N", "zombie")
BUDGET_S = 50 * 60.0
"""Limit for all runs.  No run begins later, and the result names the runs that were left out."""
ROWS = 100_000
QUICK_ROWS = 10_000
BARE_RECORDS = f"{names.BARE}, of key and value"
"""The bare job for Kafka's jobs, which get rows of key and value."""

ONLY = "EPOCHAL_CONSISTENCY_TARGETS"
"""Environment variable with names of :data:`benchmarks.targets.TARGETS`, separated by commas.  Without it: all."""
FAULTS = "EPOCHAL_CONSISTENCY_FAULTS"
"""Environment variable with kinds of faults, separated by commas.  Without it: all."""
LIMIT = 300  # characters of a reason


def run(options: Options) -> Result:
    result = Result("consistency", options.rounds, options.quick)
    targets = _asked(ONLY, TARGETS, QUICK_TARGETS if options.quick else tuple(TARGETS))
    kinds = _asked(FAULTS, KINDS, QUICK_KINDS if options.quick else tuple(KINDS))
    seeds = QUICK_SEEDS if options.quick else SEEDS
    told: list[dict[str, object]] = []
    result.cells = together(_strike(targets, kinds, seeds, told))
    asked_for = [f"{name}={os.environ[name]}" for name in (ONLY, FAULTS) if os.environ.get(name)]
    result.partial = "; ".join([*asked_for, *_never_run(told)])
    rows = QUICK_ROWS if options.quick else ROWS
    jobs = list(dict.fromkeys(cell.job for cell in result.cells))
    measures, ratios = _costs(jobs, rows, 1 if options.quick else options.rounds)
    result.add(measures, *ratios)
    result.facts = {
        "seeds": list(seeds),
        "faults": {name: KINDS[name].about for name in kinds},
        "runs": told,
        ALARMS: [f"{c.job}, {c.fault}: {c.verdict}" for c in result.cells if _alarms(c)],
    }
    return result


def _never_run(told: Sequence[Mapping[str, object]]) -> list[str]:
    """Name the targets without any run.

    A target whose run with a later seed was left out is in the table, with fewer strikes in its cells.
    """
    made = {each["target"] for each in told if "left out" not in each}
    return [f"no run of {name}" for name in dict.fromkeys(each["target"] for each in told) if name not in made]


def _asked(variable: str, known: Mapping[str, object], default: Sequence[str]) -> Sequence[str]:
    """The names in the environment variable, else the default.  An unknown name ends the table before it begins."""
    words = [word.strip() for word in os.environ.get(variable, "").split(",") if word.strip()]
    if unknown := [word for word in words if word not in known]:
        raise SystemExit(f"{variable}: {unknown[0]!r} is none of {', '.join(known)}")
    return words or default


def _alarms(cell: Cell) -> bool:
    """Whether one of our sinks broke a promise, or was not shown to keep it."""
    promised = replace(cell, torn=0) if cell.job in IN_PARTS else cell
    return cell.job.startswith(names.OURS) and promised.verdict != "clean"


# --- striking ---------------------------------------------------------------------------------------


def _strike(
    targets: Sequence[str], kinds: Sequence[str], seeds: Sequence[int], told: list[dict[str, object]]
) -> list[Cell]:
    """Make all runs; return their cells.  A record of each run is added to ``told``."""
    jvm.short_lived()  # if something has to be built, this must happen before anybody waits for a driver
    todo = _runs(targets, kinds, seeds)
    servers = [kind for kind in SERVERS if any(kind in TARGETS[name].servers for name in targets)]
    cells: list[Cell] = []
    until = time.monotonic() + BUDGET_S
    with bench(servers, proxied=bool(servers)) as where:
        for number, (name, seed, planned) in enumerate(todo, start=1):
            if time.monotonic() > until:
                say(f"{len(todo) - number + 1} of {len(todo)} runs left out: {BUDGET_S / 60:g} minutes are over")
                told += [{"target": name, "seed": seed, "left out": True} for name, seed, _ in todo[number - 1 :]]
                break
            say(f"run {number}/{len(todo)}: {name}, seed {seed}, {len(planned)} strikes")
            began = time.monotonic()
            found = _campaign(TARGETS[name], seed, planned, where)
            judged, why = _cells(TARGETS[name], planned, found)
            cells += judged
            record = {"target": name, "seed": seed, **_about(planned, found), **({"contradiction": why} if why else {})}
            told.append(record)
            wrong = [f"{cell.job}, {cell.fault}: {cell.verdict}" for cell in judged if cell.verdict != "clean"]
            unsure = "".join(f"; cannot tell {name}: {why}" for name, why in _why(found, Verdict.UNKNOWN).items())
            took = f"{time.monotonic() - began:.0f} s"
            say(f"  {took}, {found.verdict.value}; not clean: {'; '.join(wrong) or 'nothing'}{unsure}")
    return cells


def _runs(
    targets: Sequence[str], kinds: Sequence[str], seeds: Sequence[int]
) -> list[tuple[str, int, Sequence[Planned]]]:
    """(target, seed, strikes): all targets for one seed, then for the next.

    A kind that strikes alone is only in the runs of the first seed, as it has only one moment.
    """
    again = [kind for kind in kinds if not KINDS[kind].alone]
    return [
        (name, seed, planned)
        for seed in seeds
        for name in targets
        for planned in plans(TARGETS[name], seed, kinds if seed == seeds[0] else again)
    ]


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
    """The cells of one run.  If counts and verdicts contradict each other: unknown cells, and the contradiction."""
    judged = judged_of(planned, found)
    try:
        return judged.cells(target.outputs), ""
    except Contradiction as error:
        say(f"  CONTRADICTION: {error}")
        silent = replace(judged, run=replace(judged.run, proves_nothing=str(error)), findings={})
        return silent.cells(target.outputs), str(error)


def judged_of(planned: Sequence[Planned], found: Struck) -> Judged:
    """Return the run for counting.  A fault of a server concerns only the output on that server."""
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


def _why(found: Struck, verdict: Verdict) -> dict[str, str]:
    return {name: finding.why[:LIMIT] for name, finding in found.findings.items() if finding.verdict is verdict}


def _about(planned: Sequence[Planned], found: Struck) -> dict[str, object]:
    struck = set(found.struck)
    return {
        "verdict": found.verdict.value,
        "proves nothing": found.run.proves_nothing[:LIMIT],
        "violated": _why(found, Verdict.FALSE),
        "unknown": _why(found, Verdict.UNKNOWN),
        "strikes": [{"fault": one.kind, "strike": str(one.strike), "struck": one.strike in struck} for one in planned],
    }


# --- what it costs ----------------------------------------------------------------------------------


def _costs(jobs: Sequence[str], rows: int, rounds: int) -> tuple[list[Measure], list[Ratio]]:
    """Measure seconds of an epoch of each job, and their ratio to the bare job with the same rows.

    The second table of a pipeline has no cost.
    """
    with World() as world:
        known = {**Throughput(world, rows, NARROW).jobs(), **Modes(world, rows).jobs()}
        asked = {job: known[job] for job in [names.BARE, BARE_RECORDS, *jobs] if job in known}
        case: Case = {"rows": rows}
        taken = turns(asked, rounds, case, "s", after=world.clear)
    over = {job: BARE_RECORDS if "kafka" in job else names.BARE for job in asked if job in jobs}
    return taken, [ratio(taken, job, bare, "s") for job, bare in over.items()]


MODES: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # kind of sink, and arguments of the pipeline
    "postgres, idempotent": ("postgres", {"mode": "idempotent"}),
    "kafka, idempotent": ("kafka", {"mode": "idempotent"}),
    "delta, idempotent": ("delta", {"mode": "idempotent"}),
    "postgres, upsert": ("postgres", {"postgres": {"mode": Upsert(key="id")}}),
    "kafka, tombstones": ("kafka", {"kafka": {"tombstones": True}}),
    "delta, merge": ("delta", {"delta": {"mode": Merge(key="id")}}),
    "postgres, plain table": ("postgres", {"postgres": {"mode": Plain()}}),
    "kafka, two slots": ("kafka", {"kafka": {"slots": 2}}),
    "delta, overwrite": ("delta", {"delta": {"mode": Overwrite()}}),
}


class Modes:
    """The jobs that the throughput table does not have, over its rows.  A job returns seconds."""

    def __init__(self, world: World, rows: int) -> None:
        self._world = world
        self._source = source(world.spark, world.folder, [SMALL, rows], value=NARROW)
        self._records = source(world.spark, world.folder, [SMALL, rows], value=NARROW, wide=False)

    def jobs(self) -> Mapping[str, Job]:
        return {
            names.BARE: lambda: self._epoch(evaluated, self._source),
            BARE_RECORDS: lambda: self._epoch(evaluated, self._records),
            **{
                f"{names.OURS} {name}": lambda kind=kind, how=how: self._ours(kind, how)  # type: ignore[misc]
                for name, (kind, how) in MODES.items()
            },
        }

    def _epoch(self, write: Write, of: Path) -> float:
        return self._world.epochs(of, write)[-1]

    def _ours(self, kind: str, how: Mapping[str, Any]) -> float:
        of = self._records if kind == "kafka" else self._source
        schema = self._world.spark.read.parquet(str(of)).schema
        return self._epoch(ours.pipeline(self._world, schema, kind, **how), of)
