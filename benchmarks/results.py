"""Store results: one JSON file per table and run, which is never overwritten, with its environment.

::

    {"version": 1, "table", "quick", "rounds", "partial", "environment": {"commit", "when", "cores", "versions", ...},
     "measures": [{"job", "case", "unit", "median", "quartiles", "values"}],
     "ratios":   [{"job", "peer", "case", "what", "goal", "median", "quartiles", "values"}],
     "cells":    [{"job", "fault", "asked", "struck", "lost", "duplicated", "torn", "out_of_order", "disagree",
                   "rows_lost", "rows_duplicated", "unknown", "verdict"}],   :class:`benchmarks.cells.Cell`, if any
     "facts":    {...}}                                     what else the table found
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
    """The result of one run of a table."""

    table: str
    rounds: int
    quick: bool = False
    measures: list[Measure] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    partial: str = ""  # which part of the table is missing; such a run is not used as a result of the table
    environment: Mapping[str, object] = field(default_factory=lambda: environment())  # at the begin of the run

    def add(self, measures: Sequence[Measure], *ratios: Ratio) -> None:
        """Add measures and ratios.  In a quick run, the ratios get no goals."""
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
    """Write the result to a new file and return its path.  An existing file is never replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.table}{'-quick' if result.quick else ''}-{_now()}.json"
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(result.to_json(), indent=1) + "\n")
    return path


def _now() -> str:
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"


def runs(table: str, *, quick: bool = False, folder: Path = FOLDER) -> list[Mapping[str, object]]:
    """Return the stored runs of a table, the newest first, without partial runs and other versions of the format."""
    found: list[Mapping[str, object]] = []
    for path in sorted(folder.glob(f"{table}{'-quick' if quick else ''}-[0-9]*.json"), reverse=True):
        run = json.loads(path.read_text(encoding="utf-8"))
        if run.get("version") == VERSION and run["table"] == table and not run.get("partial"):
            found.append({**run, "file": path.name})
    return found


def folder_of_results(path: str) -> Path:
    """Return the folder of results for an argument of a command.  Raises ArgumentTypeError if it does not exist."""
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
    """The version of the server that :mod:`epochal.chaos.servers` starts; that of another server is not known."""
    if os.environ.get(address) or chosen() != "embedded":
        return "not embedded"
    return os.environ.get(version, usual)


def file_system(path: Path) -> str:
    """Return the type of the folder's file system; empty if it is not known."""
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
