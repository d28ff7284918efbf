"""How a server is reached: TLS with a certificate that is verified, service file, environment, password file.

Spark's workers were started before a test changes the environment: what they know of it they were sent.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import SparkSession

import epochal
from epochal.checkpoints.postgres import PostgresLog
from epochal.coordinator.model.errors import EpochalError, Misconfigured, SinkUnavailable
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.postgres.address import Address, Limits
from epochal.sinks.postgres.client import open_session
from tests.real.sinks.plans import plans
from tests.real.sinks.postgres.secured import SecuredPostgres
from tests.real.sinks.postgres.support import PASSWORD, QUERY, SCHEMA, observe

ENVIRONMENT = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
}


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[SecuredPostgres]:
    with SecuredPostgres(spark) as started:
        yield started


@pytest.fixture
def database(server: SecuredPostgres) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    server.database_of_user(name)
    yield name
    server.drop_database(name)


@pytest.fixture
def keywords(server: SecuredPostgres, database: str) -> Mapping[str, str]:
    return server.keywords(database)


@pytest.fixture(autouse=True)
def _nothing_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings and no files of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("PG") and name != "PG_BIN"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def given_whole(keywords: Mapping[str, str], _folder: Path, _env: pytest.MonkeyPatch) -> str:
    return make_conninfo(**keywords)


def given_by_environment(keywords: Mapping[str, str], _folder: Path, env: pytest.MonkeyPatch) -> str:
    for name, value in keywords.items():
        env.setenv(ENVIRONMENT[name], value)
    return ""


def given_by_service(keywords: Mapping[str, str], folder: Path, env: pytest.MonkeyPatch) -> str:
    """All but the password, which a file has."""
    settings = {name: value for name, value in keywords.items() if name != "password"}
    services, passwords = folder / "services", folder / "passwords"
    services.write_text("[flights]\n" + "".join(f"{name}={value}\n" for name, value in settings.items()))
    passwords.touch(mode=0o600)
    passwords.write_text(f"{keywords['host']}:{keywords['port']}:*:{keywords['user']}:{keywords['password']}\n")
    env.setenv("PGSERVICEFILE", str(services))
    env.setenv("PGPASSFILE", str(passwords))
    return "service=flights"


WAYS = {"string": given_whole, "environment": given_by_environment, "service and password file": given_by_service}


@pytest.mark.wide
@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_is_written_over_verified_tls_and_no_secret_is_shown(
    server: SecuredPostgres,
    database: str,
    keywords: Mapping[str, str],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    way: str,
) -> None:
    settings = tmp_path / "settings"
    settings.mkdir()
    dsn = WAYS[way](keywords, settings, monkeypatch)
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"id": n, "attempt": "a"}) for n in range(20)]
    (tmp_path / "in" / "0.json").write_text("\n".join(lines))
    rows = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))
    log = PostgresLog(dsn, "flights")
    log.create()

    with caplog.at_level(logging.DEBUG):
        pipeline = epochal.Pipeline(app="flights", sinks=[PostgresSink(dsn, table="flights")], log=log)
        pipeline.create(SCHEMA)
        pipeline.check(rows)
        write = rows.writeStream.foreachBatch(pipeline).trigger(availableNow=True)
        query = write.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(150)
        assert query.exception() is None
        pipeline.close()
    seen = server.database_dsn(database)
    assert observe(seen, "SELECT count(*), count(DISTINCT id) FROM flights") == [(20, 20)]
    assert [type(entry.record).__name__ for entry in log.read()] == ["Fence", "Commit"]

    files = [path for path in tmp_path.rglob("*") if path.is_file() and settings not in path.parents]
    told = [path.read_bytes().decode(errors="replace") for path in files]
    executed = "\n".join(plans(spark))
    told += [executed, caplog.text, *capfd.readouterr(), str(pipeline.guarantee()), repr(pipeline), log.describe()]
    assert len(executed) > 1000
    assert [text for text in told if PASSWORD in text] == []
    kept = observe(seen, "SELECT record::text FROM epochal.log UNION ALL SELECT e::text FROM epochal.epochs e")
    assert [row for (row,) in kept if PASSWORD in row or PASSWORD.encode().hex() in row] == []


# --- what is refused ------------------------------------------------------------------------------


def refusals(dsn: str) -> Iterator[EpochalError]:
    """What a start says, and what the log says."""
    sink = PostgresSink(dsn, table="flights")
    for verb in (lambda: sink.check(QUERY, SCHEMA), PostgresLog(dsn, "flights", timeout=3).read):
        with pytest.raises(SinkUnavailable) as refused:
            verb()
        assert PASSWORD not in str(refused.value)
        yield refused.value


OF_TLS = pytest.mark.remedy(
    "cannot connect to …: …",
    "check that sslrootcert= is `system` or names the certificate of the authority that signed the server's, that"
    " host= is a name in the server's certificate",
)
OF_USERS = pytest.mark.remedy(
    "cannot connect to …: …",
    "correct user and password in the connection string, or admit them in the server's pg_hba.conf",
)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        pytest.param({"sslrootcert": "other"}, "certificate verify failed", marks=OF_TLS, id="another authority"),
        pytest.param({"sslrootcert": "/nowhere.pem"}, 'file "/nowhere.pem" does not exist', marks=OF_TLS, id="no file"),
        pytest.param({"host": "127.0.0.1"}, 'not match host name "127.0.0.1"', marks=OF_TLS, id="another host"),
        pytest.param({"sslmode": "disable"}, "no encryption", marks=OF_USERS, id="no TLS"),
        pytest.param({"password": f"not-{PASSWORD}"}, "password authentication failed", marks=OF_USERS, id="password"),
    ],
)
def test_what_does_not_verify_is_refused_at_start(
    server: SecuredPostgres, keywords: Mapping[str, str], changed: Mapping[str, str], told: str
) -> None:
    if changed.get("sslrootcert") == "other":
        changed = {"sslrootcert": str(server.other_authority)}
    dsn = make_conninfo(**{**keywords, **changed})
    of_sink, of_log = refusals(dsn)
    assert told in of_sink.what
    assert told in of_log.what
    assert ("check that sslrootcert=" in of_sink.help) is bool({"host", "sslrootcert"} & set(changed))
    corrected = PostgresSink(make_conninfo(**keywords), table="flights")
    corrected.create(QUERY, SCHEMA)
    corrected.check(QUERY, SCHEMA)
    corrected.close()


def test_a_server_without_tls_is_refused(pg_database: str) -> None:
    for error in refusals(f"{pg_database}?sslmode=verify-full&sslrootcert=system"):
        assert "server does not support SSL, but SSL was required" in error.what


def test_a_service_that_is_not_defined_is_named(keywords: Mapping[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    given_by_service(keywords, tmp_path, monkeypatch)
    of_sink, of_log = refusals("service=trains")
    assert "cannot connect to Postgres, service 'trains': " in of_sink.what
    assert 'definition of service "trains" not found' in of_sink.what
    assert "PGSERVICEFILE" in of_sink.help
    assert of_log.state == "postgres service 'trains', log 'flights'; it had no effect"


def test_a_server_of_the_environment_is_named_though_it_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATABASE", "seats")
    of_sink, of_log = refusals("")
    assert "cannot connect to Postgres at 127.0.0.1:1, database seats" in of_sink.what
    assert str(of_log.state).startswith("postgres:127.0.0.1:1/seats")


@pytest.mark.parametrize(
    "more", ["client_encoding=latin1", "options='-c client_encoding=latin1' client_encoding=''"], ids=["it", "option"]
)
def test_another_encoding_which_would_change_characters_is_refused(pg_database: str, more: str) -> None:
    parts: dict[str, Any] = conninfo_to_dict(pg_database)
    dsn = f"{make_conninfo(**parts)} {more}"
    sink = PostgresSink(dsn, table="flights")
    with pytest.raises(Misconfigured, match="client_encoding is LATIN1"):
        sink.create(QUERY, SCHEMA)


# --- what a task is sent --------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_what_another_environment_says_does_not_count(
    keywords: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    """Neither an address, under which another server would be written to, nor files that are not there."""
    first = open_session(Address(WAYS[way](keywords, tmp_path, monkeypatch)), "out", Limits())
    sent = first.address()
    with monkeypatch.context() as elsewhere:
        for name, value in {
            "PGHOSTADDR": "127.0.0.9",
            "PGHOST": "127.0.0.9",
            "PGPASSWORD": "another",
            "PGSSLROOTCERT": "/nowhere.pem",
            "PGSSLCERT": "/nowhere.pem",
            "PGSERVICEFILE": "/nowhere",
            "PGPASSFILE": "/nowhere",
        }.items():
            elsewhere.setenv(name, value)
        second = open_session(sent, "out", Limits())
    who = "SELECT current_user, current_database(), inet_server_port(), current_setting('application_name')"
    assert first.run(who) == second.run(who)
    for session in (first, second):
        session.close()


def test_tasks_are_sent_the_secret_that_holds_now(pg_database: str, spark: SparkSession) -> None:
    """A function is asked in every epoch, though a session is idle that was let in with the old secret."""
    from tests.real.sinks.postgres import support

    asked: list[str] = []

    def dsn() -> str:
        asked.append(f"secret-{len(asked)}")
        return pg_database.replace("postgres@", f"postgres:{asked[-1]}@")

    sink = PostgresSink(dsn, table="flights", name="out")
    sink.create(QUERY, SCHEMA)
    sink.look(QUERY)
    sink.fence(QUERY, support.ONE)
    before = len(asked)
    sink.prepare(support.epoch(), support.rows(spark, [1]), support.ONE)
    assert len(asked) == before + 1
    sink.close()
