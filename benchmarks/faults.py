"""The kinds of faults, and the moments at which each kind can strike a target.

All targets are struck at moments that every ``foreachBatch`` function has.  Epochal's pipelines are also struck at
steps of their own protocol.  There the lost answer is that of the commit itself, not that of an earlier statement.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.targets import Target
from epochal.chaos.campaign.campaign import CLEAN_EPOCHS
from epochal.chaos.campaign.menus import APPLYING_POINTS, DECIDING_POINTS, our_menu
from epochal.chaos.strike.strikes import SERVERS, Strike
from epochal.coordinator.model.failpoints import Point

AT_ROWS = (2, 4, 6, 8)
"""The numbers of rows at which a task is struck.  A task gets ten rows."""
Moments = Callable[[Target], Sequence[Sequence[Strike]]]
"""Returns groups of strikes.  For each seed, one strike of each group strikes; the seeds take them in turn."""


def _at_rows(action: str, victim: str) -> list[Strike]:
    return [Strike(action, victim, Point.AT_ROW, 0, nth=row) for row in AT_ROWS]


def _everybody(*strikes: Strike) -> Moments:
    return lambda _: [strikes]


def _in_the_protocol(of: Target) -> list[list[Strike]]:
    if of.moments is None:
        return []
    return [[s for s in our_menu(of.moments) if (s.action, s.victim) == ("kill", "driver")]]


def _zombies(of: Target) -> list[list[Strike]]:
    strikes = [Strike("pause", "driver", Point.AFTER_JOB, 0), *_at_rows("pause", "driver")[1:2]]
    if of.moments is not None:
        strikes += [s for s in our_menu(of.moments) if s.action == "pause"]
    return [strikes]


def _at_the_server(action: str) -> Moments:
    """One group per server.  Our pipelines are struck in the middle of the commit, or after the decision."""

    def moments(of: Target) -> list[list[Strike]]:
        return [_of_server(of, action, server) for server in of.servers]

    return moments


def _of_server(of: Target, action: str, server: str) -> list[Strike]:
    if of.moments is None:
        return _at_rows(action, server)
    _, decided = APPLYING_POINTS if of.moments.idempotent else DECIDING_POINTS
    strikes = [Strike(action, server, Point.BEFORE_PUBLISH, 0, server)]
    return strikes if action == "lose-answer" else [*strikes, Strike(action, server, decided, 0)]


@dataclass(frozen=True)
class Kind:
    """A kind of fault.  ``alone``: its effects disturb later epochs, so nothing else strikes in its runs."""

    about: str
    moments: Moments
    alone: bool = False


KINDS: Mapping[str, Kind] = {
    "killed writing": Kind("driver killed while its tasks write", lambda _: [_at_rows("kill", "driver")]),
    "killed after a job": Kind(
        "driver killed when a job of its own has ended", _everybody(Strike("kill", "driver", Point.AFTER_JOB, 0))
    ),
    "killed in protocol": Kind("driver killed at a step of Epochal's protocol", _in_the_protocol),
    "no commits/N": Kind(
        "everything is written, then a restart on a checkpoint without commits/N",
        _everybody(Strike("replay", "checkpoint", Point.AFTER_RETURN, 0)),
    ),
    "worker killed": Kind("Python worker of a task killed, Spark tries again", lambda _: [_at_rows("kill", "worker")]),
    "zombie": Kind("driver halted, overtaken by another, and woken up", _zombies),
    "server crashed": Kind("server killed and started again a second later", _at_the_server("crash")),
    "connection cut": Kind("no way to the server for a second", _at_the_server("cut")),
    "answer lost": Kind("the server does what it is told, its answer is lost", _at_the_server("lose-answer")),
    "checkpoint lost": Kind(
        "checkpoint deleted, and the source keeps its newest input alone",
        _everybody(Strike("delete", "checkpoint", Point.AFTER_RETURN, 0)),
        alone=True,
    ),
}


@dataclass(frozen=True)
class Planned:
    """One strike of a run, and its kind."""

    kind: str
    strike: Strike


def plans(of: Target, seed: int, kinds: Sequence[str]) -> list[list[Planned]]:
    """Return the runs of one seed.  Kinds that can follow each other share one run; each other kind has its own run.

    The seed decides the moment of each kind, and the order.  Strikes on servers come last, because a query that hangs
    after one ends the run.
    """
    together: list[Planned] = []
    runs: list[list[Planned]] = []
    for kind in kinds:
        drawn = [Planned(kind, group[seed % len(group)]) for group in KINDS[kind].moments(of) if group]
        if drawn and KINDS[kind].alone:
            runs.append(drawn)
        else:
            together += drawn
    random.Random(seed).shuffle(together)
    together.sort(key=lambda planned: planned.strike.victim in SERVERS)
    return [[_in_epoch(number, one) for number, one in enumerate(run)] for run in [together, *runs] if run]


def _in_epoch(number: int, one: Planned) -> Planned:
    return replace(one, strike=replace(one.strike, epoch=CLEAN_EPOCHS + number))


@dataclass(frozen=True)
class AsPlanned:
    """A nemesis that plans exactly these strikes."""

    planned: Sequence[Planned]

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]:  # noqa: ARG002
        return [one.strike for one in self.planned if one.strike.epoch in epochs]
