"""Lost answers, cuts, latency and half-open connections, through a real proxy."""

from __future__ import annotations

import dataclasses

import pytest

from epochal.chaos.servers.toxiproxy import Proxy
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.epoch import Committable
from epochal.coordinator.model.errors import OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import Point
from epochal.sinks.conditions import marker_of
from epochal.sinks.postgres import PostgresSink
from epochal.sinks.postgres.write import write_partition
from epochal.sinks.protocol import CommitOutcome
from tests.real.sinks.postgres import support
from tests.real.sinks.postgres.support import (
    HASTY,
    ONE,
    PATIENT,
    QUERY,
    TWO,
    batches,
    epoch,
    ready,
    set_limits,
    stored,
    task,
    visible,
    voted,
)


@pytest.fixture
def sink(pg_database: str, proxied_dsn: str) -> PostgresSink:
    """A sink that reaches its server through the proxy only; everything is made already."""
    ready(pg_database)
    made = support.sink(proxied_dsn)
    made.look(QUERY)
    return made


@pytest.fixture
def vote(sink: PostgresSink, pg_database: str) -> Committable:  # noqa: ARG001
    return voted([write_partition(task(pg_database), batches([1, 2]))], epoch())


class Strike:
    """Does something to the link of a sink at one point, once.  From then on the sink gives up soon."""

    def __init__(self, sink: PostgresSink, proxy: Proxy, point: Point, fault: str) -> None:
        self._limits = sink._core.limits
        self._proxy, self._point, self._fault = proxy, point, fault
        self.struck = False

    def __call__(self, point: Point, _sink: str, _epoch: int) -> None:
        if point is self._point and not self.struck:
            self.struck = True
            set_limits(self._limits, **HASTY)
            getattr(self._proxy, self._fault)()

    def heal(self) -> None:
        """Undo the fault; the sink is patient again."""
        self._proxy.clear()
        set_limits(self._limits, **dataclasses.asdict(PATIENT))


@pytest.mark.parametrize("fault", ["lose_answer", "half_open"])
@pytest.mark.remedy(
    "… did not answer COMMIT: …",
    "restart the query if it has ended: Epochal reads the marker to learn the outcome",
)
def test_the_answer_to_commit_is_lost_for_good_and_asked_later(
    sink: PostgresSink, vote: Committable, postgres_proxy: Proxy, pg_database: str, fault: str
) -> None:
    strike = Strike(sink, postgres_proxy, Point.BEFORE_PUBLISH, fault)
    with failpoints.handler(strike), pytest.raises(OutcomeUnknown, match="did not answer COMMIT"):
        sink.commit(vote, ONE)
    assert strike.struck
    assert visible(pg_database) == [1, 2]
    strike.heal()
    assert support.sink(pg_database).look(QUERY).marker == marker_of(vote)
    assert sink.commit(vote, ONE) is CommitOutcome.ALREADY_COMMITTED
    assert visible(pg_database) == [1, 2]


def test_the_answer_to_commit_is_lost_and_the_marker_answers(
    sink: PostgresSink, vote: Committable, postgres_proxy: Proxy, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, strike = sink._core.close, Strike(sink, postgres_proxy, Point.BEFORE_PUBLISH, "lose_answer")

    def close_and_heal() -> None:
        close()
        strike.heal()

    monkeypatch.setattr(sink._core, "close", close_and_heal)
    with failpoints.handler(strike):
        assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == [1, 2]


def test_the_link_is_cut_before_commit(
    sink: PostgresSink, vote: Committable, postgres_proxy: Proxy, pg_database: str
) -> None:
    strike = Strike(sink, postgres_proxy, Point.BEFORE_PUBLISH, "cut")
    with failpoints.handler(strike), pytest.raises(OutcomeUnknown):
        sink.commit(vote, ONE)
    strike.heal()
    assert visible(pg_database) == []
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    assert visible(pg_database) == [1, 2]


def test_a_half_open_link_at_any_verb_ends_within_its_limit(
    sink: PostgresSink, vote: Committable, postgres_proxy: Proxy
) -> None:
    postgres_proxy.half_open()
    set_limits(sink._core.limits, **HASTY)
    for verb in (
        lambda: sink.look(QUERY),
        lambda: sink.look(QUERY, by=ONE),
        lambda: sink.commit(vote, ONE),
        lambda: sink.abort(QUERY, ONE),
        lambda: sink.fence(QUERY, TWO),
    ):
        with pytest.raises(SinkUnavailable):
            verb()


@pytest.mark.wide
def test_a_half_open_link_under_a_copy_ends_within_its_limit(
    proxied_dsn: str,
    postgres_proxy: Proxy,
    pg_database: str,
) -> None:
    def strike(point: Point, _sink: str, _epoch: int) -> None:
        if point is Point.IN_WRITE:
            postgres_proxy.half_open()
            set_limits(one.limits, **HASTY)

    ready(pg_database)
    one = task(proxied_dsn, limits=dataclasses.replace(PATIENT, bulk=2.0))
    with failpoints.handler(strike), pytest.raises(SinkUnavailable):
        write_partition(one, batches([1]))


def test_latency_changes_nothing(
    sink: PostgresSink, vote: Committable, postgres_proxy: Proxy, pg_database: str
) -> None:
    postgres_proxy.latency(150, 50)
    assert sink.commit(vote, ONE) is CommitOutcome.COMMITTED
    sink.fence(QUERY, TWO)
    sink.abort(QUERY, TWO)
    assert stored(pg_database) == [(1, 1), (1, 2)]
