"""The program in Flink's own environment.  It runs one job per line of its input, and answers with a line of JSON.

It imports nothing of the project, and Flink's package only when it runs.  A job copies ``k`` and ``v`` from a folder of
Parquet files to a Kafka topic, or reads them only.  Only Flink's own code handles rows; no row comes to Python.

Flink itself says how long a job took, in the archive for its history server: the time from RUNNING to FINISHED.  With
the guarantee exactly-once, the last transaction is committed by then, because a bounded job ends with a checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PARALLELISM = 2
LIMIT_S = 840
ARCHIVED_S = 60
TRANSACTION_MS = 600_000  # Flink's default of one hour is more than a broker allows
SETTINGS = {
    "parallelism.default": str(PARALLELISM),
    "taskmanager.numberOfTaskSlots": str(PARALLELISM),
    "execution.checkpointing.interval": "1 s",
    "pipeline.object-reuse": "true",
    "restart-strategy.type": "none",
}
# Large batches cost client and broker less than the default of 16 KB.  The acknowledgements stay the same.
PRODUCER = {"acks": "all", "batch.size": str(2**20), "linger.ms": "20", "buffer.memory": str(2**27)}
SOURCE = "CREATE TABLE source (k STRING, v STRING) WITH {}"
TARGET = "CREATE TABLE target (k STRING, v STRING) WITH {}"
COPY = "INSERT INTO target SELECT k, v FROM source"


def main() -> None:
    """Run jobs in the current folder until the input ends.  The arguments are more jars that Flink needs."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Flink's JVM also prints to standard output, which must not be mixed with the answers
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(run(asked, [Path(jar) for jar in sys.argv[1:]])), file=answers, flush=True)


def run(asked: Mapping[str, str | None], jars: list[Path]) -> Mapping[str, object]:
    """Run one job.

    ``asked`` has the folder ``source``, and ``bootstrap``, ``topic`` and ``guarantee``, which are None to read only.
    """
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    work = Path(tempfile.mkdtemp(dir=Path.cwd()))
    configuration = Configuration()
    for name, value in {**SETTINGS, **places(work, jars)}.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    tables = TableEnvironment.create(settings)
    tables.execute_sql(SOURCE.format(options(source(str(asked["source"])))))
    tables.execute_sql(TARGET.format(options(target(asked["bootstrap"], asked["topic"], asked["guarantee"]))))
    inserted = tables.execute_sql(COPY)
    inserted.wait(LIMIT_S * 1000)
    return told(archived(work, ARCHIVED_S))


def places(work: Path, jars: list[Path]) -> dict[str, str]:
    return {
        "execution.checkpointing.dir": (work / "checkpoints").as_uri(),
        "jobmanager.archive.fs.dir": archive(work).as_uri(),
        "pipeline.jars": ";".join(jar.as_uri() for jar in jars),
    }


def source(folder: str) -> dict[str, str]:
    return {"connector": "filesystem", "path": Path(folder).as_uri(), "format": "parquet"}


def target(bootstrap: str | None, topic: str | None, guarantee: str | None) -> dict[str, str]:
    if bootstrap is None or topic is None or guarantee is None:
        return {"connector": "blackhole"}
    raw = {"key.format": "raw", "key.fields": "k", "value.format": "raw", "value.fields-include": "EXCEPT_KEY"}
    producer = dict(PRODUCER)
    chosen = {"connector": "kafka", "topic": topic, "sink.delivery-guarantee": guarantee}
    if guarantee == "exactly-once":
        chosen["sink.transactional-id-prefix"] = topic
        producer["transaction.timeout.ms"] = str(TRANSACTION_MS)
    producer["bootstrap.servers"] = bootstrap
    return {**chosen, **raw, **{f"properties.{name}": value for name, value in producer.items()}}


def options(named: Mapping[str, str]) -> str:
    """Return the options as SQL text."""
    quoted = {name: value.replace("'", "''") for name, value in named.items()}
    return "(" + ", ".join(f"'{name}' = '{value}'" for name, value in quoted.items()) + ")"


# --- what Flink says about a job that has ended -------------------------------------------------


def archive(work: Path) -> Path:
    return work / "archive"


def archived(work: Path, limit: float) -> dict[str, Any]:
    """Return the archive as path -> page.  It is complete when it has the summary, which Flink writes last."""
    deadline = time.monotonic() + limit
    while not any(archive(work).rglob("application-summary")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Flink wrote no archive of its job into {archive(work)} within {limit} s")
        time.sleep(0.05)
    [job] = archive(work).rglob("jobs/*")
    return {page["path"]: json.loads(page["json"]) for page in json.loads(job.read_text())["archive"]}


def told(pages: Mapping[str, Any]) -> dict[str, object]:
    """Return the answer: seconds from RUNNING to FINISHED, and the number of completed checkpoints."""
    [job] = _pages(pages, 3)
    [checkpoints] = _pages(pages, 4, "checkpoints")
    if job["state"] != "FINISHED":
        raise RuntimeError(f"the job ended as {job['state']}")
    at = job["timestamps"]
    return {"seconds": (at["FINISHED"] - at["RUNNING"]) / 1000, "checkpoints": checkpoints["counts"]["completed"]}


def _pages(pages: Mapping[str, Any], parts: int, last: str | None = None) -> Iterator[Any]:
    """The pages with so many parts in their paths: ``/jobs/ID`` has three, ``/jobs/ID/checkpoints`` four."""
    for path, page in pages.items():
        found = path.split("/")
        if len(found) == parts and found[1] == "jobs" and (found[-1] == last if last else found[-1] != "overview"):
            yield page


if __name__ == "__main__":
    main()
