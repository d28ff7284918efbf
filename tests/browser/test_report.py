"""Reports in a real Chromium: nothing is fetched, nothing fails, nothing is cut or lies over something else.

Run by `make test-browser` alone.  With EPOCHAL_SCREENSHOTS=<folder> every page that is looked at is kept as a picture.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.chaos.observe import recording
from epochal.chaos.observe.checker import judge_all
from tests.browser import chromium, histories
from tests.browser.conftest import REPORTS, Reports
from tests.browser.screen import CONTRAST, LAYOUT, SCHEMES, SLACK, WIDTHS, Scheme, opened, picture

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", REPORTS)
def test_nothing_is_fetched_fails_overlaps_or_is_cut(
    browser: Browser, reports: Reports, name: str, scheme: Scheme, width: int
) -> None:
    with opened(browser, reports[name], scheme, width) as (page, heard):
        picture(page, f"{name}-{scheme}-{width}")
        found = page.evaluate(LAYOUT, SLACK)
        assert found["wrong"] == [], f"{found['count']} in all"
        assert found["texts"] > 20 or name == "empty"
        assert page.evaluate(CONTRAST) == []
        assert heard.complaints == []
        assert heard.requests == [reports[name].as_uri()]


@pytest.mark.parametrize(("name", "word"), [("valid", "Valid"), ("invalid", "Invalid"), ("unknown", "Unknown")])
def test_the_verdict_is_the_first_thing_that_is_seen(browser: Browser, reports: Reports, name: str, word: str) -> None:
    with opened(browser, reports[name], width=400) as (page, _):
        heading = page.locator("#verdict")
        assert heading.inner_text().endswith(word)
        box = heading.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 300


def test_the_three_verdicts_look_different_without_their_colours(browser: Browser, reports: Reports) -> None:
    looks = set()
    for name in ("valid", "invalid", "unknown"):
        with opened(browser, reports[name]) as (page, _):
            border = page.evaluate("getComputedStyle(document.querySelector('.verdict')).borderTopStyle")
            looks.add((border, page.locator("#verdict .sign").inner_text()))
    assert len({border for border, _ in looks}) == len({sign for _, sign in looks}) == 3


def test_dark_and_light_are_two_pages(browser: Browser, reports: Reports) -> None:
    grounds = {}
    for scheme in SCHEMES:
        with opened(browser, reports["valid"], scheme) as (page, _):
            grounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert grounds["dark"] != grounds["light"]
    assert grounds["print"] == "rgb(255, 255, 255)"


def test_a_history_is_downloaded_and_judged_again(browser: Browser, reports: Reports, tmp_path: Path) -> None:
    with opened(browser, reports["invalid"]) as (page, _):
        with page.expect_download() as started:
            page.get_by_role("link", name="round-1.jsonl.gz").click()
        started.value.save_as(tmp_path / "round.gz")
        assert started.value.suggested_filename == "round-1.jsonl.gz"
    (tmp_path / "round.jsonl").write_bytes(gzip.decompress((tmp_path / "round.gz").read_bytes()))
    run, about = recording.load(tmp_path / "round.jsonl")
    assert judge_all(run) == histories.invalid().findings
    assert about["target"] == histories.ABOUT["target"]


def test_the_list_of_faults_is_on_paper_also_where_it_is_folded(browser: Browser, reports: Reports) -> None:
    with opened(browser, reports["invalid"], "print") as (page, _):
        page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = false })")
        cell = page.locator("table", has_text="Every fault").locator("td", has_text="kill").first
        assert cell.bounding_box() is not None
        assert page.locator("section.screen").is_hidden()


def test_it_prints(browser: Browser, reports: Reports) -> None:
    with opened(browser, reports["mixed"]) as (page, _):
        assert page.pdf(format="A4").startswith(b"%PDF-")


HOSTILE = """<!DOCTYPE html><html><body><main>
<svg class="chart" width="300" height="100" viewBox="0 0 300 100"><title>t</title>
<text x="10" y="50">one label</text><text x="40" y="52">another label</text><text x="280" y="80">cut off</text></svg>
<p style="width:3000px;color:#999">wide and pale</p></main></body></html>"""


def test_the_checks_see_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(HOSTILE)
    with opened(browser, tmp_path / "bad.html") as (page, _):
        wrong = "\n".join(page.evaluate(LAYOUT, SLACK)["wrong"])
        assert 'overlap in "t": "one label" and "another label"' in wrong
        assert 'cut in "t": "cut off"' in wrong
        assert "the page is 30" in wrong
        assert page.evaluate(CONTRAST) == ["2.8: wide and pale"]


def test_a_page_that_asks_for_something_is_heard(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text("<img src='missing.png'><script>console.error('no'); nothing()</script>")
    with opened(browser, tmp_path / "bad.html") as (_, heard):
        assert len(heard.requests) == 2
        assert {complaint.partition(":")[0] for complaint in heard.complaints} == {"failed", "error"}
        assert len(heard.complaints) >= 3


def test_a_chromium_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert chromium.missing({"PATH": str(tmp_path)}) == (
        "no Chromium: none of chromium, chromium-browser, google-chrome, google-chrome-stable is on PATH, and "
        "EPOCHAL_CHROMIUM names none"
    )
    named = {"PATH": str(tmp_path), "EPOCHAL_CHROMIUM": "/nowhere"}
    assert chromium.missing(named) == "EPOCHAL_CHROMIUM=/nowhere is no program that can be run"


def test_a_program_that_is_no_chromium_is_named(tmp_path: Path) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\necho 'please install the snap' >&2; exit 1\n")
    program.chmod(0o755)
    reason = chromium.missing({"PATH": str(tmp_path)})
    assert reason == f"{program} shows no page (status 1): please install the snap"


def test_the_one_that_is_there_runs() -> None:
    assert chromium.missing() is None
