"""The commands that show the results of a demo whose servers were kept, and that stop the servers."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from epochal.chaos.demo.data import KEY
from epochal.chaos.demo.jobs import Settings
from epochal.chaos.servers.postgres import binaries
from epochal.coordinator.environment.versions import POSTGRES

DECISIONS = "select position, epoch, row_count, committed_at from epochal.epochs order by position desc limit 5"


def look(settings: Settings) -> list[str]:
    """Return commands that count all rows and the different rows of each sink; those that need no tool come first."""
    count = f"select count(*), count(distinct ({', '.join(KEY)})) from {settings.table}"
    return [
        _python(f'import psycopg; print(psycopg.connect("{settings.dsn}").execute("{count}").fetchone())'),
        _python(
            "from epochal.chaos.demo.readers import committed_records as read; "
            f'rows = read("{settings.bootstrap}", "{settings.topic}"); '
            "print(len(rows), len({row.value() for row in rows}))"
        ),
        _python(
            # Not to_pandas(): its Arrow threads call back into Python, which aborts a process that ends at once.
            "from deltalake import DeltaTable; import pandas; "
            f'rows = pandas.read_parquet(DeltaTable("{settings.lake}").file_uris()); '
            f"print(len(rows), len(rows.drop_duplicates({list(KEY)})))".replace("'", '"')
        ),
        *(f"{psql} {settings.dsn} -c {shlex.quote(query)}" for psql in _psql() for query in (count, DECISIONS)),
        *(
            f"{kcat} -b {settings.bootstrap} -t {settings.topic} -C -e -q -X isolation.level=read_committed | wc -l"
            for kcat in _found("kcat")
        ),
    ]


def stop(pids: Sequence[int], folder: Path) -> str:
    """Return the command that ends the servers and removes everything."""
    return f"kill {' '.join(map(str, pids))}; sleep 10; rm -r {folder}"


def _python(code: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"


def _psql() -> list[str]:
    """The machine's psql, else the one of the embedded server."""
    beside = binaries(POSTGRES[-1]) / "psql"
    return _found("psql") or ([str(beside)] if beside.is_file() else [])


def _found(tool: str) -> list[str]:
    return [tool] if shutil.which(tool) else []
