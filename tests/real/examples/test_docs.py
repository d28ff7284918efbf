"""Examples of the docs that no test of their own page runs; each as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.sql import functions as f

import epochal
from epochal.sinks import DeltaSink
from tests.real.coordinator.query.support import Job
from tests.real.examples.test_readme import python_blocks, run_example
from tests.real.sinks.delta.support import column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.usefixtures("spark")
def test_the_quick_start(
    tmp_path: Path,
    pg_database: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Twice, as if the first start had been killed after its epoch; with a trigger that ends."""
    [job] = python_blocks((DOCS / "quickstart.md").read_text())
    job = job.replace('processingTime="2 seconds"', "availableNow=True")
    monkeypatch.setenv("POSTGRES", pg_database)
    for where in ('"in"', '"checkpoint"'):
        assert where in job
        job = job.replace(where, f'"{tmp_path}/{where[1:]}')
    (tmp_path / "in").mkdir()
    for number, value in ((1, 0.5), (2, 1.5)):
        (tmp_path / "in" / f"{number}.json").write_text(f'{{"id": {number}, "value": {value}}}')
        names = run_example(job, {"__name__": "job"})
        names["main"]()
        names["pipeline"].close()
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("SELECT * FROM readings ORDER BY id").fetchall() == [(1, 0.5), (2, 1.5)]
        told = connection.execute("SELECT epoch, position, row_count FROM epochal.epochs ORDER BY epoch").fetchall()
    assert told == [(0, 1, 1), (1, 2, 1)]
    assert "postgres-readings" in capsys.readouterr().out


def test_idempotent_mode(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, sinks=())
    job.add(1, 2)

    def parse(name: str) -> str:
        return name.removeprefix("n")

    rows = job.df().withColumn("parsed", f.udf(parse, "string", useArrow=False)("name"))
    names: dict[str, Any] = {"epochal": epochal, "DeltaSink": DeltaSink, "LAKE": str(tmp_path / "lake")}
    [code] = python_blocks((DOCS / "idempotent.md").read_text())
    pipeline = run_example(code, names)["pipeline"]
    pipeline.create(rows.schema)
    job.run(pipeline, rows)
    assert [column(tmp_path / "lake" / name, "parsed") for name in ("flights", "archive")] == [["1", "2"]] * 2


def test_a_replay_on_real_spark(spark: SparkSession, tmp_path: Path) -> None:
    """`query` is the pipeline here, and `run` feeds it until it has nothing more to do."""
    job = Job(spark, tmp_path)
    job.add(1, 2)
    job.add(3)
    [code] = re.findall(r"<!-- shape -->\n```python\n(.*?)```", (DOCS / "authors.md").read_text(), re.DOTALL)
    names = {
        "run": lambda query: job.run(query),
        "query": job.pipeline(),
        "checkpoint": job.checkpoint,
        "rows": job.ids,
        "rows_of_a_run_that_never_failed": [1, 2, 3],
    }
    assert run_example(code, names)["epoch"] == 1


def test_a_function_to_be_struck(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_CHAOS_FOLDER", str(tmp_path))
    names = run_example(python_blocks((DOCS / "chaos.md").read_text())[0], {})
    names["write"](spark.createDataFrame([(1,)], "id long"), 0)
    assert names["rows"]() == [{"id": 1}]
