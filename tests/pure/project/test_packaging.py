"""The wheel, installed where nothing else of the project is."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import epochal
from epochal import sinks
from tests.pure.project.test_architecture import FOLDERS, ROOT, modules

TIMEOUT_S = 340

IMPORT_EVERY_PUBLIC_NAME = """
import importlib, importlib.metadata, sys
assert all("extra ==" in line for line in importlib.metadata.requires("epochal"))
import epochal
assert sys.argv[1] not in epochal.__file__, epochal.__file__
for public in sys.argv[2:]:
    module, _, name = public.rpartition(".")
    try:
        getattr(importlib.import_module(module), name)
    except epochal.Misconfigured as error:
        assert "which is not installed" in error.what and error.help.startswith("pip install 'epochal["), error
        print(public)
from epochal.coordinator.model import failpoints
from epochal.coordinator.environment import versions
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


@pytest.mark.slow
def test_the_wheel_holds_every_module_of_the_checkout_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    checkout = {f"epochal/{path.relative_to(ROOT).as_posix()}" for _, path in modules(*FOLDERS)}
    assert {name for name in names if name.endswith(".py")} == {"epochal/__init__.py", *checkout}
    assert "epochal/py.typed" in names
    assert {name.split("/")[0].removesuffix(".dist-info") for name in names} == {
        "epochal",
        f"epochal-{epochal.__version__}",
    }


@pytest.mark.slow
def test_every_folder_of_modules_in_the_wheel_is_a_package(wheel: Path) -> None:
    """Without its `__init__.py` a folder is still packed, and its public names are gone."""
    found = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    folders = {name.rpartition("/")[0] for name in found}
    assert {"epochal/sinks/postgres", "epochal/sinks/kafka", "epochal/sinks/delta", "epochal/chaos/demo"} <= folders
    assert {f"{folder}/__init__.py" for folder in folders} <= found


@pytest.mark.slow
def test_every_public_name_imports_where_only_the_wheel_is_installed(wheel: Path, tmp_path: Path) -> None:
    """A sink whose library is missing says so, and how to install it."""
    environment = tmp_path / "empty"
    run(sys.executable, "-m", "venv", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    run(python, "-Im", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel, cwd=tmp_path)
    public = [f"{module.__name__}.{name}" for module in (epochal, sinks) for name in module.__all__]
    told = run(python, "-I", "-c", IMPORT_EVERY_PUBLIC_NAME, ROOT, *public, cwd=tmp_path)
    *refused, version, count = told.split()
    assert (version, count) == (epochal.__version__, str(len(public)))
    assert set(refused) <= {"epochal.sinks.DeltaSink", "epochal.sinks.KafkaSink", "epochal.sinks.PostgresSink"}
