"""What a Delta table can hold: the gates are pure functions of schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from epochal.coordinator.model.epoch import Json
from epochal.sinks.delta import gates


def struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def problems(rows: DataType, table: DataType) -> list[str]:
    return gates.row_problems(struct(c=rows), struct(c=table), case_sensitive=False)


@pytest.mark.parametrize(
    ("rows", "table"),
    [
        (StringType(), StringType()),
        (ByteType(), ShortType()),
        (ShortType(), FloatType()),
        (IntegerType(), LongType()),
        (IntegerType(), DoubleType()),
        (FloatType(), DoubleType()),
        (LongType(), DecimalType(19, 0)),
        (IntegerType(), DecimalType(12, 2)),
        (DecimalType(10, 2), DecimalType(12, 4)),
        (ArrayType(IntegerType()), ArrayType(LongType())),
        (MapType(StringType(), FloatType()), MapType(StringType(), DoubleType())),
        (struct(a=IntegerType()), struct(b=StringType(), A=LongType())),
    ],
)
def test_a_type_that_the_table_holds_exactly_passes(rows: DataType, table: DataType) -> None:
    assert problems(rows, table) == []


@pytest.mark.parametrize(
    ("rows", "table"),
    [
        (LongType(), IntegerType()),
        (LongType(), DoubleType()),
        (IntegerType(), FloatType()),
        (DoubleType(), FloatType()),
        (IntegerType(), StringType()),
        (StringType(), LongType()),
        (DecimalType(10, 2), DecimalType(10, 1)),
        (DecimalType(12, 2), DecimalType(11, 2)),
        (DecimalType(10, 2), DoubleType()),
        (LongType(), DecimalType(18, 0)),
        (DateType(), TimestampType()),
        (TimestampType(), TimestampNTZType()),
        (BinaryType(), StringType()),
        (ArrayType(LongType()), ArrayType(IntegerType())),
        (MapType(LongType(), StringType()), MapType(IntegerType(), StringType())),
        (StringType(), ArrayType(StringType())),
        (ArrayType(StringType()), StringType()),
        (StringType(), MapType(StringType(), StringType())),
        (MapType(StringType(), StringType()), StringType()),
        (StringType(), struct(a=StringType())),
        (struct(a=StringType()), StringType()),
    ],
)
def test_a_type_that_would_be_bent_is_named(rows: DataType, table: DataType) -> None:
    [problem] = problems(rows, table)
    assert problem.startswith("column c")


def test_columns_go_by_name_and_nothing_is_dropped() -> None:
    table = StructType([StructField("id", StringType(), nullable=False), StructField("n", LongType())])
    assert gates.row_problems(struct(N=LongType(), ID=StringType()), table, case_sensitive=False) == []
    assert gates.row_problems(struct(id=StringType()), table, case_sensitive=False) == []
    [extra] = gates.row_problems(struct(id=StringType(), x=LongType()), table, case_sensitive=False)
    assert extra == "column x: the table has no such column"
    [missing] = gates.row_problems(struct(n=LongType()), table, case_sensitive=False)
    assert missing.startswith("column id: it is NOT NULL in the table")
    cased = gates.row_problems(struct(ID=StringType()), table, case_sensitive=True)
    assert [p.partition(":")[0] for p in cased] == ["column ID", "column id"]
    twice = StructType([StructField("n", LongType()), StructField("N", LongType()), StructField("id", StringType())])
    assert gates.row_problems(twice, table, case_sensitive=False) == ["column N: it is there twice"]


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (struct(a=LongType(), A=LongType()), "c.A"),
        (ArrayType(struct(a=LongType(), A=LongType())), "c.element.A"),
        (MapType(StringType(), struct(x=struct(a=LongType(), A=LongType()))), "c.value.x.A"),
        (StructType().add("a", LongType()).add("a", LongType()), "c.a"),
    ],
)
def test_two_fields_of_one_name_are_named_at_any_depth(kind: DataType, named: str) -> None:
    """P9: Delta does not tell upper and lower case apart, whatever the session says."""
    told = f"column {named}: it is there twice"
    assert gates.unholdable(struct(c=kind)) == [told]
    assert told in gates.row_problems(struct(c=kind), struct(c=kind), case_sensitive=True)


def test_a_nested_column_that_the_table_has_not_is_named() -> None:
    [problem] = problems(ArrayType(struct(a=LongType(), x=LongType())), ArrayType(struct(a=LongType())))
    assert problem == "column c.element.x: the table has no such column"


@pytest.mark.parametrize("kind", [NullType(), DayTimeIntervalType()])
def test_types_that_no_delta_table_holds_are_named(kind: DataType) -> None:
    found = gates.unholdable(struct(a=struct(b=ArrayType(kind))))
    assert found == [f"column a.b.element: a Delta table cannot hold {kind.simpleString()}"]


def field(name: str, kind: str = "long", *, nullable: bool = True, metadata: Json | None = None) -> Json:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata or {}}


def table(*fields: Json, **changed: Any) -> Json:
    schema = json.dumps({"type": "struct", "fields": list(fields)})
    constraint = {"delta.constraints.c": changed.pop("constraint")} if "constraint" in changed else {}
    metadata = {"id": "1", "schemaString": schema, "partitionColumns": [], "configuration": constraint, **changed}
    return gates.fingerprint(metadata, {"minWriterVersion": 2})


@pytest.mark.parametrize(
    ("now", "named"),
    [
        (table(field("a"), field("b", nullable=False)), ["column b"]),
        (table(field("a"), field("b", metadata={"delta.generationExpression": "a + 1"})), ["column b"]),
        (table(field("a", "string")), ["column a"]),
        (table(field("b")), ["column a"]),
        (table(field("a"), partitionColumns=["a"]), ["partitions"]),
        (table(field("a"), constraint="a > 1"), ["constraints"]),
        (table(field("a"), field("b")), []),
    ],
)
def test_what_makes_prepared_files_unfit(now: Json, named: list[str]) -> None:
    assert gates.changes(table(field("a")), now) == named


def test_identity_columns_are_told_and_tables_that_only_grow() -> None:
    schema = json.dumps({"type": "struct", "fields": [field("a", metadata={"delta.identity.start": 1})]})
    grows: Json = {"schemaString": schema, "configuration": {gates.APPEND_ONLY: "true"}}
    assert gates.identities(grows) == [
        "column a: an identity column gets repeated values when rows are prepared before they are committed"
    ]
    assert gates.append_only(grows)[0].startswith(f"{gates.APPEND_ONLY} = 'true'")
    assert gates.append_only({"configuration": {}}) == []


def test_a_table_that_forgets_its_transaction_ids_says_so() -> None:
    assert gates.forgets({"configuration": {}}) is None
    told = gates.forgets({"configuration": {gates.RETENTION: "interval 1 day"}})
    assert told == f"{gates.RETENTION} = 'interval 1 day' lets Delta forget the marker and the fence"
