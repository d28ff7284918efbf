"""The targets of the consistency table: Epochal's pipelines, and each peer as a target of the chaos kit.

A peer is the same function that the other tables measure.  It gets the kit's rows through :func:`rows`, and clients
that use neither Spark nor Epochal read what it wrote.  Each access to a name such as ``benchmarks.targets:spark_jdbc``
makes a new function from the environment that :mod:`epochal.chaos.campaign.bench` sets for every round.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import names
from benchmarks.peers import delta, kafka, postgres
from epochal.chaos.campaign import own
from epochal.chaos.campaign.bench import FOLDER, KAFKA, POSTGRES
from epochal.chaos.job.moments import Moments
from epochal.chaos.job.targets import RUN, BatchFunction
from epochal.chaos.strike.strikes import SERVERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Target:
    """A target of the table.

    ``outputs``: the kit's name of an output -> its job in the table.  ``moments`` is set if the target is a pipeline of
    ours.  ``before`` creates what a peer needs.
    """

    named: str
    outputs: Mapping[str, str]
    servers: Sequence[str] = ()
    workload: str = "rows"
    moments: Moments | None = None
    readers: Sequence[str] = ()
    source: str = ""
    before: Callable[[], None] = lambda: None


# --- peers ------------------------------------------------------------------------------------------


def rows(spark: SparkSession, fed: DataFrame) -> DataFrame:  # noqa: ARG001
    """Return the kit's rows as rows of the benchmarks: (id, k, v, x)."""
    value = "to_json(named_struct('id', id, 'attempt', attempt)) AS v"
    return fed.selectExpr("id", "attempt AS k", value, "cast(n AS double) AS x")


@dataclass(frozen=True)
class Peer:
    """A peer; ``kind`` is the kind of system that it writes to."""

    job: str
    kind: str
    make: Callable[[], BatchFunction]
    before: Callable[[], None] = lambda: None


def _dsn() -> str:
    return os.environ[POSTGRES]


def _jdbc(**options: str) -> str:
    user, _, place = _dsn().removeprefix("postgresql://").partition("@")
    more = "".join(f"&{key}={value}" for key, value in options.items())
    return f"jdbc:postgresql://{place}?user={user}{more}"


def _name() -> str:
    return os.environ[RUN].replace("-", "_")


def _table() -> None:
    postgres.create(_dsn(), _name())


def _folder() -> str:
    return f"{os.environ[FOLDER]}/{_name()}"


def _bootstrap() -> tuple[str, str]:
    return os.environ[KAFKA], os.environ[RUN]


PEERS: Mapping[str, Peer] = {
    "spark_jdbc": Peer(names.JDBC, "postgres", lambda: postgres.jdbc(_jdbc(), _name()), _table),
    "spark_jdbc_rewritten": Peer(
        names.JDBC_REWRITTEN,
        "postgres",
        lambda: postgres.jdbc(_jdbc(reWriteBatchedInserts="true"), _name()),
        _table,
    ),
    "psycopg_copy": Peer(names.PSYCOPG, "postgres", lambda: postgres.copy(_dsn(), _name()), _table),
    "spark_kafka": Peer(names.SPARK_KAFKA, "kafka", lambda: kafka.spark(*_bootstrap())),
    "spark_kafka_tuned": Peer(names.SPARK_KAFKA_TUNED, "kafka", lambda: kafka.spark(*_bootstrap(), tuned=True)),
    "confluent": Peer(names.CONFLUENT, "kafka", lambda: kafka.confluent(*_bootstrap())),
    "delta_append": Peer(names.DELTA_APPEND, "delta", lambda: delta.spark(_folder())),
    "delta_txn": Peer(names.DELTA_TXN, "delta", lambda: delta.spark(_folder(), app=_name())),
    "delta_rs": Peer(names.DELTA_RS, "delta", lambda: delta.delta_rs(_folder())),
}


def __getattr__(name: str) -> Any:
    if name in PEERS:
        return PEERS[name].make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# --- readers of what peers wrote --------------------------------------------------------------------


def read_postgres() -> list[dict[str, Any]]:
    import psycopg

    with psycopg.connect(_dsn(), connect_timeout=30) as connection:
        found = connection.execute(f"SELECT id, k FROM {_name()}".encode()).fetchall()
    return [{"id": identity, "attempt": k} for identity, k in found]


def read_kafka() -> list[dict[str, Any]]:
    """Return the committed records.  (Peers have no transactions, so these are all records.)"""
    from epochal.chaos.demo.readers import committed_records

    found: list[dict[str, Any]] = []
    for record in committed_records(*_bootstrap()):
        value = record.value()
        assert value is not None
        found.append(json.loads(value))
    return found


def read_delta() -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    found = DeltaTable(_folder()).to_pyarrow_table(columns=["id", "k"]).to_pylist()
    return [{"id": row["id"], "attempt": row["k"]} for row in found]


def _of_peer(name: str, peer: Peer) -> Target:
    return Target(
        f"{__name__}:{name}",
        {peer.kind: peer.job},
        servers=[peer.kind] if peer.kind in SERVERS else [],
        readers=[f"{peer.kind}={__name__}:read_{peer.kind}"],
        source=f"{__name__}:rows",
        before=peer.before,
    )


# --- ours -------------------------------------------------------------------------------------------

PIPELINES: Mapping[str, Mapping[str, str]] = {  # a name in epochal.chaos.campaign.own -> sink -> its job
    "pipeline": {
        "postgres": names.of("postgres"),
        "kafka": names.of("kafka"),
        "delta": names.of("delta"),
    },
    "idempotent": {
        "postgres": f"{names.OURS} postgres, idempotent",
        "kafka": f"{names.OURS} kafka, idempotent",
        "delta": f"{names.OURS} delta, idempotent",
    },
    "upsert": {
        "postgres": f"{names.OURS} postgres, upsert",
        "kafka": f"{names.OURS} kafka, tombstones",
        "delta": f"{names.OURS} delta, merge",
    },
    "plain": {
        "postgres": f"{names.OURS} postgres, plain table",
        "kafka": f"{names.OURS} kafka, two slots",
    },
    "overwrite": {
        "delta": f"{names.OURS} delta, overwrite",
        "mirror": f"{names.OURS} delta, overwrite, the second",
    },
}


def _of_ours(name: str, outputs: Mapping[str, str]) -> Target:
    one = own.OWN[name]
    return Target(own.target(name), outputs, servers=one.servers, workload=one.workload, moments=one.moments)


TARGETS: Mapping[str, Target] = {
    **{name: _of_ours(name, outputs) for name, outputs in PIPELINES.items()},
    **{name: _of_peer(name, peer) for name, peer in PEERS.items()},
}
"""Name -> target.  A part of the table is requested by these names."""
