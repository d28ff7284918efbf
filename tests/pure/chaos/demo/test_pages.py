"""The page and the picture of a run, and the live view: pure functions of what was seen."""

from __future__ import annotations

import io
import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from epochal.chaos.demo import show, votes
from epochal.chaos.demo.page import page
from epochal.chaos.demo.picture import picture
from epochal.chaos.demo.readers import Count
from epochal.chaos.demo.record import VERSION, Attack, record
from epochal.chaos.demo.show import Screen, Seen

DOCS = Path(__file__).parents[4] / "docs"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """The run that README shows."""
    run: dict[str, Any] = json.loads((DOCS / "demo.json").read_text())
    return run


def counted(found: int, lost: int = 0, duplicated: int = 0) -> Count:
    return Count(1000, found, lost, duplicated, 0)


def small() -> dict[str, Any]:
    naive, ours = counted(1010, lost=90, duplicated=100), counted(1000)
    return record(
        {
            "naive": Attack(5.0, 65.0, 10, (), {("naive", "Kafka"): naive}),
            "ours": Attack(5.0, 65.0, 10, (), {("ours", "Kafka"): ours}),
        }
    )


def test_the_picture_in_the_readme_is_drawn_from_its_data(stored: dict[str, Any]) -> None:
    assert (DOCS / "demo.svg").read_text() == picture(stored), "stale: python -m epochal.chaos.demo.picture docs"
    assert (DOCS / "demo.svg").stat().st_size < 100_000
    assert "docs/demo.svg" in (DOCS.parent / "README.md").read_text()


def test_the_stored_run_shows_what_the_readme_says(stored: dict[str, Any]) -> None:
    assert stored["version"] == VERSION
    for name, job in stored["jobs"].items():
        exact = [found["lost"] == found["duplicated"] == found["wrong"] == 0 for found in job["sinks"].values()]
        assert all(exact) == (name == "ours")
        assert {found["expected"] for found in job["sinks"].values()} == {336_776}
    ours, naive = stored["jobs"]["ours"], stored["jobs"]["naive"]
    assert len(naive["strikes"]) <= len(ours["strikes"])
    assert {strike["victim"] for strike in ours["strikes"]} == {"driver", "worker", "kafka", "postgres"}


def test_the_page_says_how_kafka_showed_the_epochs(tmp_path: Path) -> None:
    """From the notes of the driver; a line that a kill has cut is left out."""
    checkpoint = str(tmp_path / "checkpoint")
    assert votes.read(checkpoint) is None
    notes = [votes.Shown(0, 31.0, True), votes.Shown(1, 900.0, False), votes.Shown(2, 47.0, True)]
    lines = [json.dumps(asdict(note)) for note in notes]
    votes.path_of(checkpoint).write_text("\n".join([*lines, lines[0][:9]]))
    found = votes.read(checkpoint)
    run = record({"ours": Attack(5.0, 65.0, 9, (), {("ours", "Kafka"): counted(1000)}, found)})
    assert run["jobs"]["ours"]["votes"] == {"noted": 3, "by_vote": 2, "visible_ms": 39, "slowest_ms": 47}
    assert "2 of them were in the open transaction before the decision" in page(run)
    assert "39 ms from decision to visible (median), 47 ms at most" in page(run)
    votes.path_of(checkpoint).write_text(lines[1])
    redone = votes.read(checkpoint)
    assert redone is not None
    assert "All of them were produced after the decision" in votes.told(redone, 9)


def test_the_picture_is_well_formed_and_names_what_is_lost_and_duplicated() -> None:
    svg = picture(small())
    ElementTree.fromstring(svg)
    assert "90 lost, 100 duplicated" in svg
    assert "1,000 expected, exact" in svg
    assert "<script" not in svg


def test_other_data_make_another_picture() -> None:
    other = small()
    other["jobs"]["ours"]["sinks"]["Kafka"]["lost"] = 1
    assert picture(other) != picture(small())


def test_the_page_holds_everything_and_asks_for_nothing(stored: dict[str, Any]) -> None:
    text = page(stored)
    assert "<svg" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    for job in stored["jobs"].values():
        assert all(strike["when"].split("'")[0] in text for strike in job["strikes"])
        assert all(f"{found['found']:,}" in text for found in job["sinks"].values())


def screen(terminal: bool) -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(Console(file=out, force_terminal=terminal, width=160, highlight=False)), out


def until(out: io.StringIO, words: str) -> None:
    limit = time.monotonic() + 120
    while words not in out.getvalue():
        assert time.monotonic() < limit, out.getvalue()
        time.sleep(0.01)


def test_a_silent_stretch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "SILENT_S", 0.05)
    monkeypatch.setattr(show, "REFRESH_S", 0.01)
    shown, out = screen(terminal=False)
    shown.step("starting Postgres")
    with shown.busy(lambda: "2 of 4"):
        until(out, "still starting Postgres (0 s) 2 of 4")


def test_without_a_terminal_progress_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "REFRESH_S", 0.01)
    shown, out = screen(terminal=False)
    with shown.watch({"ours": lambda: Seen(4, 10, 1200, 1, "writes")}):
        until(out, "ours    epoch 4 of 10, 1,200 rows, 1 strikes, writes")
    assert "\x1b" not in out.getvalue()


def looks_at(name: str) -> Seen:
    return Seen(4, 10, 1200, 1, f"{name} is starting Spark")


def test_on_a_terminal_both_jobs_are_one_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "REFRESH_S", 0.01)
    shown, out = screen(terminal=True)
    with shown.watch({name: partial(looks_at, name) for name in ("naive", "ours")}):
        until(out, "ours is starting Spark")
    assert "naive is starting Spark" in out.getvalue()
