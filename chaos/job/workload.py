"""The workload role: what is fed, and what the output must then be.

It depends neither on faults nor on sinks.  :mod:`epochal.chaos.job.workloads` has the workloads of the kit.
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
"""One input as it is fed.  It has at least ``epoch``, and an ``id`` that is unique in the whole run."""


class Workload(Protocol):
    """What is fed, and what the output must then be."""

    @property
    def name(self) -> str: ...
    @property
    def counted(self) -> bool:
        """Whether an output row stands for ``n`` inputs, and not for one."""
        ...

    def inputs(self, epoch: int, first: int) -> Sequence[Input]:
        """Return what is fed as ``epoch``; ids count up from ``first``."""
        ...

    def query(self, stream: DataFrame) -> DataFrame:
        """Return the query over the inputs.  Its columns are id and n; the kit adds attempt."""
        ...

    def expected(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, tuple[Row, ...]]:
        """Return, per epoch, the rows of a run without failure, computed without Spark.  Their attempt is 0."""
        ...

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        """Return the ids of these inputs that must be accounted for in the output."""
        ...

    def pending(self, fed: Mapping[int, Sequence[Input]]) -> int:
        """Return how many inputs a run without failure still holds in its state.  Used only if rows are counted."""
        ...


@runtime_checkable
class ReplacingWorkload(Workload, Protocol):
    """A workload whose epochs replace or delete rows of earlier epochs.

    ``expected`` returns the rows that each epoch writes.
    """

    def after(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, tuple[Row, ...]]:
        """Return, per epoch, all rows after it in a run without failure.  Each key has one row."""
        ...


@dataclass(frozen=True)
class NoInput:
    """Feeds no input, so there is no output."""

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
    """Feeds inputs of several workloads in turn, one workload per epoch.  They must fit the query of the first."""

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
    """Raises RoleError for inputs that could be mistaken for others, and for expectations about epochs not fed."""

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
            raise RoleError(f"inputs of epoch {epoch} need unique ids from {first} on: {ids[:20]}")
        return fed

    def query(self, stream: DataFrame) -> DataFrame:
        return self.workload.query(stream)

    def expected(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, tuple[Row, ...]]:
        found = self.workload.expected(fed)
        replaced = isinstance(self.workload, ReplacingWorkload)  # then a key may occur again, with another value
        keys = [(row.key, row.value if replaced else 0) for rows in found.values() for row in rows]
        if set(found) != set(fed) or len(set(keys)) != len(keys):
            raise RoleError(f"{self.name} expects epochs {sorted(found)} of {sorted(fed)}, or a key twice")
        return found

    def after(self, fed: Mapping[int, Sequence[Input]]) -> Mapping[int, tuple[Row, ...]]:
        """Return the content after each epoch; empty if rows are only added.

        Raises RoleError if the content after an epoch is the same as after an earlier, different one.
        """
        if not isinstance(self.workload, ReplacingWorkload):
            return {}
        found = self.workload.after(fed)
        turns = [frozenset((row.key, row.value) for row in rows) for _, rows in sorted(found.items())]
        if any(len({row.key for row in rows}) != len(rows) for rows in found.values()):
            raise RoleError(f"{self.name} has a key twice after one epoch")
        turns = [turn for before, turn in zip([frozenset(), *turns], turns, strict=False) if turn != before]
        if set(found) != set(fed) or len({frozenset(), *turns}) != len(turns) + 1:
            raise RoleError(f"{self.name} returns epochs {sorted(found)} for {sorted(fed)}, or repeats a content")
        return found

    def accounts(self, inputs: Sequence[Input]) -> Sequence[int]:
        return self.workload.accounts(inputs)

    def pending(self, fed: Mapping[int, Sequence[Input]]) -> int:
        return self.workload.pending(fed)
