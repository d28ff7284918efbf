"""How names are quoted, and how a free one is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from epochal.sinks.spark.names import free, quoted, twins

ROOT = Path(__file__).parents[4]


@given(st.text(min_size=1))
def test_a_quoted_name_ends_where_it_ends(name: str) -> None:
    whole = quoted(name)
    assert re.fullmatch(r"`(?:[^`]|``)*`", whole)
    assert whole[1:-1].replace("``", "`") == name


@given(st.lists(st.text("aA_İé")), st.text("aA_"))
def test_a_free_name_is_nobodys_whatever_the_case(taken: list[str], wish: str) -> None:
    found = free(wish, taken)
    assert found.startswith(wish)
    assert found.lower() not in {name.lower() for name in taken}


def test_names_that_differ_only_in_case_are_found_inside_types() -> None:
    fine = StructType().add("a", "long").add("b", "long")
    twice = StructType().add("a", "long").add("A", "long")
    schema = StructType().add("x", fine).add("y", ArrayType(MapType(StringType(), twice)))
    assert list(twins(schema, case_sensitive=False)) == [("y.element.value.a", "y.element.value.A")]
    assert list(twins(twice, case_sensitive=False)) == [("a", "A")]
    assert list(twins(twice, case_sensitive=True)) == []


SOURCES = [path for folder in ("sinks", "coordinator") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_backticks_are_doubled_in_one_place(path: Path) -> None:
    doubles = 'replace("`", "``")' in path.read_text().replace("'", '"')
    assert doubles == (path.relative_to(ROOT) == Path("sinks/spark/names.py"))
