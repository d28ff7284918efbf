"""Rounds of campaigns: one against a target of the user's, or many, in turn, against our own three sinks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from epochal.chaos import own
from epochal.chaos.bench import SERVERS, Bench, bench
from epochal.chaos.campaign import IN_ONE_PROCESS, Campaign, Plan, Result, our_errors, our_menu
from epochal.chaos.checker import Verdict
from epochal.chaos.failpoints import Point
from epochal.chaos.roles import InTurn, Menu, Nemesis, Strike
from epochal.chaos.targets import Usage

Tell = Callable[[str], None]

SERVER_MENU = (
    Strike("crash", "postgres", Point.BEFORE_PUBLISH, 0, "postgres"),
    Strike("crash", "kafka", Point.BEFORE_PUBLISH, 0, "kafka"),
    Strike("crash", "postgres", Point.AFTER_DECIDE, 0),
    Strike("crash", "kafka", Point.AFTER_DECIDE, 0),
    Strike("cut", "postgres", Point.BEFORE_PUBLISH, 0, "postgres"),
    Strike("cut", "kafka", Point.BEFORE_PUBLISH, 0, "kafka"),
    Strike("lose-answer", "postgres", Point.BEFORE_PUBLISH, 0, "postgres"),
    Strike("latency", "postgres", Point.BEFORE_DECIDE, 0),
    Strike("latency", "kafka", Point.AFTER_DECIDE, 0),
)
"""Crashes of the servers, and faults of the network before them."""

EXECUTOR_MENU = (
    Strike("kill", "executor", Point.IN_WRITE, 0, "postgres"),
    Strike("kill", "executor", Point.IN_WRITE, 0, "kafka"),
    Strike("kill", "worker", Point.IN_WRITE, 0, "postgres"),
    Strike("kill", "worker", Point.IN_WRITE, 0, "kafka"),
)
CLUSTER = "local-cluster[2,1,1024]"


@dataclass(frozen=True)
class Round:
    """One campaign of several: what is fed, on which kind of cluster, under which faults."""

    workload: str
    master: str
    menu: Nemesis
    strikes: int


def our_rounds(seed: int) -> Sequence[Round]:
    """The rotation against ourselves; ``seed`` says where it begins."""
    sinks = our_menu(own.SINKS)
    local = "local[2,4]"
    rotation = (
        Round("rows", local, Menu(sinks), 8),
        Round("state", local, InTurn((Menu(SERVER_MENU), Menu(sinks))), 8),
        Round("rows", CLUSTER, Menu(EXECUTOR_MENU), 4),
        Round("window", local, Menu(sinks), 8),
        Round("join", local, Menu(sinks), 6),
        Round("dedup", local, InTurn((Menu(sinks), Menu(SERVER_MENU))), 6),
        Round("empty", local, Menu(sinks), 6),
        Round("skewed", local, Menu(SERVER_MENU), 6),
        Round("huge", local, Menu(sinks), 6),
        Round("map", local, Menu(sinks), 6),
    )
    first = seed % len(rotation)
    return rotation[first:] + rotation[:first]


def play(
    plan: Plan,
    tell: Tell,
    *,
    menu: Nemesis | None = None,
    servers: Sequence[str] = (),
) -> list[Result]:
    """The results, one for a target of the user's; against ourselves as many rounds as there is time for."""
    if not plan.target:
        return _ourselves(plan, tell, menu)
    with bench(servers) as where, where.round() as folder:
        return [Campaign(plan, folder, tell, menu=menu, servers=where.servers).run()]


def _ourselves(plan: Plan, tell: Tell, menu: Nemesis | None) -> list[Result]:
    if plan.readers or plan.rows:
        raise Usage("--reader and --source belong to a --target of your own")
    until = time.monotonic() + plan.seconds
    results: list[Result] = []
    with bench(SERVERS, proxied=True) as where:
        while not results or time.monotonic() < until:
            seed = plan.seed + len(results)
            this = _next(plan, menu, seed)
            tell(f"round {len(results) + 1}, seed {seed}: {this.workload} on {this.master}")
            results.append(_round(replace(plan, target=own.TARGET, seed=seed, seconds=0.0), this, where, tell))
            tell(f"round {len(results)}: {_word(results[-1])}")
            if plan.stop_at_first and results[-1].verdict is Verdict.FALSE:
                break
    return results


def _next(plan: Plan, menu: Nemesis | None, seed: int) -> Round:
    """What was asked for, else for tier 3 all its cells, else whose turn it is."""
    if menu is not None:
        return Round(plan.workload, plan.master, menu, plan.strikes)
    if plan.tier == IN_ONE_PROCESS:
        errors = our_errors(own.SINKS)
        return Round(plan.workload, plan.master, Menu(errors), len(errors))
    return our_rounds(seed)[0]


def _round(plan: Plan, this: Round, where: Bench, tell: Tell) -> Result:
    chosen = replace(plan, workload=this.workload, master=this.master, strikes=this.strikes)
    with where.round() as folder:
        return Campaign(chosen, folder, tell, menu=this.menu, servers=where.servers, links=where.links).run()


def _word(result: Result) -> str:
    struck = f"{len(result.struck)} strikes, {len(result.unreached)} not reached"
    return f"{result.verdict.value}, {struck}" + (f": {result.why_unknown}" if result.why_unknown else "")
