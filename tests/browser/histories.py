"""Histories made by hand, with times, faults and several sinks: what a report is tried on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochal.chaos.observe.checker import Finding
from epochal.chaos.observe.history import (
    Accepted,
    AtRest,
    Changed,
    Decided,
    Ended,
    Evaluated,
    Event,
    Fault,
    Fed,
    History,
    Placed,
    Prepared,
    Read,
    Row,
    Started,
    State,
    TookOver,
)
from epochal.chaos.observe.run import Run
from epochal.chaos.report import Round
from epochal.coordinator.model.failpoints import Point

SINKS = ("delta", "kafka", "postgres")
KILLS = ("kill", "crash", "raise")
LASTING = ("pause", "cut", "latency", "half-open")
VICTIMS = {"kill": "driver", "crash": "postgres", "raise": "worker", "pause": "driver", "cut": "kafka"}
POINTS = tuple(point.value for point in Point)

ABOUT: Mapping[str, Any] = {
    "target": "epochal.chaos.job.targets:three_sinks",
    "command": "epochal chaos run --target epochal.chaos.job.targets:three_sinks --seed 20261121 --minutes 60",
    "seed": 20261121,
    "started_at": "2026-11-21T17:30:00+00:00",
    "versions": {"epochal": "0.1.0", "spark": "4.2.0", "python": "3.11.7", "postgres": "18", "kafka": "4.3.1"},
    "machine": {"cores": 2, "memory": "24 GiB"},
    "workloads": ["unique rows", "windowed aggregation"],
}


@dataclass
class EventPublisher:
    """A run that is told event by event."""

    sinks: Sequence[str]
    rng: random.Random
    now: float = 100.0
    events: list[Event] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    content: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    expected: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    starts: int = 0

    def __post_init__(self) -> None:
        self.content = dict.fromkeys(self.sinks, ())

    def tell(self, *events: Event, wait: float = 0.02) -> None:
        for event in events:
            self.now += wait * self.rng.uniform(0.5, 1.5)
            self.events.append(event)
            self.times.append(round(self.now, 6))

    @property
    def driver(self) -> str:
        return f"d{self.starts}"

    @property
    def actor(self) -> str:
        return f"g{self.starts}/{self.starts * 7}"

    def start(self) -> None:
        self.starts += 1
        self.tell(Started(self.driver), wait=3)
        self.tell(*(TookOver(where, self.actor) for where in ("log", *self.sinks)), Accepted(self.actor), wait=0.1)

    def die(self, fault: Fault) -> None:
        self.tell(fault, Ended(self.driver, "killed"), wait=0.1)
        self.start()

    def read(self) -> None:
        self.tell(Read(dict(self.content)))

    def epoch(self, number: int, rows: tuple[Row, ...], faults: Sequence[Fault]) -> None:
        """Prepared, decided and shown by one sink after the other, with faults in between."""
        self.expected[number] = tuple(row._replace(attempt=0) for row in rows)
        self.tell(Fed(tuple(row.key for row in rows)))
        self.tell(Evaluated(number, rows[0].attempt), Prepared(number), wait=0.4)
        self.read()
        self.tell(Decided(number, 1000 + number, self.actor), wait=0.1)
        for place, sink in enumerate(self.sinks):
            for fault in [f for at, f in enumerate(faults) if at % len(self.sinks) == place]:
                self.strike(fault)
            self.tell(Changed(sink, self.actor, shown=1), wait=0.1)
            self.content[sink] = (*self.content.get(sink, ()), *rows)
            self.read()

    def strike(self, fault: Fault) -> None:
        """A kill of the driver is followed by a start; what lasts is undone after a while."""
        if fault.kind in KILLS and fault.victim == "driver":
            self.die(fault)
            return
        self.tell(fault, wait=0.1)
        if fault.kind in LASTING:
            healed = Fault(fault.kind, fault.victim, sink=fault.sink, healed=True)
            self.tell(healed, wait=1.5)

    def end(self, *, asked: bool = True) -> None:
        for number in self.expected:
            self.tell(
                Placed(number, "offsets", f"hash {number}"), Placed(number, "log", f"hash {number}", 1000 + number)
            )
            self.tell(*(Placed(number, sink, decision=1000 + number) for sink in self.sinks), wait=0)
            self.tell(State(number, (f"count {number}",)), State(number, (f"count {number}",), reference=True), wait=0)
        if asked:
            self.tell(*(AtRest(where) for where in (*self.sinks, "stage")))
        self.tell(Ended(self.driver, "finished"), wait=0.5)

    def run(self) -> Run:
        return Run(History(self.events, times=self.times), tuple(self.sinks), self.expected)


def random_fault(
    rng: random.Random, sinks: Sequence[str], epoch: int, kinds: Sequence[str] = (*KILLS, *LASTING)
) -> Fault:
    """One of many."""
    kind = rng.choice(kinds)
    point = rng.choice(POINTS)
    at_sink = "sink" in point or point in ("before-publish", "after-publish", "in-write", "before-vote")
    sink = rng.choice(list(sinks)) if at_sink or kind in ("cut", "latency", "half-open") else ""
    return Fault(kind, VICTIMS.get(kind, sink or "driver"), point, sink, epoch)


def told(
    seed: int,
    *,
    sinks: Sequence[str] = SINKS,
    epochs: int = 12,
    rows: int = 5,
    faults: int = 5,
    kinds: Sequence[str] = (*KILLS, *LASTING),
) -> EventPublisher:
    """A run without a mistake, up to its end."""
    rng = random.Random(seed)
    telling = EventPublisher(sinks, rng)
    telling.start()
    struck = [rng.randrange(epochs - 1) for _ in range(faults)]
    for number in range(epochs):
        evaluated = tuple(Row(number, number * rows + n, 100 + number, n) for n in range(rows))
        telling.epoch(number, evaluated, [random_fault(rng, sinks, number, kinds) for at in struck if at == number])
    return telling


def valid(seed: int = 1, **options: Any) -> Round:
    """Every invariant holds."""
    telling = told(seed, **options)
    telling.end()
    return Round.judged(telling.run(), {"seed": seed})


def invalid(seed: int = 2, *, sink: str = "postgres", **options: Any) -> Round:
    """A sink shows an epoch twice after a kill, and loses a row of another."""
    options.setdefault("sinks", (*SINKS,) if sink in SINKS else (sink, *SINKS))
    telling = told(seed, **options)
    again = tuple(row for row in telling.content[sink] if row.epoch == 3)
    telling.die(Fault("kill", "driver", "after-publish", sink, 3))
    telling.content[sink] = (*telling.content[sink], *again)
    telling.read()
    telling.content[sink] = tuple(row for row in telling.content[sink] if row.key != 7)
    telling.read()
    telling.epoch(99, (Row(99, 990, 199, 0),), [])
    telling.end()
    return Round.judged(telling.run(), {"seed": seed})


def unknown(seed: int = 3, **options: Any) -> Round:
    """Nothing is wrong, and nobody asked the servers what is left."""
    telling = told(seed, **options)
    telling.end(asked=False)
    return Round.judged(telling.run(), {"seed": seed})


def campaign(rounds: int = 40, **options: Any) -> list[Round]:
    """Many rounds, all valid, ten faults each; long names of sinks and of kinds among them."""
    options = {"epochs": 25, "rows": 40, "faults": 10, **options}
    return [valid(100 + number, **options) for number in range(rounds)]


LONG_SINKS = (
    "lake.eu-central-1.curated.flights_by_tailnumber_and_hour_v2",
    "orders",
    "warehouse_reporting_db.public.a_table_whose_name_nobody_ever_thought_of_shortening",
    "Überweisungen-täglich",
    "αβγδ 中文表格名称",
    "x",
)
LONG_KINDS = (*KILLS, *LASTING, "disk full (tmpfs)", "clock jumps back by an hour, then forward again by two")


def wide() -> Round:
    """Sinks with long names, many kinds of faults, 40 epochs, every point."""
    return valid(7, sinks=LONG_SINKS, epochs=40, faults=60, kinds=LONG_KINDS)


def bad_findings(round_: Round, findings: Mapping[str, Finding]) -> Round:
    """The same run, with other verdicts."""
    return Round(round_.run, {**round_.findings, **findings}, round_.about)
