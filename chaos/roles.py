"""The roles of a run, which know nothing of each other.

=========  ==================================================================================
workload   what is fed, and what has to come out of it; knows neither faults nor sinks
reader     what an output holds now, seen from outside (the client)
nemesis    which fault strikes where, from a seed; knows neither rows nor verdicts
history    what happened, in order: :mod:`epochal.chaos.history`
checker    verdicts over a history, and nothing else: :mod:`epochal.chaos.checker`
report     tells people: the terminal, a page, nobody
=========  ==================================================================================

Each is a protocol of a few lines, with one that does nothing, one that puts several together, and one that
checks what another says before anybody relies on it.  Idea: Jepsen's client, generator, nemesis and checker.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from epochal.chaos.checker import Finding, Run
from epochal.chaos.failpoints import Point
from epochal.chaos.history import Ended, Event, Row, Started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Input = Mapping[str, Any]
"""One input as it is fed: at least ``id``, unique over the whole run, and ``epoch``."""

Output = Mapping[str, Sequence[Mapping[str, Any]]]
"""Sink name -> the rows that a reader sees now: at least ``id``, and ``attempt`` where the output keeps it."""


class RoleError(Exception):
    """Somebody did not play their role: the run proves nothing."""


# --- workload ---------------------------------------------------------------------------------------


class Workload(Protocol):
    """What is fed and what has to come out of it."""

    @property
    def name(self) -> str: ...
    @property
    def counted(self) -> bool:
        """Whether an output row stands for as many inputs as its ``n`` says."""
        ...

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        """What is fed as ``epoch``; ids count up from ``first``."""
        ...

    def query(self, stream: DataFrame) -> DataFrame:
        """From the inputs to the columns id, n, without attempt."""
        ...

    def expected(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, tuple[Row, ...]]:
        """Per epoch the rows of a run that never failed, computed without Spark; their attempt is 0."""
        ...

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        """Of these inputs the ids for which the output has to account."""
        ...

    def pending(self, fed: Mapping[int, Sequence[Input]]) -> int:
        """How many inputs a run that never failed still holds in its state, where rows are counted."""
        ...


@runtime_checkable
class ReplacingWorkload(Workload, Protocol):
    """One whose epochs replace or delete rows of earlier ones; ``expected`` are those that each of them writes."""

    def after(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, tuple[Row, ...]]:
        """Per epoch all that is there after it, in a run that never failed; of each key one row."""
        ...


@dataclass(frozen=True)
class NoInput:
    """Feeds nothing, so nothing comes out."""

    name: str = "nothing"
    counted: bool = False

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:  # noqa: ARG002
        return ()

    def query(self, stream: DataFrame) -> DataFrame:
        return stream.selectExpr("id", "0L as n")

    def expected(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, tuple[Row, ...]]:
        return dict.fromkeys(fed, ())

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:  # noqa: ARG002
        return ()

    def pending(self, fed: Mapping[int, Sequence[Input]]) -> int:  # noqa: ARG002
        return 0


@dataclass(frozen=True)
class Alternating:
    """Several workloads' inputs, epoch by epoch in turn, through the query of the first: they must fit it."""

    workloads: Sequence[Workload]

    @property
    def name(self) -> str:
        return "+".join(workload.name for workload in self.workloads)

    @property
    def counted(self) -> bool:
        return self.workloads[0].counted

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        return self.workloads[epoch % len(self.workloads)].inputs(epoch, first)

    def query(self, stream: DataFrame) -> DataFrame:
        return self.workloads[0].query(stream)

    def expected(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, tuple[Row, ...]]:
        return self.workloads[0].expected(fed)

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        return self.workloads[0].accounts(inputs)

    def pending(self, fed: Mapping[int, Sequence[Input]]) -> int:
        return self.workloads[0].pending(fed)


