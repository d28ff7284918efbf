"""One file names the versions; what is installed and what the project file asks for agree with it."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
import tomli

from epochal.coordinator import versions
from epochal.coordinator.versions import Standing

ROOT = Path(__file__).parents[2]


def requirements() -> dict[str, str]:
    """Package -> version condition, over all extras of pyproject.toml."""
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line for extra in project["optional-dependencies"].values() for line in extra]
    split = [re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?(.*)", line) for line in named]
    return {found.group(1): found.group(2) for found in split if found is not None}


@pytest.mark.parametrize(
    ("package", "condition"),
    [
        ("pyspark", f"=={versions.PYSPARK}"),
        ("pandas", f">=2.2,<{versions.PANDAS_BELOW}"),
        ("delta-spark", f">={versions.DELTA_PYTHON},<4.5"),
        ("confluent-kafka", f">={versions.CONFLUENT_KAFKA},<2.17"),
        ("psycopg", f">={versions.PSYCOPG},<3.4"),
        ("deltalake", f">={versions.DELTALAKE},<1.7"),
        ("toxiproxy-python", f"=={versions.TOXIPROXY_PYTHON}"),
    ],
)
def test_the_project_file_asks_for_the_versions_named_here(package: str, condition: str) -> None:
    assert requirements()[package] == condition


def test_the_project_file_asks_for_the_same_python() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, versions.PYTHON_MINIMUM))


def test_what_is_installed_is_what_is_called_tested() -> None:
    assert versions.SPARK.standing(importlib.metadata.version("pyspark")) is Standing.TESTED
    assert versions.PYTHON.standing(".".join(map(str, sys.version_info[:3]))) is not Standing.REFUSED


@pytest.mark.parametrize(
    ("version", "standing"),
    [
        ("4.2.0", Standing.TESTED),
        ("4.2.0-amzn-1", Standing.TESTED),
        ("4.2.1", Standing.EXPECTED),
        ("4.1.1", Standing.REFUSED),
        ("4.0.0", Standing.REFUSED),
        ("4.3.0", Standing.REFUSED),
        ("3.5.6", Standing.REFUSED),
    ],
)
def test_spark_outside_the_table_is_refused_by_its_version(version: str, standing: Standing) -> None:
    assert versions.SPARK.standing(version) is standing
    told = versions.refusal(versions.SPARK, version)
    if standing is Standing.REFUSED:
        assert told is not None
        assert version in told
        assert versions.PYSPARK in told
    else:
        assert told is None


def test_a_series_covers_its_minor_releases_only() -> None:
    assert versions.POSTGRES_SERVER.standing("18.4") is Standing.TESTED
    assert versions.POSTGRES_SERVER.standing("17.2 (Debian 17.2-1)") is Standing.EXPECTED
    assert versions.POSTGRES_SERVER.standing("180.1") is Standing.REFUSED


def test_what_is_no_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="'nightly'"):
        versions.SPARK.standing("nightly")


def test_the_table_has_a_line_for_every_part() -> None:
    lines = versions.table().splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [part.name for part in versions.PARTS]


def test_readme_shows_the_table() -> None:
    readme = (ROOT / "README.md").read_text()
    assert f"<!-- versions -->\n{versions.table()}<!-- /versions -->" in readme
