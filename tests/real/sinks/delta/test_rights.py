"""A table that this process may read and not write is refused at the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from epochal.chaos.job import jvm
from epochal.chaos.servers.postgres import AS_MAPPED_USER
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.delta import DeltaSink
from epochal.sinks.delta.jvm import Table
from tests.real.sinks.delta.support import query

CHECK = """
import json, sys
from pyspark.sql.types import StructType
from epochal.chaos.servers.spark import spark_session
from epochal.coordinator.model.epoch import Query
from epochal.sinks.delta import DeltaSink
spark_session("local[1]", conf=json.loads(sys.argv[2]))
DeltaSink(sys.argv[1], name="out").check(Query("app", "q1", "r1", "file:/checkpoint"), StructType().add("id", "string"))
"""


@pytest.mark.remedy("this process may not write to the Delta table …", "give its user the right to make files there")
@pytest.mark.usefixtures("spark")
def test_a_table_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DeltaSink(str(tmp_path / "t"), name="out")
    sink.create(query("app"), StructType().add("id", "string"))
    monkeypatch.setattr(Table, "may_write", lambda _table, folder: folder == ".")
    with pytest.raises(Misconfigured, match="this process may not write to the Delta table") as refused:
        sink.check(query("app"), StructType().add("id", "string"))
    assert refused.value.state == "folders without write permission: ['_delta_log']"
    monkeypatch.undo()  # as if the right was given
    sink.check(query("app"), StructType().add("id", "string"))


@pytest.mark.wide
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("folder", [".", "_delta_log"])
def test_a_folder_without_write_permission_is_named(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "t"
    DeltaSink(str(path), name="out").create(query("app"), StructType().add("id", "string"))
    (path / folder).chmod(0o555)
    ordinary = AS_MAPPED_USER if os.geteuid() == 0 else ()  # root may write whatever the mode says
    command = [*ordinary, sys.executable, "-c", CHECK, str(path), json.dumps(jvm.short_lived())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    (path / folder).chmod(0o755)
    assert f"sink 'out': this process may not write to the Delta table {path}" in done.stderr, done.stderr[-3000:]
    assert f"folders without write permission: ['{folder}']" in done.stderr
