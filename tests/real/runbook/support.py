"""A corner of docs/runbook.md: its symptom is produced for real, its commands are run as they stand there."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from epochal import Pipeline
from tests.real.coordinator.console.support import Console
from tests.real.coordinator.query.support import BatchFunction
from tests.real.sinks.kafka.support import read_topic
from tests.real.sinks.postgres.support import observe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs" / "runbook.md"
TIMEOUT_S = 180


def section(title: str) -> str:
    """The part of the page below this heading."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def blocks(title: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(title), flags=re.MULTILINE | re.DOTALL)


def symptoms(title: str, number: int = 0) -> list[re.Pattern[str]]:
    """The lines of the text block of that number; `…` stands for what differs."""
    lines = blocks(title, "text")[number].splitlines()
    return [re.compile(".*".join(map(re.escape, line.strip().split("…"))), re.DOTALL) for line in lines]


class Corner(Console):
    """One job with three sinks, that gets into a corner and out of it."""

    def __init__(self, spark: SparkSession, folder: Path, dsn: str, bootstrap: str, topic: str, title: str) -> None:
        super().__init__(spark, folder, dsn, bootstrap, topic)
        self.title = title
        self.edit("sinks=sinks", "sinks=sinks, retry=epochal.Retry(attempts=3, first=0.01, most=0.02)")

    def made(self) -> Pipeline:
        """What the job's code says now."""
        found = runpy.run_path(str(self.file))["pipeline"]()
        assert isinstance(found, Pipeline)
        return found

    def edit(self, old: str, new: str) -> None:
        """Somebody changes the job's code."""
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def fails(self, number: int = 0, title: str = "", function: BatchFunction | None = None) -> str:
        """A start of the query ends as the text block of that number says."""
        with pytest.raises(StreamingQueryException) as raised:
            self.run(function or self.made(), self.rows())
        text = str(raised.value)
        assert all(pattern.search(text) for pattern in symptoms(title or self.title, number)), text
        return text

    def follow(self, number: int = 0, title: str = "", /, **values: object) -> list[str]:
        """Run the page's commands, the block of that number; what each line said.  `# 1` behind a line: its exit code.

        ``$CHECKPOINT`` is this job's; further names are given.
        """
        names = {"CHECKPOINT": self.checkpoint, **values}
        lines = [line for line in blocks(title or self.title, "sh")[number].splitlines() if line.strip()]
        return [self._run(line, {name: str(value) for name, value in names.items()}) for line in lines]

    def _run(self, line: str, names: dict[str, str]) -> str:
        command, _, code = line.partition("  # ")
        for name, value in names.items():
            command = command.replace(f"${name}", value)
        assert "$" not in command, f"{command}: a name is not given"
        words = shlex.split(command)
        if words[0] == "epochal":
            return self.command(words[1:], int(code or 0))
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == int(code or 0), (command, done.stdout, done.stderr)
        return done.stdout

    def shown(self) -> dict[str, list[int]]:  # type: ignore[override]
        """The ids that a reader of each sink sees."""
        records = [record.value for record in read_topic(self.bootstrap, self.topic)]
        return {
            "table": sorted(int(row[0]) for row in observe(self.dsn, "SELECT id FROM rows")),
            "topic": sorted(int(found[1]) for value in records if (found := re.search(rb'"id":(\d+)', value or b""))),
            "lake": sorted(
                row.id for row in self.spark.read.format("delta").load(str(self.lake)).select("id").collect()
            ),
        }

    def converges(self, **ids: list[int]) -> None:
        """One more epoch without trouble; each sink shows just these, and nothing is left that is wrong."""
        self.go()
        assert self.shown() == ids
        self.command(["verify", str(self.checkpoint)])
