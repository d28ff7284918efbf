"""Where the daemon of the kit's drivers finds pyspark."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from epochal.chaos.job import workers

HOME = Path(pyspark.__file__).parent


def test_the_archives_of_pyspark_leave_the_path_and_no_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "mine.zip"
    mine.touch()
    archives = [str(path) for path in sorted((HOME / "python" / "lib").glob("*.zip"))]
    assert archives
    monkeypatch.setattr(sys, "path", ["", str(mine), *archives, *sys.path])
    kept = [entry for entry in sys.path if entry not in archives]
    workers.leave_archives()
    assert sys.path == kept


def test_they_stay_where_nothing_else_has_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    archives = [str(path) for path in sorted((HOME / "python" / "lib").glob("*.zip"))]
    monkeypatch.setattr(sys, "path", list(archives))
    workers.leave_archives()
    assert sys.path == archives
