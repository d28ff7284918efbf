"""Which tasks answer with their records themselves, and which write a file."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext

from epochal.sinks.kafka.batches.write import Layout
from epochal.sinks.kafka.delivery import encoding
from epochal.sinks.kafka.delivery.encoding import INLINE_BYTES, INLINE_TASKS, Job

LAYOUT = Layout(("t",), (1,), (1 << 20,), "murmur2_random", None, None, None, None)
ROW = 40_000
"""How many bytes the row of a task has in these tests, fewer than any task may answer with."""


@pytest.fixture
def context() -> Iterator[TaskContext]:
    """The context of a task in this process."""
    made = TaskContext._getOrCreate()
    yield made
    TaskContext._taskContext = None


def run(context: TaskContext, number: int, folder: Path) -> tuple[int, bool]:
    """Run the task with this number, with one row; return how many bytes it answers with, and whether it has a file."""
    context._partitionId = number
    rows = pa.RecordBatch.from_pydict({"key": pa.array([b"k"]), "value": pa.array([b"x" * ROW])})
    (answer,) = encoding._task(Job(LAYOUT, str(folder), "kafka", 1), iter([rows]))
    told = answer.to_pylist()[0]
    return len(base64.b64decode(told["data"])), os.path.exists(folder / told["file"]) and bool(told["file"])


def test_what_small_tasks_answer_with_has_a_bound_over_all_tasks(context: TaskContext, tmp_path: Path) -> None:
    tasks = range(0, 20 * INLINE_TASKS, 16)
    told = {number: run(context, number, tmp_path) for number in tasks}
    assert all(size > ROW and not has_file for number, (size, has_file) in told.items() if number <= INLINE_TASKS)
    assert 16 * sum(size for size, _ in told.values()) <= 2 * INLINE_TASKS * INLINE_BYTES
    assert all(has_file for size, has_file in told.values() if not size)


def test_the_bound_holds_for_any_number_of_tasks_and_a_few_rows_need_no_file() -> None:
    each = [encoding.inline_bytes(task) for task in range(300_000)]
    assert sum(each) <= 2 * INLINE_TASKS * INLINE_BYTES == 16 << 20
    assert max(each) == each[INLINE_TASKS] == INLINE_BYTES
    assert each[1_000] >= 1_000
