"""The workload role: what is fed, and what has to come out of it.

It knows neither faults nor sinks.  :mod:`epochal.chaos.job.workloads` has the workloads of the kit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from epochal.chaos.observe.history import Row
from epochal.chaos.observe.roles import RoleError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Input = Mapping[str, Any]
"""One input as it is fed: at least ``id``, unique over the whole run, and ``epoch``."""


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
