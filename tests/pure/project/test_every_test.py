"""What ``make test`` does with a run in which a test did not run, or did not have to pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MARKED = "import pytest\n@pytest.mark.{}\ndef test_other(): {}\n"

NOT_EVERY_TEST_PASSED = {
    "a file skips itself": (
        ("import pytest\npytest.skip(allow_module_level=True)\n",),
        "1 collected IS NOT 1 skipped, 1 passed",
    ),
    "a file needs a package": (
        ("import pytest\npytest.importorskip('no_such')\n",),
        "1 collected IS NOT 1 skipped, 1 passed",
    ),
    "a file cannot be imported": (
        ("import no_such\n", "--continue-on-collection-errors"),
        "1 collected IS NOT 1 error, 1 passed",
    ),
    "a test is marked as skipped": ((MARKED.format("skip", "pass"),), "2 collected IS NOT 1 skipped, 1 passed"),
    "a test skips itself": (
        ("import pytest\ndef test_other(): pytest.skip()\n",),
        "2 collected IS NOT 1 skipped, 1 passed",
    ),
    "a test is expected to fail": ((MARKED.format("xfail", "assert 0"),), "2 collected IS NOT 1 xfailed, 1 passed"),
    "a test passes unexpectedly": ((MARKED.format("xfail", "pass"),), "2 collected IS NOT 1 xpassed, 1 passed"),
    "a test is deselected": (
        ("def test_other(): pass\n", "-k", "passes"),
        "2 collected IS NOT 1 deselected, 1 passed",
    ),
    "a test fails": (("def test_other(): assert 0\n",), "2 collected IS NOT 1 failed, 1 passed"),
}


def run_pytest(folder: Path, other: str, *options: str) -> tuple[int, str]:
    """Exit status, and the line that the plugin prints, of a run over a test that passes and a file beside it."""
    (folder / "test_passes.py").write_text("def test_passes(): pass\n")
    (folder / "test_other.py").write_text(other)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(folder), *options, str(folder)],
        cwd=folder,
        env={
            **os.environ,
            "EPOCHAL_EVERY_TEST": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if " collected = " in line or " collected IS NOT " in line]
    assert len(said) == 1, done.stdout + done.stderr
    return done.returncode, said[0]


def test_a_run_in_which_every_test_passed_is_accepted(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, "def test_other(): pass\n") == (0, "2 collected = 2 passed")


@pytest.mark.slow
@pytest.mark.parametrize(("given", "said"), NOT_EVERY_TEST_PASSED.values(), ids=NOT_EVERY_TEST_PASSED)
def test_any_other_run_fails(tmp_path: Path, given: tuple[str, ...], said: str) -> None:
    assert run_pytest(tmp_path, *given) == (pytest.ExitCode.TESTS_FAILED, said)
