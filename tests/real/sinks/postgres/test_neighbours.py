"""Two sinks of one pipeline whose tables refer to each other by a foreign key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

from epochal import Pipeline
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.postgres import Append, Plain, PostgresSink, Upsert
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import ONE, QUERY, epoch, observe

pytestmark = pytest.mark.usefixtures("spark")  # it reads select=
FEED = StructType().add("id", LongType()).add("order_id", LongType()).add("gone", LongType())
ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY)"
ITEMS = "CREATE TABLE items (id bigint, order_id bigint CONSTRAINT to_order REFERENCES orders{})"
WHY = "the foreign key to_order of items refers to orders, which sink 'orders' writes"


def orders(dsn: str, **options: Any) -> PostgresSink:
    given = {"table": "orders", "name": "orders", "mode": Upsert(key="id"), "select": ["id"], **options}
    return support.sink(dsn, **given)


def items(dsn: str, **options: Any) -> PostgresSink:
    return support.sink(
        dsn, **{"table": "items", "name": "items", "mode": Plain(), "select": ["id", "order_id"], **options}
    )


def check(*sinks: PostgresSink) -> None:
    """As the pipeline does at each start."""
    for sink in sinks:
        sink.create(QUERY, FEED)
        sink.check(QUERY, FEED)
    for sink in sinks:
        sink.check_beside(FEED, [other for other in sinks if other is not sink])


@pytest.mark.remedy(
    "the foreign key … of … refers to …, which sink … writes: an epoch cannot bring rows into both",
    "ALTER TABLE … DROP CONSTRAINT …",
)
def test_a_pipeline_with_both_ends_of_a_foreign_key_is_refused(
    spark: SparkSession, pg_database: str, tmp_path: Path
) -> None:
    """P5: order 1 and its item in one epoch: neither the trial nor the publish sees the other's rows."""
    observe(pg_database, f"{ORDERS}; {ITEMS.format('')}")
    pipeline = Pipeline(app=QUERY.app, sinks=[items(pg_database), orders(pg_database)])
    pipeline.create(FEED)
    stream = spark.readStream.schema(FEED).json(str(tmp_path))
    with pytest.raises(Misconfigured, match=WHY) as refused:
        pipeline.check(stream)
    cure, _, _ = refused.value.help.partition(";")
    observe(pg_database, cure)
    pipeline.check(stream)


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deferred": (ORDERS, ITEMS.format(" DEFERRABLE INITIALLY DEFERRED"), {}),
    "not validated": (
        ORDERS,
        "CREATE TABLE items (id bigint, order_id bigint);"
        " ALTER TABLE items ADD CONSTRAINT to_order FOREIGN KEY (order_id) REFERENCES orders NOT VALID",
        {},
    ),
    "without a trial": (ORDERS, ITEMS.format(""), {"mode": Plain(trial=False)}),
    "upserted": (ORDERS, f"{ITEMS.format('')}; ALTER TABLE items ADD UNIQUE (id)", {"mode": Upsert(key="id")}),
    "partitioned": (
        f"{ORDERS} PARTITION BY HASH (id);"
        " CREATE TABLE part PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        f"{ITEMS.format('')} PARTITION BY HASH (id);"
        " CREATE TABLE part_of_items PARTITION OF items FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        {},
    ),
    "of a partition": (
        ORDERS,
        "CREATE TABLE items (id bigint, order_id bigint) PARTITION BY HASH (id); CREATE TABLE part PARTITION OF items"
        " (CONSTRAINT to_order FOREIGN KEY (order_id) REFERENCES orders) FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        {},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_no_form_of_foreign_key_waits_for_another_transaction(pg_database: str, case: str) -> None:
    """P5: a constraint is deferred to the end of its own transaction at most."""
    parent, child, options = REFUSED[case]
    observe(pg_database, parent)
    observe(pg_database, child)
    with pytest.raises(Misconfigured, match=r"the foreign key to_order of \w+ refers to orders, which sink 'orders'"):
        check(items(pg_database, **options), orders(pg_database))


def test_rows_that_are_appended_are_refused_too(pg_database: str) -> None:
    """P5: their foreign key is checked by the COPY of each task."""
    observe(pg_database, f"{ORDERS}; {ITEMS.format('')}")
    with pytest.raises(Misconfigured, match="the foreign key to_order of items__rows refers to orders"):
        check(items(pg_database, mode=Append()), orders(pg_database))


ACCEPTED = {
    "not enforced": f"{ITEMS.format('')}; DO $$ BEGIN IF current_setting('server_version_num')::int < 180000"
    " THEN ALTER TABLE items DISABLE TRIGGER ALL;"
    " ELSE EXECUTE 'ALTER TABLE items ALTER CONSTRAINT to_order NOT ENFORCED'; END IF; END $$",
    "asleep": f"{ITEMS.format('')}; ALTER TABLE items DISABLE TRIGGER ALL",
    "to another table": f"CREATE TABLE others (id bigint PRIMARY KEY); {ITEMS.format('').replace('orders', 'others')}",
    "by a column that is not written": f"{ITEMS.format('')}; ALTER TABLE items RENAME order_id TO late_id;"
    " ALTER TABLE items ADD order_id bigint",
    "to a column that is not written": f"ALTER TABLE orders ADD number bigserial UNIQUE; {ITEMS.format(' (number)')}",
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_foreign_key_that_one_epoch_cannot_fill_is_accepted(pg_database: str, case: str) -> None:
    """P5: nobody needs the cure for it."""
    observe(pg_database, ORDERS)
    observe(pg_database, ACCEPTED[case])
    check(items(pg_database), orders(pg_database))


def test_the_same_tables_in_another_database_are_others(pg_database: str) -> None:
    """P5: though they may have the same object ids."""
    observe(pg_database, f"{ORDERS}; {ITEMS.format('')}")
    name = f"{pg_database.rpartition('/')[2]}_b"
    observe(pg_database, f"CREATE DATABASE {name} TEMPLATE {pg_database.rpartition('/')[2]}")
    there = orders(f"{pg_database.rpartition('/')[0]}/{name}")
    try:
        check(items(pg_database), there)
    finally:
        there.close()
        observe(pg_database, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("deferred", ["", " DEFERRABLE INITIALLY DEFERRED"])
def test_a_table_may_refer_to_itself(spark: SparkSession, pg_database: str, deferred: str) -> None:
    """P5: one statement writes a row before the row to which it refers."""
    observe(pg_database, f"CREATE TABLE orders (id bigint PRIMARY KEY, order_id bigint REFERENCES orders{deferred})")
    sink = orders(pg_database, select=["id", "order_id"])
    check(sink)
    sink.look(QUERY)
    sink.fence(QUERY, ONE)
    rows = spark.createDataFrame([(1, 2, 0), (2, None, 0)], FEED)
    assert sink.commit(sink.prepare(epoch(), rows, ONE), ONE) is CommitOutcome.COMMITTED
    assert observe(pg_database, "SELECT id, order_id FROM orders ORDER BY id") == [(1, 2), (2, None)]
