"""What a sink must do if an operator may write its marker (:class:`~epochal.sinks.protocol.MarkedSink`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.chaos.contract.harness import SinkHarness, query
from epochal.chaos.contract.sinks import ONE, TWO, Start
from epochal.coordinator.model.epoch import Actor, Marker
from epochal.coordinator.model.errors import Fenced, Misconfigured
from epochal.sinks.protocol import CommitOutcome, MarkedSink


def _marked(start: Start) -> MarkedSink:
    assert isinstance(start.sink, MarkedSink)
    return start.sink


def _other(start: Start) -> str:
    """A new name for the sink."""
    return f"{start.sink.name}-2"


class MarkedContract:
    """The suite for written markers.  Subclass it as ``Test...`` and define the fixture ``harness``."""

    @pytest.fixture
    def harness(self) -> SinkHarness:
        raise NotImplementedError("define the fixture `harness`: a new SinkHarness with an empty target")

    @pytest.fixture
    def one(self, harness: SinkHarness) -> Start:
        """The first start, which has committed one epoch."""
        sink = harness.sink()
        sink.create(query(harness.app), harness.schema)
        start = Start(harness, ONE, sink).fenced()
        start.show(["a"])
        return start

    def test_a_marker_is_written_under_the_fence_alone(self, harness: SinkHarness, one: Start) -> None:
        two, written = Start(harness, TWO).fenced(), Marker(7, 77)
        with pytest.raises(Fenced):
            _marked(one).mark(one.query, written, one.actor)
        assert two.look(final=True).marker != written
        _marked(two).mark(two.query, written, two.actor)
        _marked(two).mark(two.query, written, two.actor)  # repeated, as after a lost answer
        state = two.look(final=True)
        assert (state.marker, state.fence) == (written, two.actor)
        committable = two.prepare(["b"], 1, position=8)
        assert two.commit(committable) is CommitOutcome.COMMITTED
        assert harness.after(["a"], ["b"]) == sorted(key for key, _ in harness.visible())

    @pytest.mark.parametrize("dies", [False, True])
    def test_a_sink_goes_on_under_another_name(self, harness: SinkHarness, one: Start, dies: bool) -> None:
        before = one.look().marker
        here, there = (Start(harness, TWO, sink) for sink in _marked(one).renamed(_other(one)))
        assert (here.sink.name, there.sink.name) == (one.sink.name, _other(one))
        assert here.look().marker == before
        if not dies:
            here.fenced(), there.fenced()
        _rename(here.fenced(), there.fenced(), before)
        if dies:  # the rename is started again from the beginning, with new objects
            here, there = (Start(harness, TWO, sink) for sink in _marked(one).renamed(_other(one)))
            assert here.look().marker == before
            _rename(here.fenced(), there.fenced(), before)
        assert not _shows_an_epoch(harness)
        new = Start(harness, TWO, harness.named(_other(one)))
        assert new.look() == replace(there.look(), marker=before)
        new.show(["b"], 1)
        assert harness.after(["a"], ["b"]) == sorted(key for key, _ in harness.visible())

    def test_a_sink_without_a_marker_changes_its_name_too(self, harness: SinkHarness) -> None:
        sink = harness.sink()
        sink.create(query(harness.app), harness.schema)
        start = Start(harness, ONE, sink)
        here, there = (Start(harness, ONE, part) for part in _marked(start).renamed(_other(start)))
        _rename(here.fenced(), there.fenced(), None)
        Start(harness, ONE, harness.named(_other(start))).show(["a"])
        assert harness.after(["a"]) == [key for key, _ in harness.visible()]

    def test_a_name_is_taken_back(self, harness: SinkHarness, one: Start) -> None:
        marker = one.look().marker
        here, there = (Start(harness, TWO, sink) for sink in _marked(one).renamed(_other(one)))
        _rename(here.fenced(), there.fenced(), marker)
        three = Actor(3, 33)
        sinks = _marked(Start(harness, three, harness.named(_other(one)))).renamed(one.sink.name)
        here, there = (Start(harness, three, sink) for sink in sinks)
        assert here.look().marker == marker
        _rename(here.fenced(), there.fenced(), marker)
        Start(harness, three).show(["b"], 1)
        assert harness.after(["a"], ["b"]) == sorted(key for key, _ in harness.visible())

    def test_a_newer_actor_keeps_a_sink_under_its_name(self, harness: SinkHarness, one: Start) -> None:
        here, there = (Start(harness, ONE, sink) for sink in _marked(one).renamed(_other(one)))
        there.fenced()
        Start(harness, TWO, here.sink).fenced(), Start(harness, TWO, there.sink).fenced()
        with pytest.raises(Fenced):
            _rename(here, there, here.look().marker)
        two = Start(harness, TWO)
        two.show(["b"], 1)
        assert harness.after(["a"], ["b"]) == sorted(key for key, _ in harness.visible())


def _shows_an_epoch(harness: SinkHarness) -> bool:
    """Whether a sink object with the old name still finds the marker of an epoch."""
    try:
        marker = harness.sink().look(query(harness.app)).marker
    except Misconfigured:
        return False
    return marker is not None and not marker.is_moved


def _rename(here: Start, there: Start, marker: Marker | None) -> None:
    here.look(final=True), there.look(final=True)
    _marked(there).check_mark(there.query)
    _marked(there).mark(there.query, marker, there.actor)
