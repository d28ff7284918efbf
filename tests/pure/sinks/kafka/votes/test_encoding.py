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
from epochal.sinks.kafka.delivery.encoding import FEW_TASKS, INLINE_BYTES, Job

LAYOUT = Layout(("t",), (1,), (1 << 20,), "murmur2_random", None, None, None, None)
ROW = 100_000
"""How many bytes the row of a task has in these tests."""


@pytest.fixture
def context() -> Iterator[TaskContext]:
    """The context of a task in this process."""
    made = TaskContext._getOrCreate()
    yield made
    TaskContext._taskContext = None


def run(context: TaskContext, number: int, folder: Path, row: int = ROW) -> tuple[int, bool]:
    """Run the task with this number, with one row; return how many bytes it answers with, and whether it has a file."""
    context._partitionId = number
    rows = pa.RecordBatch.from_pydict({"key": pa.array([b"k"]), "value": pa.array([b"x" * row])})
    (answer,) = encoding._task(Job(LAYOUT, str(folder), "kafka", 1), iter([rows]))
    told = answer.to_pylist()[0]
    return len(base64.b64decode(told["data"])), os.path.exists(folder / told["file"]) and bool(told["file"])


def test_equal_tasks_of_a_small_epoch_answer_with_their_records_and_others_write_files(
    context: TaskContext, tmp_path: Path
) -> None:
    together = INLINE_BYTES // (ROW + 1_000)  # a batch is somewhat larger than its rows
    told = {number: run(context, number, tmp_path) for number in range(2 * together)}
    assert all(size > ROW and not has_file for number, (size, has_file) in told.items() if number < together)
    assert all(has_file and not size for number, (size, has_file) in told.items() if number > together)


def test_one_task_that_has_more_than_the_others_needs_no_file(context: TaskContext, tmp_path: Path) -> None:
    assert run(context, FEW_TASKS, tmp_path, row=64_000) > (64_000, False)
    assert run(context, FEW_TASKS, tmp_path, row=66_000) == (0, True)


def test_one_task_alone_answers_with_the_whole_of_a_small_epoch(context: TaskContext, tmp_path: Path) -> None:
    assert run(context, 0, tmp_path, row=INLINE_BYTES - 1_000) > (INLINE_BYTES - 1_000, False)
    assert run(context, 0, tmp_path, row=INLINE_BYTES) == (0, True)


def test_the_bound_holds_for_any_number_of_tasks_and_a_few_rows_need_no_file() -> None:
    job = Job(LAYOUT, "/copies", "kafka", 1)
    each = [encoding.inline_bytes(job, task) for task in range(1_000_000)]
    assert sum(each) <= 32 << 20
    assert each[FEW_TASKS] == 64 << 10
    assert each == sorted(each, reverse=True)
    assert each[1_000] >= 1_000