@dataclass(frozen=True)
class CheckedWorkload:
    """Refuses inputs that could be mistaken for others, and expectations about other epochs than were fed."""

    workload: Workload

    @property
    def name(self) -> str:
        return self.workload.name

    @property
    def counted(self) -> bool:
        return self.workload.counted

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        fed = self.workload.inputs(epoch, first)
        ids = [i["id"] for i in fed]
        if len(set(ids)) != len(ids) or min(ids, default=first) < first or {i["epoch"] for i in fed} - {epoch}:
            raise RoleError(f"inputs of epoch {epoch} need ids of their own from {first} on: {ids[:20]}")
        return fed

    def query(self, stream: DataFrame) -> DataFrame:
        return self.workload.query(stream)

    def expected(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, tuple[Row, ...]]:
        found = self.workload.expected(fed)
        replaced = isinstance(self.workload, ReplacingWorkload)  # then each value of a key is there once
        keys = [(row.key, row.value if replaced else 0) for rows in found.values() for row in rows]
        if set(found) != set(fed) or len(set(keys)) != len(keys):
            raise RoleError(f"{self.name} expects epochs {sorted(found)} of {sorted(fed)}, or a key twice")
        return found

    def after(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, tuple[Row, ...]]:
        """Empty where rows are only added; RoleError for what could be taken for the content after another epoch."""
        if not isinstance(self.workload, ReplacingWorkload):
            return {}
        found = self.workload.after(fed)
        turns = [frozenset((row.key, row.value) for row in rows) for _, rows in sorted(found.items())]
        if any(len({row.key for row in rows}) != len(rows) for rows in found.values()):
            raise RoleError(f"{self.name} has a key twice after one epoch")
        turns = [turn for before, turn in zip([frozenset(), *turns], turns, strict=False) if turn != before]
        if set(found) != set(fed) or len({frozenset(), *turns}) != len(turns) + 1:
            raise RoleError(f"{self.name} tells of epochs {sorted(found)} of {sorted(fed)}, or comes back to a content")
        return found

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        return self.workload.accounts(inputs)

    def pending(self, fed: Mapping[int, Sequence[Input]]) -> int:
        return self.workload.pending(fed)


# --- reader -----------------------------------------------------------------------------------------


class Reader(Protocol):
    """An outside reader of one or more outputs."""

    def read(self) -> Output: ...


@dataclass(frozen=True)
class NoReader:
    """Sees nothing, as there is nothing to be seen."""

    def read(self) -> Output:
        return {}


@dataclass(frozen=True)
class Readers:
    """Several, one after the other."""

    readers: Sequence[Reader]

    def read(self) -> Output:
        found: dict[str, Sequence[Mapping[str, Any]]] = {}
        for reader in self.readers:
            found.update(reader.read())
        return found


@dataclass(frozen=True)
class CheckedReader:
    """Refuses answers that cannot be judged: other sinks than promised, rows without a whole number as id."""

    reader: Reader
    sinks: frozenset[str]

    def read(self) -> Output:
        found = self.reader.read()
        if set(found) != self.sinks:
            raise RoleError(f"the reader told of {sorted(found)}, {sorted(self.sinks)} were promised")
        for sink, rows in found.items():
            for row in rows:
                if type(row.get("id")) is not int:
                    raise RoleError(
                        f"the reader of {sink} returned {row!r}: a mapping with a whole number as id is needed"
                    )
        return found


# --- nemesis ----------------------------------------------------------------------------------------


WITHOUT_EPOCH = frozenset(
    {
        Point.BEFORE_LOOK,
        Point.AFTER_LOOK,
        Point.BEFORE_FENCE,
        Point.AFTER_FENCE_RECORD,
        Point.BEFORE_SINK_FENCE,
        Point.AFTER_SINK_FENCE,
        Point.AFTER_FENCE,
        Point.AFTER_LOOK_AGAIN,
        Point.BEFORE_SETTLE,
        Point.AFTER_SETTLE,
        Point.BEFORE_ABORT,
        Point.AFTER_ABORT,
        Point.BEFORE_CLEAN,
        Point.BEFORE_COMPACT,
        Point.AFTER_COMPACT,
        Point.LOG_AFTER_FLOOR,
        Point.BEFORE_REDO,
        Point.AFTER_REDO_DECIDED,
    }
)
"""Points that belong to a start, or to no epoch in particular: whoever comes next hits them."""


@dataclass(frozen=True)
class Strike:
    """One planned fault: who is struck, how, and where it has to be seen blocked before.

    ``action``: one of :data:`ON`; :mod:`epochal.chaos.strikes` says how each is carried out.
    ``victim``: driver, executor, worker, the kind of a server, or what else the fault is done to.  ``nth``: at which
    hit of the point, 1 for the first.
    """

    action: str
    victim: str
    point: Point
    epoch: int
    sink: str = ""
    nth: int = 1

    @property
    def rule(self) -> str:
        """The failpoint that holds the victim: a barrier, or for ``raise`` the fault itself."""
        where = f"@{self.sink}" if self.sink else ""
        epoch = "" if self.point in WITHOUT_EPOCH else f":{self.epoch}"
        nth = f"#{self.nth}" if self.nth > 1 else ""
        return f"{self.point.value}{where}{epoch}{nth}={self._hold}"

    @property
    def _hold(self) -> str:
        if self.action in AT_THE_POINT:
            return self.action
        # Told from another thread than the function's: only a halted process goes no further.
        return "stop" if self.point is Point.AFTER_JOB else "barrier"

    def __str__(self) -> str:
        where = f" of {self.sink}" if self.sink else ""
        return f"{self.action} {self.victim} at {self.point.value}{where}, epoch {self.epoch}"


