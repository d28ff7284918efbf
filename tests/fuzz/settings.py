"""Random settings of a session, of those that ``test_settings.py`` has judged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

import tomli
from pyspark.sql import SparkSession

from tests.real.sinks.settings import under as strictly_under
from tests.selection import ROOT

JUDGED = tomli.loads(Path(ROOT, "tests/real/sinks/spark/judged_settings.toml").read_text())
OTHER = "<another value>"
"""Another value than the session has: of two the other one, else one of those that Spark's error names."""


def some(choose: Random) -> Mapping[str, str]:
    """One to three settings; what cannot be known without a session is ``OTHER`` and a number."""
    names = [name for name in JUDGED["judged"] if name not in JUDGED["untried"]]
    found = {}
    for name in choose.sample(names, choose.randint(1, 3)):
        given = JUDGED["given"].get(name)
        found[name] = choose.choice(given) if given else f"{OTHER} {choose.randint(0, 9)}"
    if choose.random() < 0.1:
        found["spark.sql.caseSensitive"] = "true"
    return found


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""For small jobs: Spark then makes no Java code of its plans."""


@contextmanager
def under(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set the settings of a plan inside this scope, except those that no session may change."""
    modifiable = {name: value for name, value in settings.items() if spark.conf.isModifiable(name)}
    with strictly_under(spark, {name: _resolved(spark, name, value) for name, value in modifiable.items()}):
        yield


def _resolved(spark: SparkSession, name: str, value: str) -> str:
    if not value.startswith(OTHER):
        return value
    before = spark.conf.get(name, None)
    if before in ("true", "false"):
        return "false" if before == "true" else "true"
    others = [other for other in _listed(spark, name) if other != before]
    return others[int(value.rpartition(" ")[2]) % len(others)]


def _listed(spark: SparkSession, name: str) -> list[str]:
    try:
        with strictly_under(spark, {name: "no such value"}):
            pass
    except Exception as refused:
        listed = re.search(r"should be one of '?([^']*)'", str(refused))
        if listed is not None:
            return listed[1].split(", ")
        if "boolean" in str(refused):
            return ["true", "false"]
        raise
    raise AssertionError(f"{name} takes everything")


@contextmanager
def without(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Unset the settings of a plan inside this scope, for readers."""
    now = {name: spark.conf.get(name, "") or "" for name in settings if spark.conf.isModifiable(name)}
    try:
        for name in now:
            spark.conf.unset(name)
        yield
    finally:
        for name, value in now.items():
            spark.conf.set(name, value)
