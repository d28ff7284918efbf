"""The wheel, installed where nothing else of the project is."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import epochal

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 170

IMPORT_EVERY_PUBLIC_NAME = """
import importlib.metadata, sys
assert all("extra ==" in line for line in importlib.metadata.requires("epochal"))
import epochal
assert sys.argv[1] not in epochal.__file__, epochal.__file__
for name in sys.argv[2:]:
    getattr(epochal, name)
from epochal.chaos import failpoints
from epochal.coordinator import versions
print(epochal.__version__, len(sys.argv[2:]))
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git knows and what is new, so that a build leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, copy / name
        if not source.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        else:
            target.write_bytes(source.read_bytes())
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, copy, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_folder_under_one_name_and_the_type_marker(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "epochal/py.typed" in names
    for folder in ("coordinator", "checkpoints", "sinks", "chaos", "chaos/servers"):
        assert f"epochal/{folder}/__init__.py" in names
    assert {name.split("/")[0].removesuffix(".dist-info") for name in names} == {
        "epochal",
        f"epochal-{epochal.__version__}",
    }


def test_every_public_name_imports_where_only_the_wheel_is_installed(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "empty"
    run(sys.executable, "-m", "venv", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel, cwd=tmp_path)
    public = getattr(epochal, "__all__", ["__version__"])
    told = run(python, "-I", "-c", IMPORT_EVERY_PUBLIC_NAME, ROOT, *public, cwd=tmp_path)
    assert told.split() == [epochal.__version__, str(len(public))]
