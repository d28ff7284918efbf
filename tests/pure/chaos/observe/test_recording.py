"""A history that is written down and read again is judged as before; what is torn or unknown is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epochal.chaos.observe import checker, recording
from epochal.chaos.observe.history import Event, History
from epochal.chaos.observe.recording import NotAHistory
from epochal.chaos.observe.run import Run
from tests.pure.chaos.observe.test_checker import ALL, BAD, good, read, run


@pytest.mark.parametrize("events", [pytest.param(good(), id="good"), *(pytest.param(e, id=w) for _, w, e in BAD)])
def test_a_run_survives_its_file(events: list[Event], tmp_path: Path) -> None:
    told = run(events)
    recording.save(told, tmp_path / "h.jsonl", {"seed": 7})
    again, about = recording.load(tmp_path / "h.jsonl")
    assert about == {"seed": 7}
    assert again.expected == told.expected
    assert checker.judge_all(again) == checker.judge_all(told)


def test_a_read_that_saw_nothing_new_adds_nothing(tmp_path: Path) -> None:
    rows = {}
    for times in (1, 100):
        recording.save(run([read(ALL, ALL)] * times), tmp_path / "h.jsonl")
        rows[times] = (tmp_path / "h.jsonl").read_text().count("[1,3,11,3]")
    assert rows[1] == rows[100]


def test_times_are_kept(tmp_path: Path) -> None:
    times = iter([1.5, 2.25])
    told = Run(History(clock=lambda: next(times)), ("a",), {})
    for event in good()[:2]:
        told.history.add(event)
    recording.save(told, tmp_path / "h.jsonl")
    assert recording.load(tmp_path / "h.jsonl")[0].history.times == [1.5, 2.25]


def lines(tmp_path: Path) -> list[str]:
    recording.save(run(good()), tmp_path / "h.jsonl")
    return (tmp_path / "h.jsonl").read_text().splitlines()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda found: found[:-1], "the file is incomplete", id="a line is missing"),
        pytest.param(lambda found: [*found[:-1], found[-1][:9]], "line", id="a line is cut"),
        pytest.param(lambda found: found[1:], "the first line says", id="no first line"),
        pytest.param(lambda _: [], "the first line says", id="empty"),
        pytest.param(lambda found: [*found[:-1], found[-1].replace("Ended", "Exploded")], "Exploded", id="unknown"),
        pytest.param(lambda found: [*found[:-1], found[-1].replace("outcome", "result")], "result", id="a field"),
    ],
)
def test_what_is_no_history_is_refused(change: object, why: str, tmp_path: Path) -> None:
    assert callable(change)
    (tmp_path / "h.jsonl").write_text("\n".join(change(lines(tmp_path))))
    with pytest.raises(NotAHistory, match=why):
        recording.load(tmp_path / "h.jsonl")


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    found = lines(tmp_path)
    head = json.loads(found[0])
    head[recording.KIND] = recording.VERSION + 1
    (tmp_path / "h.jsonl").write_text("\n".join([json.dumps(head), *found[1:]]))
    with pytest.raises(NotAHistory, match="the first line says"):
        recording.load(tmp_path / "h.jsonl")
