"""A Chromium for the whole lane, and the reports that it opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.chaos.report import Round, write
from tests.browser import chromium, histories

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REPORTS: Mapping[str, Callable[[], Sequence[Round]]] = {
    "valid": lambda: [histories.valid()],
    "invalid": lambda: [histories.invalid()],
    "unknown": lambda: [histories.unknown()],
    "mixed": lambda: [histories.valid(1), histories.invalid(2), histories.unknown(3), histories.invalid(5)],
    "wide": lambda: [histories.wide()],
    "large": histories.campaign,
    "empty": list,
}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium.browser() as running:
        yield running


class Reports:
    """Name -> a report on disk, written when the first test asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Path:
        path = self._folder / f"{name}.html"
        if not path.exists():
            write(path, REPORTS[name](), histories.ABOUT)
        return path


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return Reports(tmp_path_factory.mktemp("reports"))
