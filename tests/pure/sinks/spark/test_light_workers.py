"""What a task of ours makes its Python worker load: nothing of the driver's part, and no pandas, which is 0.2 s."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import epochal
from epochal.chaos.job import workers
from epochal.coordinator.environment.lazy import when_asked
from epochal.sinks import postgres
from epochal.sinks.kafka.rows import HASH, KEPT, MET
from epochal.sinks.spark.workers import answer, large_binary, of_bytes

VALUES = {
    pa.bool_(): True,
    pa.int16(): 1,
    pa.int32(): 1,
    pa.int64(): 1,
    pa.float32(): 0.5,
    pa.float64(): 0.5,
    pa.string(): "é",
    pa.large_string(): "é",
    pa.binary(): b"x",
    pa.large_binary(): b"x",
    pa.date32(): dt.date(2026, 1, 1),
    pa.timestamp("us"): dt.datetime(2026, 1, 1),
    pa.timestamp("us", "UTC"): dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
    pa.decimal128(20, 3): Decimal("1.250"),
}
POSTGRES = """
from epochal.sinks.postgres import binary, session, write
for batch in batches:
    for column in batch.columns:
        assert not binary.count_invalid_text(column)
    assert binary.rows(batch.columns, (1, 2))
"""
KAFKA = """
from epochal.sinks.kafka import encode, produce
evaluation = produce.Evaluation(batches)
for rows in evaluation:
    pass
assert evaluation.digest.rows == 2
"""
CHECK = """
from epochal.sinks.kafka.batches import frame
from epochal.sinks.spark import executors
[asked] = executors._ask(["numpy"], None, frame.lacking, batches)
"""
READ = """
import sys, pyarrow as pa
batches = pa.ipc.open_stream(pa.OSFile(sys.argv[1]))
"""
LOADED = """
print(*sorted(n for n in sys.modules if n.split(".")[0] in ("pandas", "pyspark") or n.startswith("epochal.")))
"""


def loaded(path: Path, code: str, columns: dict[str, pa.Array]) -> set[str]:
    """Modules that a process has once ``code`` has done its work with these columns."""
    batch = pa.RecordBatch.from_pydict(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
    whole = READ + code + LOADED
    done = subprocess.run([sys.executable, "-c", whole, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def both(value: object, kind: pa.DataType) -> pa.Array:
    return pa.array([value, None], kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "columns"),
    [
        pytest.param(POSTGRES, {str(kind): both(value, kind) for kind, value in VALUES.items()}, id="postgres"),
        pytest.param(
            KAFKA,
            {
                "key": both(b"k", pa.binary()),
                "value": both(b"v", pa.binary()),
                HASH: pa.array([1, -1], pa.int64()),
                KEPT: pa.array([True, True]),
                MET: both(None, pa.struct({"number": pa.int32(), "shown": pa.string()})),
            },
            id="kafka",
        ),
        pytest.param(CHECK, {"id": pa.array([1, 2])}, id="the check of the executors"),
    ],
)
def test_a_worker_loads_no_pandas_and_nothing_of_the_driver(
    code: str, columns: dict[str, pa.Array], tmp_path: Path
) -> None:
    found = loaded(tmp_path / "rows", code, columns)
    assert "epochal.sinks.spark.workers" in found
    of_the_driver = {"pandas", "pyspark", "epochal.coordinator.query.pipeline", "epochal.coordinator.model.events"}
    assert not [name for name in found if name in of_the_driver or name.endswith(".sink")]


def test_an_answer_is_one_row_of_texts() -> None:
    made = answer(vote="é" * 3, other="")
    made.validate(full=True)
    assert made.schema == pa.schema({"vote": pa.string(), "other": pa.string()})
    assert made.to_pylist() == [{"vote": "ééé", "other": ""}]


def test_values_of_their_bytes() -> None:
    assert of_bytes(pa.int32(), b"\xff" * 8).equals(pa.scalar(-1, pa.int32()))
    assert of_bytes(pa.bool_(), bytes(8)).equals(pa.scalar(False))
    assert large_binary(b"ab").equals(pa.scalar(b"ab", pa.large_binary()))


def test_names_of_a_package_are_those_it_lists_and_no_others() -> None:
    for package in (epochal, postgres):
        assert set(package.__all__) <= set(dir(package))
        for name in package.__all__:
            assert getattr(package, name) is getattr(package, name)
        with pytest.raises(AttributeError, match=rf"module '{package.__name__}' has no attribute 'nothing'"):
            _ = package.nothing


def test_a_name_is_asked_for_once() -> None:
    package = {"__name__": "ours", "__all__": ["own"], "own": 1}
    get, names = when_asked(package, {"dumps": "json", "decoder": "json.decoder"})
    assert (get("dumps"), get("decoder")) == (json.dumps, json.decoder)
    assert (package["dumps"], package["decoder"]) == (json.dumps, json.decoder)
    assert names() == ["decoder", "dumps", "own"]
    with pytest.raises(AttributeError, match="module 'ours' has no attribute 'loads'"):
        get("loads")


def test_the_sinks_are_there_once_the_package_is_imported() -> None:
    code = "import epochal; print(epochal.sinks.MemorySink.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "MemorySink\n", done.stderr


def test_the_kits_workers_have_loaded_what_tasks_import() -> None:
    """Packages alone would be loaded without the modules that a task asks them for."""
    code = POSTGRES.partition("for")[0] + KAFKA.partition("evaluation")[0]
    asked = re.findall(r"from (\S+) import (.+)", code)
    assert {f"{package}.{name}" for package, names in asked for name in names.split(", ")} <= {*workers.NEEDED}
