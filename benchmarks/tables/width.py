"""What wide rows cost: 1,500 columns, and a struct of 1,500 fields, beside Spark's own writers.

The columns are integers, because a row of Postgres must fit into a page of 8 kB.  The peers take the same rows: Spark's
``to_json`` and its Kafka sink, its JDBC writer, Delta's append, and Delta's own MERGE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import names, ours
from benchmarks.measuring import Measure, Ratio, ratio, turns
from benchmarks.results import Result
from benchmarks.world import World, new_name
from epochal.sinks import delta as d
from epochal.sinks import postgres as p

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from benchmarks.tables import Options
    from benchmarks.world import Write

COLUMNS = 1_500
ROWS = 1_000
EPOCHS = 2  # the last one counts
GOAL = "width"
TO_JSON, JDBC, APPEND, MERGE = "spark to_json, kafka", "spark jdbc", "delta append", "delta merge"
SORTED = {TO_JSON: f"{TO_JSON}, and {APPEND} of bad rows", JDBC: f"{JDBC}, and {APPEND} of bad rows"}
"""Peers of ``bad_rows=``: what a user writes by hand who sends bad rows elsewhere, with a condition."""

WRITES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {  # job -> kind of sink, peer, arguments of the sink
    "kafka": ("kafka", TO_JSON, {}),
    "postgres, append": ("postgres", JDBC, {}),
    "postgres, plain table": ("postgres", JDBC, {"mode": p.Plain()}),
    "postgres, upsert": ("postgres", JDBC, {"mode": p.Upsert(key="id")}),
    "postgres, evolution": ("postgres", JDBC, {"schema_evolution": True}),
    "delta, append": ("delta", APPEND, {}),
    "delta, merge": ("delta", MERGE, {"mode": d.Merge(key="id")}),
}
CHANGED = {"select": ["*"], "where": "id >= 0"}


def source(world: World, shape: str, width: int) -> Path:
    """Return a folder with ``EPOCHS`` epochs of ``ROWS`` rows, with two files each."""
    path = world.folder / f"{shape}-{width}"
    if not path.exists():
        texts = [f"CAST(id AS INT) + {n}" for n in range(width)]
        columns = [f"{text} AS c{n}" for n, text in enumerate(texts)]
        fields = ", ".join(f"'f{n}', {text} / 7D" for n, text in enumerate(texts))
        wanted = ["id", *(columns if shape == "columns" else [f"named_struct({fields}) AS s"])]
        for epoch in range(EPOCHS):
            rows = world.spark.range(epoch * ROWS, (epoch + 1) * ROWS, numPartitions=2).selectExpr(*wanted)
            rows.write.mode("append").parquet(str(path))
    return path


def peer(world: World, name: str, schema: StructType) -> Write:
    """Return Spark's own writer, with a new target."""
    for first, both in SORTED.items():
        if name == both:
            return _sorted(peer(world, first, schema), peer(world, APPEND, schema))
    if name == TO_JSON:
        return _to_json(world.kafka.bootstrap, world.topic())
    if name == JDBC:
        return _jdbc(world.jdbc(reWriteBatchedInserts="true"), world.named_table(new_name("peer")))
    path = str(world.new_folder(new_name("delta")))
    return _merged(world, path, schema) if name == MERGE else lambda df, _: _appended(df, path)


def _to_json(bootstrap: str, topic: str) -> Write:
    def write(df: DataFrame, _: int) -> None:
        writer = df.selectExpr("to_json(struct(*)) AS value").write.format("kafka").option("topic", topic)
        writer.option("kafka.bootstrap.servers", bootstrap).save()

    return write


def _jdbc(url: str, table: str) -> Write:
    def write(df: DataFrame, _: int) -> None:
        given = df.selectExpr("id", "to_json(s) AS s") if "s" in df.columns else df
        writer = given.write.format("jdbc").option("url", url).option("dbtable", table)
        writer.option("driver", "org.postgresql.Driver").mode("append").save()

    return write


def _sorted(write: Write, write_bad: Write) -> Write:
    def both(df: DataFrame, epoch: int) -> None:
        write(df.where("id >= 0"), epoch)
        write_bad(df.where("id < 0"), epoch)

    return both


def _appended(df: DataFrame, path: str) -> None:
    df.write.format("delta").mode("append").save(path)


def _merged(world: World, path: str, schema: StructType) -> Write:
    from delta.tables import DeltaTable

    DeltaTable.createIfNotExists(world.spark).location(path).addColumns(schema).execute()

    def write(df: DataFrame, _: int) -> None:
        table = DeltaTable.forPath(df.sparkSession, path).alias("shown")
        merge = table.merge(df.alias("new"), "shown.id = new.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    return write


def jobs(world: World, path: Path) -> tuple[dict[str, Callable[[], float]], dict[str, str]]:
    """Return the jobs, and job -> peer."""
    schema = world.spark.read.parquet(str(path)).schema
    found: dict[str, Callable[[], float]] = {}
    peers: dict[str, str] = {}

    def ours_of(job: str, kind: str, than: str, options: Mapping[str, Any], mode: str = "two-phase") -> None:
        def run() -> float:
            given = {**({"key": None, "value": None} if kind == "kafka" else {}), **options}
            if "bad_rows" in given:
                given["bad_rows"] = ours.sink(world, "delta", new_name("bad"))
            made = ours.pipeline(world, schema, kind, mode=mode, **{kind: given})  # type: ignore[arg-type]
            return world.epochs(path, made)[-1]

        found[f"{names.OURS} {job}"], peers[f"{names.OURS} {job}"] = run, than

    for name in (TO_JSON, JDBC, APPEND, MERGE, *SORTED.values()):
        found[name] = lambda name=name: world.epochs(path, peer(world, name, schema))[-1]  # type: ignore[misc]
    for job, (kind, than, options) in WRITES.items():
        ours_of(job, kind, than, options)
    for kind, than in (("kafka", TO_JSON), ("postgres", JDBC), ("delta", APPEND)):
        ours_of(f"{kind}, select and where", kind, than, CHANGED)
        ours_of(f"{kind}, idempotent", kind, than, {}, "idempotent")
        if kind != "delta":
            ours_of(f"{kind}, bad rows", kind, SORTED[than], {"bad_rows": True})
    return found, peers


def run(options: Options) -> Result:
    result = Result("width", options.rounds, options.quick)
    with World() as world:
        for shape in ("columns", "fields"):
            width = COLUMNS // 15 if options.quick else COLUMNS
            each, peers = jobs(world, source(world, shape, width))
            case = {shape: width, "rows": ROWS}
            taken = turns(each, options.rounds, case, "s", warm_up=options.warm_up, after=world.clear)
            result.add(taken, *_ratios(taken, peers))
    return result


def _ratios(taken: list[Measure], peers: Mapping[str, str]) -> list[Ratio]:
    return [ratio(taken, job, than, "s", GOAL) for job, than in peers.items()]