AT_THE_POINT = frozenset({"raise", "drop-answer"})
"""Faults that happen at the point itself, inside the process; no other process has to do anything."""

SERVERS = ("postgres", "kafka")
"""The kinds of servers that the kit can start, and strike."""
ON: Mapping[str, frozenset[str]] = {
    "kill": frozenset({"driver", "executor", "worker"}),
    "raise": frozenset({"driver", "worker"}),
    "drop-answer": frozenset({"driver"}),
    "pause": frozenset({"driver", "executor", "worker", *SERVERS}),
    **dict.fromkeys(("crash", "cut", "lose-answer", "half-open", "latency", "slow-close"), frozenset(SERVERS)),
    **dict.fromkeys(("fill", "read-only"), frozenset({"disk"})),
    **dict.fromkeys(("replay", "roll-back", "restore", "forget-log", "delete", "copy"), frozenset({"checkpoint"})),
    "lose": frozenset({"prepared"}),
}
"""Which victims an action can be done to."""


class Nemesis(Protocol):
    """Plans strikes, at most one per epoch, in the order of their epochs."""

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]: ...


@dataclass(frozen=True)
class Nobody:
    """Strikes nothing."""

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class Menu:
    """As many strikes as there are epochs, each once before any comes again, in an order drawn from the seed."""

    strikes: Sequence[Strike]  # their epochs mean nothing

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]:
        drawn: list[Strike] = []
        while len(drawn) < len(epochs) and self.strikes:
            drawn += chance.sample(list(self.strikes), len(self.strikes))
        return [replace(strike, epoch=epoch) for strike, epoch in zip(drawn, epochs, strict=False)]


@dataclass(frozen=True)
class InTurn:
    """Several, each with a part of the epochs."""

    nemeses: Sequence[Nemesis]

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]:
        planned: list[Strike] = []
        share = -(-len(epochs) // max(1, len(self.nemeses)))
        for number, nemesis in enumerate(self.nemeses):
            planned += nemesis.plan(epochs[number * share : (number + 1) * share], chance)
        return planned


@dataclass(frozen=True)
class CheckedNemesis:
    """Refuses plans that could not be carried out or not be told apart."""

    nemesis: Nemesis

    def plan(self, epochs: range, chance: random.Random) -> Sequence[Strike]:
        planned = self.nemesis.plan(epochs, chance)
        for strike in planned:
            if strike.victim not in ON.get(strike.action, ()) or strike.epoch not in epochs:
                raise RoleError(f"{strike} is no strike within epochs {epochs.start} to {epochs.stop - 1}")
        numbers = [strike.epoch for strike in planned]
        if numbers != sorted(set(numbers)):
            raise RoleError(f"strikes have to be in the order of their epochs, one in each: {numbers}")
        return planned


# --- history ----------------------------------------------------------------------------------------


class Listener(Protocol):
    """Whoever is told what happens; :class:`~epochal.chaos.history.History` is one."""

    def add(self, event: Event) -> None: ...


@dataclass(frozen=True)
class Deaf:
    """Forgets at once."""

    def add(self, event: Event) -> None: ...


@dataclass(frozen=True)
class Listeners:
    """Several, told in this order."""

    listeners: Sequence[Listener]

    def add(self, event: Event) -> None:
        for listener in self.listeners:
            listener.add(event)


@dataclass
class CheckedListener:
    """Refuses what cannot have happened: the end of a driver that never started."""

    listener: Listener
    _running: dict[str, int]

    @classmethod
    def of(cls, listener: Listener) -> CheckedListener:
        return cls(listener, {})

    def add(self, event: Event) -> None:
        if isinstance(event, Started):
            self._running[event.driver] = self._running.get(event.driver, 0) + 1
        if isinstance(event, Ended):
            if not self._running.get(event.driver):
                raise RoleError(f"{event.driver} ended and had not started")
            self._running[event.driver] -= 1
        self.listener.add(event)


# --- report -----------------------------------------------------------------------------------------


class Report(Protocol):
    """Tells people how a run went."""

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Silent:
    """Tells nobody."""

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Reports:
    """Several, in this order; one that fails does not keep the others from telling."""

    reports: Iterable[Report]

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None:
        failed: list[Exception] = []
        for report in self.reports:
            try:
                report.tell(run, findings, about)
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]


@dataclass(frozen=True)
class CheckedReport:
    """Refuses to tell of a pass without verdicts: nothing judged is nothing proven."""

    report: Report

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None:
        if not findings and not run.proves_nothing:
            raise RoleError("there are no verdicts to report")
        self.report.tell(run, findings, about)
