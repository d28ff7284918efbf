"""Corners in which somebody drops, renames or makes again the table of a Postgres sink."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from tests.real.runbook.conftest import MakeCorner
from tests.real.runbook.support import Corner, blocks
from tests.real.sinks.postgres.support import observe

pytestmark = pytest.mark.wide

TITLE = "Postgres table dropped or created again"
RUNNING, REGISTERED, GONE, CHANGED = range(4)  # the page's texts
ACCEPT, RETIRE = range(2)  # its commands
OTHER = "CREATE TABLE other (LIKE rows INCLUDING ALL)"
AGAIN = f"{OTHER}; DROP TABLE rows; ALTER TABLE other RENAME TO rows"
REPLACED = f"{OTHER}; ALTER TABLE rows RENAME TO old; ALTER TABLE other RENAME TO rows"
FIVE = [1, 2, 3, 4, 5]


def swapped(job: Corner, statement: str) -> None:
    """Epoch 2, with the id 4, is shown; the query still runs, and does not show epoch 3 with the id 5."""
    job.add(4)
    job.add(5)
    pipeline = job.made()

    def function(df: DataFrame, epoch: int) -> None:
        pipeline(df, epoch)
        if epoch == 2:
            observe(job.dsn, statement)

    job.fails(RUNNING, function=function)
    assert job.shown() == {"table": [] if "LIKE" in statement else FIVE[:4], "topic": FIVE[:4], "lake": FIVE[:4]}
    job.fails(REGISTERED)


def create(job: Corner) -> list[str]:
    return job.made().create(job.rows().schema)


@pytest.mark.remedy(
    "… is not the table that this start has looked at: it was dropped and created again, or another table has its name"
    " now",
    "or go on with the one that is there: `epochal resolve --accept …`",
)
def test_a_table_that_is_made_again_while_the_query_runs(corner: MakeCorner) -> None:
    """P14: neither create nor retire leads round in a circle: both lead to the page's command."""
    job = corner(TITLE, mode="Plain()")
    swapped(job, AGAIN)
    assert any("as its table of before is gone" in line for line in create(job))
    job.fails(CHANGED)
    refused = job.command(["retire", str(job.checkpoint), "table", "--why", "x", "--yes"], 1)
    assert "epochal resolve --accept table" in refused
    job.follow(ACCEPT, SINK="table")
    job.converges(table=[5], topic=FIVE, lake=FIVE)


@pytest.mark.parametrize("mode", ["Plain()", "Upsert(key='id')"])
def test_a_table_that_is_made_again_is_accepted_without_create(corner: MakeCorner, mode: str) -> None:
    """P14: also with an epoch that is decided, which the sink then never gets."""
    job = corner(TITLE, mode=mode)
    job.add(4)
    job.crash()
    observe(job.dsn, AGAIN)
    job.add(5)
    job.fails(REGISTERED)
    job.follow(ACCEPT, SINK="table")
    job.converges(table=[5], topic=FIVE, lake=FIVE)


@pytest.mark.remedy(
    "the table … does not exist any more",
    "or call pipeline.create(), which makes it anew, and then, if the query has run before, `epochal resolve"
    " --accept …`",
)
@pytest.mark.parametrize("mode", ["Append()", "Plain()"])
def test_a_table_that_is_gone(corner: MakeCorner, mode: str) -> None:
    """P14: create makes it."""
    job = corner(TITLE, mode=mode)
    observe(job.dsn, f"DROP TABLE {'rows__rows' if mode == 'Append()' else 'rows'} CASCADE")
    job.add(4)
    job.fails(GONE)
    create(job)
    job.fails(CHANGED)
    job.follow(ACCEPT, SINK="table")
    job.add(5)
    if mode == "Plain()":
        job.converges(table=[4, 5], topic=FIVE, lake=FIVE)
        return
    job.go()
    assert job.shown() == {"table": [4, 5], "topic": FIVE, "lake": FIVE}
    assert "2 findings" in job.command(["verify", str(job.checkpoint)], 1)  # the epochs whose rows are gone


def test_a_table_that_was_renamed_and_replaced_is_put_back(corner: MakeCorner) -> None:
    """P14: while the query runs; nothing is lost."""
    job = corner(TITLE, mode="Plain()")
    swapped(job, REPLACED)
    [statement] = blocks(TITLE, "sql")
    for name, value in {"TABLE": "rows", "OTHER": "other", "NOW": "old"}.items():
        statement = statement.replace(f"${name}", value)
    observe(job.dsn, statement)
    job.converges(table=FIVE, topic=FIVE, lake=FIVE)


@pytest.mark.parametrize("way", ["retire", "back again", "rename"])
def test_another_name_leads_out_too(corner: MakeCorner, way: str) -> None:
    """P14: the log asks for the old name until a command says what becomes of it."""
    job = corner(TITLE, mode="Plain()")
    swapped(job, AGAIN)
    job.edit('name="table"', 'name="new"')
    create(job)
    with pytest.raises(StreamingQueryException, match=r"took part in this query's epochs and is missing"):
        job.go()
    if way == "rename":
        job.command(["rename", str(job.checkpoint), "table", "new", "--why", "x", "--yes"])
    else:
        refused = job.command(["retire", str(job.checkpoint), "table", "--why", "x", "--yes"], 2)
        assert "epochal retire --unreachable" in refused
        if way == "back again":
            job.edit('name="new"', 'name="table"')
            refused = job.command(["resolve", str(job.checkpoint), "--accept", "table", "--why", "x", "--yes"], 2)
            assert "belongs to sink 'new'" in refused
            job.edit('name="table"', 'name="new"')
        job.follow(RETIRE, SINK="table")
    job.converges(table=[5], topic=FIVE, lake=FIVE)
