"""Which sinks may get the rows that another sink cannot hold, and what is passed on to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StructType

from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.delta import Overwrite
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.protocol import Sink
from epochal.sinks.rows.rejects import Rejects

QUERY = Query("app", "q1", "r1", "file:/checkpoint")
NOWHERE = "postgresql://127.0.0.1:1/nowhere"


def table(name: str, **more: Any) -> PostgresSink:
    return PostgresSink(NOWHERE, table=name, name=name, **more)


@pytest.mark.parametrize("given", ["skip", None, 7])
def test_bad_rows_is_a_sink_or_fail(given: Any) -> None:
    with pytest.raises(Misconfigured, match=f"bad_rows={given!r} is no sink"):
        table("t", bad_rows=given)


@pytest.mark.parametrize(
    ("into", "why"),
    [
        (KafkaSink("127.0.0.1:1", topic="bad"), "writes from the durable copy"),
        (DeltaSink("bad", mode=Overwrite()), "shows the newest epoch alone"),
        (table("bad", bad_rows=table("worse")), "has bad_rows= of its own"),
    ],
)
def test_a_sink_that_would_lose_bad_rows_does_not_get_them(into: Sink, why: str) -> None:
    with pytest.raises(Misconfigured, match=why):
        Rejects(table("t"), into)


@pytest.mark.parametrize("taken", ["_sink", "_REASON"])
@pytest.mark.remedy("the rows have columns …, which bad_rows= adds", "rename them in the query")
def test_rows_that_have_the_added_columns_already_are_refused(taken: str) -> None:
    with pytest.raises(Misconfigured, match=rf"the rows have columns \['{taken}'\], which bad_rows= adds"):
        Rejects(table("t"), table("bad"))._schema(StructType().add("id", LongType()).add(taken, LongType()))
    renamed = Rejects(table("t"), table("bad"))._schema(StructType().add("id", LongType()).add("why", LongType()))
    assert [field.name for field in renamed.fields] == ["id", "why", "_sink", "_reason"]


def test_a_marker_is_written_by_the_sink_that_gets_the_rows() -> None:
    asked: list[Query] = []

    class Marked(MemorySink):
        def check_mark(self, query: Query) -> None:
            asked.append(query)

    Rejects(table("t"), Marked("bad", MemoryServer())).check_mark(QUERY)
    assert asked == [QUERY]


def test_a_sink_that_cannot_write_its_marker_by_hand_is_named() -> None:
    plain = SimpleNamespace(name="bad")
    with pytest.raises(Misconfigured, match="the sink's marker cannot be written by hand") as refused:
        Rejects(table("t"), cast("Sink", plain)).check_mark(QUERY)
    assert refused.value.sink == "bad"
