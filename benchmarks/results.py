"""Results as data: one JSON file per table and run, never overwritten; the environment it was measured in beside it.

::

    {"version": 1, "table", "quick", "rounds", "partial", "environment": {"commit", "when", "cores", "versions", ...},
     "measures": [{"job", "case", "unit", "median", "quartiles", "values"}],
     "ratios":   [{"job", "peer", "case", "what", "goal", "median", "quartiles", "values"}],
     "cells":    [{"job", "fault", "asked", "struck", "lost", "duplicated", "torn", "out_of_order", "disagree",
                   "rows_lost", "rows_duplicated", "unknown", "verdict"}],   :class:`benchmarks.cells.Cell`, if any
     "facts":    {...}}                                     what a table has to tell beside them
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from benchmarks.cells import Cell
from benchmarks.measuring import Measure, Ratio
from epochal.chaos.servers import chosen
from epochal.coordinator.environment import versions

VERSION = 1
FOLDER = Path(__file__).parent / "results"
PACKAGES = ("pyspark", "delta-spark", "confluent-kafka", "psycopg", "deltalake", "pyarrow")


@dataclass
class Result:
    """What one run of a table found."""

    table: str
    rounds: int
    quick: bool = False
    measures: list[Measure] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    partial: str = ""  # what of the table is missing: such a run stands for no other
    environment: Mapping[str, object] = field(default_factory=lambda: environment())  # when it began

    def add(self, measures: Sequence[Measure], *ratios: Ratio) -> None:
        """A quick run answers no goal."""
        self.measures += measures
        self.ratios += [replace(ratio, goal=None) if self.quick else ratio for ratio in ratios]

    def to_json(self) -> dict[str, object]:
        return {
            "version": VERSION,
            "table": self.table,
            "quick": self.quick,
            "rounds": self.rounds,
            "partial": self.partial,
            "environment": self.environment,
            "measures": [measure.to_json() for measure in self.measures],
            "ratios": [ratio.to_json() for ratio in self.ratios],
            **({"cells": [cell.to_json() for cell in self.cells]} if self.cells else {}),
            "facts": self.facts,
        }


def save(result: Result, folder: Path = FOLDER) -> Path:
    """A new file; one of that name is never replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.table}{'-quick' if result.quick else ''}-{_now()}.json"
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(result.to_json(), indent=1) + "\n")
    return path


def _now() -> str:
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"


def runs(table: str, *, quick: bool = False, folder: Path = FOLDER) -> list[Mapping[str, object]]:
    """The stored runs of a table, the newest first; parts of one, and other versions of the form, are left out."""
    found: list[Mapping[str, object]] = []
    for path in sorted(folder.glob(f"{table}{'-quick' if quick else ''}-[0-9]*.json"), reverse=True):
        run = json.loads(path.read_text(encoding="utf-8"))
        if run.get("version") == VERSION and run["table"] == table and not run.get("partial"):
            found.append({**run, "file": path.name})
    return found


def folder_of_results(path: str) -> Path:
    """As an argument of a command: one that is there, as nothing is found in one that is not."""
    if not Path(path).is_dir():
        raise argparse.ArgumentTypeError(f"{path} is no folder")
    return Path(path)


def environment() -> dict[str, object]:
    return {
        "commit": _commit(),
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "machine": platform.machine(),
        "processor": _processor(),
        "file_system": file_system(Path(tempfile.gettempdir())),
        "system": platform.system(),
        "load_before": round(os.getloadavg()[0], 2),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in PACKAGES},
            "kafka broker": _server("EPOCHAL_KAFKA_BOOTSTRAP", "EPOCHAL_KAFKA_VERSION", versions.KAFKA_BROKER),
            "delta jar": versions.DELTA_JAR,
            "postgres": _server("EPOCHAL_POSTGRES_DSN", "EPOCHAL_POSTGRES_VERSION", versions.POSTGRES[-1]),
        },
    }


def _server(address: str, version: str, usual: str) -> str:
    """The version that :mod:`epochal.chaos.servers` takes by these variables; of a server not its own none is known."""
    if os.environ.get(address) or chosen() != "embedded":
        return "not embedded"
    return os.environ.get(version, usual)


def file_system(path: Path) -> str:
    """Of the folder; empty where nobody says."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return ""
    over = [(len(at), kind) for at, kind in mounts if path.resolve().is_relative_to(at)]
    return max(over)[1] if over else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _commit() -> str:
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip()
