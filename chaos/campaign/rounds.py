"""Rounds of campaigns: one round against the user's target, or several rounds in turn against our own pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from epochal.chaos.campaign import menus, own
from epochal.chaos.campaign.bench import Bench, bench
from epochal.chaos.campaign.campaign import Campaign
from epochal.chaos.campaign.plan import IN_ONE_PROCESS, MASTER, Plan, Result
from epochal.chaos.job import jvm, workloads
from epochal.chaos.job.targets import Usage
from epochal.chaos.observe.checker import Verdict
from epochal.chaos.strike.strikes import SERVERS, InTurn, Menu, Nemesis

Tell = Callable[[str], None]

CLUSTER = "local-cluster[2,1,1024]"


@dataclass(frozen=True)
class Round:
    """One campaign of several: its workload, kind of cluster, faults and target."""

    workload: str
    master: str
    menu: Nemesis
    strikes: int
    target: str = own.TARGET


def our_rounds(seed: int) -> Sequence[Round]:
    """Return the rotation of rounds against our own pipelines.  It begins at a place that depends on ``seed``."""
    sinks, servers = Menu(menus.our_menu(own.OWN["pipeline"].moments)), Menu(menus.SERVER_MENU)
    around = Menu(menus.checkpoint_menu(own.LOSING))
    local = MASTER
    rotation = (
        Round("rows", local, sinks, 8),
        Round("state", local, InTurn((servers, sinks)), 8),
        Round("rows", CLUSTER, Menu(menus.EXECUTOR_MENU), len(menus.EXECUTOR_MENU)),
        _of("upsert", 10),
        Round("window", local, sinks, 8),
        Round("map", local, around, len(around.strikes)),
        _of("idempotent", 10),
        Round("join", local, sinks, 6),
        Round("dedup", local, InTurn((sinks, servers)), 6),
        _of("plain", 8),
        Round("empty", local, sinks, 6),
        _of("overwrite", 8),
        Round("skewed", local, servers, len(menus.SERVER_MENU)),
        Round("huge", local, sinks, 6),
    )
    first = seed % len(rotation)
    return rotation[first:] + rotation[:first]


def _of(name: str, strikes: int) -> Round:
    """A round of kills and lost rows in one of our own pipelines."""
    one = own.OWN[name]
    menu = Menu(menus.our_menu(one.moments) + menus.losses(one.moments.losing))
    return Round(one.workload, MASTER, menu, strikes, own.target(name))


def play(
    plan: Plan,
    tell: Tell,
    *,
    menu: Nemesis | None = None,
    servers: Sequence[str] = (),
) -> list[Result]:
    """Play the plan: one round for a target of the user's, else as many rounds as there is time for, at least one.

    Raises Usage for options that do not fit together.
    """
    workloads.make_workload(plan.workload, 0)  # an unknown name must be refused before servers are started
    ours = own.named(plan.target)
    if ours is not None:
        if servers:
            raise Usage("--server is only for your own --target: our pipelines start the servers that they need")
        if plan.readers or plan.source:
            raise Usage("--reader and --source are only for your own --target")
    elif plan.seconds and plan.tier == IN_ONE_PROCESS:
        raise Usage("--minutes is only for tier 4: tier 3 runs each of its strikes once")
    jvm.short_lived()  # if something has to be built, this must happen before anybody waits for a driver
    if ours is not None:
        return _ourselves(plan, tell, menu)
    with bench(servers) as where, where.round() as folder:
        return [Campaign(plan, folder, tell, menu=menu, servers=where.servers).run()]


def _ourselves(plan: Plan, tell: Tell, menu: Nemesis | None) -> list[Result]:
    until = time.monotonic() + plan.seconds
    results: list[Result] = []
    ours = own.named(plan.target)
    servers = SERVERS if ours is None or not plan.target else ours.servers  # the rotation needs all servers
    with bench(servers, proxied=bool(servers)) as where:
        while not results or time.monotonic() < until:
            seed = plan.seed + len(results)
            this = _next(plan, menu, seed)
            name = this.target.rpartition(":")[2]
            tell(f"round {len(results) + 1}, seed {seed}: {name}, {this.workload} on {this.master}")
            results.append(_round(replace(plan, target=this.target, seed=seed, seconds=0.0), this, where, tell))
            tell(f"round {len(results)}: {_word(results[-1])}")
            if plan.stop_at_first and results[-1].verdict is Verdict.FALSE:
                break
    return results


def _next(plan: Plan, menu: Nemesis | None, seed: int) -> Round:
    """The next round: the requested menu, else all errors of tier 3, else the requested target, else the rotation."""
    target = plan.target or own.TARGET
    if menu is not None:
        return Round(plan.workload, plan.master, menu, plan.strikes, target)
    if plan.tier == IN_ONE_PROCESS:
        errors = menus.our_errors(own.OWN[target.rpartition(":")[2]].moments)
        return Round(plan.workload, plan.master, Menu(errors), len(errors), target)
    if plan.target:
        this = _of(target.rpartition(":")[2], plan.strikes)
        return replace(this, workload=plan.workload, master=plan.master)
    return our_rounds(seed)[0]


def _round(plan: Plan, this: Round, where: Bench, tell: Tell) -> Result:
    chosen = replace(
        plan,
        workload=this.workload,
        master=this.master,
        strikes=this.strikes,
        all_must_strike=plan.all_must_strike or plan.tier == IN_ONE_PROCESS,
    )
    with where.round() as folder:
        return Campaign(chosen, folder, tell, menu=this.menu, servers=where.servers, links=where.links).run()


def _word(result: Result) -> str:
    struck = f"{len(result.struck)} strikes, {len(result.unreached)} not reached"
    why = result.run.proves_nothing
    return f"{result.verdict.value}, {struck}" + (f": {why}" if why else "")
