"""The page of the benchmarks in a real Chromium, of results that are made up; run by `make test-browser` alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.page.document import html
from tests.browser import measured
from tests.browser.screen import CONTRAST, LAYOUT, SCHEMES, SLACK, WIDTHS, Scheme, opened, picture

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    measured.write(folder)
    path = folder / "index.html"
    path.write_text(html(folder, about=measured.ABOUT))
    return path


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_is_fetched_fails_overlaps_or_is_cut(
    browser: Browser, page_file: Path, scheme: Scheme, width: int
) -> None:
    with opened(browser, page_file, scheme, width) as (page, heard):
        picture(page, f"benchmarks-{scheme}-{width}")
        found = page.evaluate(LAYOUT, SLACK)
        assert found["wrong"] == [], f"{found['count']} in all"
        assert found["texts"] > 300
        assert page.evaluate(CONTRAST) == []
        assert heard.complaints == []
        assert heard.requests == [page_file.as_uri()]


def test_the_goals_are_the_first_thing_that_is_seen(browser: Browser, page_file: Path) -> None:
    with opened(browser, page_file, width=400) as (page, _):
        box = page.locator("#goals").bounding_box()
        assert box is not None
        assert box["y"] < 400


def test_a_person_who_does_not_see_the_pictures_is_told_what_they_show(browser: Browser, page_file: Path) -> None:
    with opened(browser, page_file) as (page, _):
        names = [chart.get_attribute("aria-labelledby") or "" for chart in page.locator("svg.chart").all()]
        assert len(names) == len(set(names)) > 20
        for title, description in (name.split() for name in names):
            assert page.locator(f"[id='{title}']").text_content()
            assert "says the same in numbers" in (page.locator(f"[id='{description}']").text_content() or "")


def test_the_page_prints_with_its_tables(browser: Browser, page_file: Path) -> None:
    with opened(browser, page_file, "print") as (page, _):
        page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = false })")
        assert page.locator("table", has_text="Absolute figures").first.locator("td").first.bounding_box() is not None
        assert page.pdf(format="A4").startswith(b"%PDF-")
