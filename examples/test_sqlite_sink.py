"""Prove ``sqlite_sink.py`` by the contract and by schedules of faults.  Run ``pytest --epochal-chaos examples``."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_sink import SqliteSink

from epochal.chaos.contract import SinkContract, SinkHarness


def visible(path, app):
    """Return the rows that an independent reader sees."""
    with closing(sqlite3.connect(path)) as reader:
        return [json.loads(row) for (row,) in reader.execute("SELECT row FROM shown WHERE app = ?", (app,))]


class Harness(SinkHarness):
    def __init__(self, path):
        self.path = path

    def named(self, name):
        return SqliteSink(self.path, name)

    def visible(self):
        return [(row["id"], row["attempt"]) for row in visible(self.path, self.app)]

    def restart_server(self):
        """There is none: whoever opens the file next finds what is durable."""

    def source(self):
        return (
            f"import pathlib; sys.path.insert(0, {str(Path(__file__).parent)!r}); import sqlite_sink\n"
            f"sink = sqlite_sink.SqliteSink(pathlib.Path({str(self.path)!r}), name='out')"
        )


class TestSqliteSink(SinkContract):
    @pytest.fixture
    def harness(self, tmp_path):
        return Harness(tmp_path / "out.db")


def test_it_survives(chaos, tmp_path):
    def file(target):
        return tmp_path / f"{target}.db"

    survival = chaos.survives(
        sinks=lambda target: [SqliteSink(file(target), "out", timeout=0)],
        read=lambda target: {"out": visible(file(target), target.app)},
    )
    print(survival)


@pytest.mark.chaos_schedule("pairs", at_most=100, seed=1)
def test_it_survives_pairs(chaos, tmp_path):
    test_it_survives(chaos, tmp_path)
