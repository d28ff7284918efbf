"""A start has sinks of its own: what another start of the same pipeline does to its sinks changes nothing for it.

A pipeline copies the sinks that it was given for each start, each ``create``, each ``check`` and each operator action
(``Pipeline.new_sinks``), and closes the copies at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Actor, Committable, Decision, Json, Query
from epochal.coordinator.model.errors import EpochalError, SinkUnavailable
from epochal.coordinator.model.failpoints import Point
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks import DeltaSink, KafkaSink, PostgresSink
from epochal.sinks.delta import committing, gates
from epochal.sinks.delta.core import Core
from epochal.sinks.kafka import slots, topics
from epochal.sinks.kafka.topics import Topics
from epochal.sinks.protocol import Sink

SINKS: dict[str, Callable[[], Sink]] = {
    "delta": lambda: DeltaSink("/no/such/lake/t"),
    "kafka": lambda: KafkaSink("127.0.0.1:1", topic="t"),
    "postgres": lambda: PostgresSink("postgresql://127.0.0.1:1/db", table="t", connect_timeout=1.0),
}


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers name the topics, and then do not answer any more."""

    def gone(*_: object) -> Any:
        raise SinkUnavailable("gone", help="")

    monkeypatch.setattr(topics, "describe", lambda *_: Topics("cluster", {}, None))  # type: ignore[arg-type]
    monkeypatch.setattr(slots, "read_all", gone)


def look(sink: Any, app: str) -> None:
    """Look as a start does.  No server answers, but from now on the sink knows whose start it belongs to."""
    with contextlib.suppress(EpochalError, ImportError):
        sink.look(Query(app, "query", "run", "/checkpoint"))


def app_of(sink: Any) -> str:
    """The app under which prepare and commit would read and write; ``Misconfigured`` if it is "used before look"."""
    core = sink._core
    return str(core.seen()[0].app if isinstance(sink, KafkaSink) else core.looked())


@pytest.mark.parametrize("kind", SINKS)
def test_a_check_or_create_beside_a_running_query_takes_nothing_from_its_sinks(kind: str) -> None:
    pipeline = Pipeline(app="app", sinks=[SINKS[kind]()])
    [running], [checking] = pipeline.new_sinks(), pipeline.new_sinks()
    look(running, "app")
    checking.close()  # as Pipeline.check, create, and a start that is refused do at their end
    assert app_of(running) == "app"


@pytest.mark.parametrize("kind", SINKS)
def test_the_same_sink_in_pipelines_of_two_apps_is_a_sink_of_each(kind: str) -> None:
    given = SINKS[kind]()
    [one], [two] = (Pipeline(app=app, sinks=[given]).new_sinks() for app in ("one", "two"))
    look(one, "one")
    look(two, "two")
    assert (app_of(one), app_of(two)) == ("one", "two")


class FakeTransaction:
    """On a table that keeps the newest value of each transaction id."""

    exists = True

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids, self.version = ids, 7

    def version_of(self, identity: str) -> int | None:
        return self.ids.get(identity)

    def metadata(self) -> Json:
        return {"id": "1", "configuration": {}, "schemaString": '{"type":"struct","fields":[]}', "partitionColumns": []}

    def protocol(self) -> Json:
        return {}

    def read(self, path: str) -> str | None:  # noqa: ARG002
        return None

    def commit(self, actions: Iterable[Json], **_: object) -> None:
        self.ids |= {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}


def test_a_delta_marker_is_written_under_the_app_whose_fence_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look of the other app's start falls between the check of the fence and the write of rows and marker."""
    given = DeltaSink("/no/such/lake/t")
    [one], [two] = (Pipeline(app=app, sinks=[given]).new_sinks() for app in ("one", "two"))
    me = Actor(1, 5)
    ids = {"epochal:one:delta-t:generation": me.generation, "epochal:one:delta-t:token": me.token}
    monkeypatch.setattr(Core, "table", lambda _: None)
    monkeypatch.setattr(Core, "begin", lambda *_, **__: FakeTransaction(ids))
    monkeypatch.setattr(committing, "tidy", lambda *_: None)
    look(one, "one")
    decision = Decision("query", 0, me, "offsets")
    table = gates.fingerprint(FakeTransaction(ids).metadata(), {})
    payload: Json = {"table": table, "adds": [], "offsets": "", "watermark": None}
    with (
        failpoints.handler(lambda point, *_: look(two, "two") if point is Point.BEFORE_PUBLISH else None),
        contextlib.suppress(EpochalError),
    ):
        one.commit(Committable("delta-t", decision, 1, 0, payload), me)
    assert {name: value for name, value in ids.items() if name.endswith(":decision")} == {
        "epochal:one:delta-t:decision": decision.id
    }


def test_what_a_start_has_read_of_a_delta_table_is_not_believed_by_the_next() -> None:
    pipeline = Pipeline(app="app", sinks=[DeltaSink("/no/such/lake/t")])
    [first] = pipeline.new_sinks()
    first._core.seen = 20  # type: ignore[attr-defined]  # up to this version it has looked for a RESTORE
    first.close()
    [second] = pipeline.new_sinks()
    assert second._core.seen is None  # type: ignore[attr-defined]


def test_the_sinks_of_two_starts_share_no_connection() -> None:
    pipeline = Pipeline(app="app", sinks=[SINKS["postgres"]()])
    [first] = pipeline.new_sinks()
    first._core.connector._idle.append(object())  # type: ignore[attr-defined]
    [second] = pipeline.new_sinks()
    [third] = Pipeline(app="app", sinks=[first]).new_sinks()
    assert [sink._core.connector._idle for sink in (second, third)] == [[], []]  # type: ignore[attr-defined]


def test_the_next_start_asks_the_brokers_again_how_long_a_transaction_may_last() -> None:
    """What the operator raises after a ``CommitInDoubt`` counts from the next start on."""
    pipeline = Pipeline(app="app", sinks=[KafkaSink("127.0.0.1:1", topic="t")])
    [first] = pipeline.new_sinks()
    first._core.longest = 60.0  # type: ignore[attr-defined]
    first.close()
    [second] = pipeline.new_sinks()
    assert second._core.longest is None  # type: ignore[attr-defined]
