"""A page as a person with this screen sees it, and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
LAYOUT = (HERE / "layout.js").read_text()
CONTRAST = (HERE / "contrast.js").read_text()
SLACK = 2  # pixels
WIDTHS = (1280, 400)
Scheme = Literal["light", "dark", "print"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark", "print")
LONG_SIDE = 16_000  # pixels: more than this a screenshot cannot hold


class Heard:
    """What a page asks for and complains about."""

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("requestfailed", lambda request: self.complaints.append(f"failed: {request.url[:200]}"))
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))


@contextmanager
def opened(browser: Browser, path: Path, scheme: Scheme = "light", width: int = 1280) -> Iterator[tuple[Page, Heard]]:
    """The report as a person with this screen sees it; everything that unfolds is unfolded."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light", offline=True
    )
    try:
        page = context.new_page()
        page.emulate_media(media="print" if scheme == "print" else "screen")
        heard = Heard(page)
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
        yield page, heard
    finally:
        context.close()


def picture(page: Page, name: str) -> None:
    """Keep what is seen, if somebody asked for it."""
    folder = os.environ.get("EPOCHAL_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        height = min(LONG_SIDE, page.evaluate("document.documentElement.scrollHeight"))
        width = page.viewport_size["width"] if page.viewport_size else WIDTHS[0]
        clip = {"x": 0, "y": 0, "width": width, "height": height}
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True, clip=clip)  # type: ignore[arg-type]
