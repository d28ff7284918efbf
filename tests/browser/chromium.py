"""The system's Chromium without a window, driven over the DevTools protocol by Playwright.

Run as a program it tells whether there is one that runs: exit status 0, or 3 with one line that says why not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

VARIABLE = "EPOCHAL_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_CHROMIUM = 3
START_TIMEOUT_S = 60
# A sandbox cannot be had as root or in most containers; the pages are our own. The rest keeps it off the network.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


class NoChromium(Exception):
    """There is none, or it does not run."""


def find(environment: Mapping[str, str] = os.environ) -> str:
    """The program that EPOCHAL_CHROMIUM names, else the first on PATH; NoChromium where there is none."""
    named = environment.get(VARIABLE)
    names = (named,) if named else NAMES
    found = next((path for name in names if (path := shutil.which(name, path=environment.get("PATH")))), None)
    if found is not None:
        return found
    if named:
        raise NoChromium(f"{VARIABLE}={named} is no program that can be run")
    raise NoChromium(f"no Chromium: none of {', '.join(NAMES)} is on PATH, and {VARIABLE} names none")


def missing(environment: Mapping[str, str] = os.environ) -> str | None:
    """Why no Chromium runs; None where one does."""
    try:
        program = find(environment)
    except NoChromium as error:
        return str(error)
    with tempfile.TemporaryDirectory(prefix="epochal-chromium-", ignore_cleanup_errors=True) as folder:
        command = [program, "--headless", *ARGUMENTS, f"--user-data-dir={folder}", "--dump-dom", "about:blank"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{program} does not run: {error}"
    if done.returncode or "<html" not in done.stdout:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"{program} shows no page (status {done.returncode}): {said}"
    return None


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A running one; it is ended with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=find(), args=list(ARGUMENTS), timeout=START_TIMEOUT_S * 1000
        )
        try:
            yield running
        finally:
            running.close()


if __name__ == "__main__":
    reason = missing()
    if reason is not None:
        print(reason, file=sys.stderr)
        sys.exit(NO_CHROMIUM)
