"""Sinks of other packages, registered under an entry point."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from epochal import sinks
from epochal.coordinator.model.errors import Misconfigured
from epochal.sinks.protocol import Sink

ROOT = Path(__file__).parents[3]
SQLITE = "sqlite_sink:SqliteSink"


def install(folder: Path, package: str, registered: dict[str, str]) -> None:
    """What an installer leaves of a package."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in registered.items()]
    (info / "entry_points.txt").write_text("\n".join(["[epochal.sinks]", *lines, ""]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages; the example is a module there."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sqlite_sink.py").write_text((ROOT / "examples" / "sqlite_sink.py").read_text())
    monkeypatch.delitem(sys.modules, "sqlite_sink", raising=False)
    importlib.invalidate_caches()
    return tmp_path


def test_a_registered_sink_is_imported_by_its_name(site: Path) -> None:
    """As the page of authors shows it."""
    page = (ROOT / "docs" / "authors.md").read_text()
    [shown] = re.findall(r"<!-- examples/pyproject.toml -->\n```toml\n(.*?)```", page, re.DOTALL)
    assert shown in (ROOT / "examples" / "pyproject.toml").read_text()
    assert shown.startswith(f'[project.entry-points."{sinks.GROUP}"]\n')
    registered = dict(re.findall(r'^(\w+) = "(.*)"$', shown, re.MULTILINE))
    assert registered == {"SqliteSink": SQLITE}
    install(site, "theirs", registered)
    assert "sqlite_sink" not in sys.modules
    from epochal.sinks import SqliteSink

    made = SqliteSink(site / "out.db", "out")
    assert isinstance(made, Sink)
    assert made.name == "out"


@pytest.mark.remedy("several packages register a sink …", "import it from its own package, or uninstall all but one")
def test_a_name_that_two_packages_register_is_refused_with_both(site: Path) -> None:
    install(site, "theirs", {"SqliteSink": SQLITE})
    install(site, "others", {"SqliteSink": "elsewhere:SqliteSink"})
    with pytest.raises(Misconfigured, match="several packages register a sink SqliteSink") as refused:
        sinks.SqliteSink  # noqa: B018
    assert "['elsewhere:SqliteSink', 'sqlite_sink:SqliteSink']" in str(refused.value)
    assert importlib.import_module("sqlite_sink").SqliteSink.__name__ == "SqliteSink"
    shutil.rmtree(site / "others-1.0.dist-info")
    importlib.invalidate_caches()
    assert sinks.SqliteSink.__name__ == "SqliteSink"


@pytest.mark.parametrize("value", ["not_there_at_all:SqliteSink", "sqlite_sink:NotThere"])
@pytest.mark.remedy("the sink … is registered as … and is not there: …", "reinstall its package, with what it needs")
def test_what_is_registered_and_not_there_is_named(site: Path, value: str) -> None:
    install(site, "theirs", {"SqliteSink": value})
    with pytest.raises(Misconfigured, match=f"is registered as {value} and is not there"):
        sinks.SqliteSink  # noqa: B018
    shutil.rmtree(site / "theirs-1.0.dist-info")
    install(site, "theirs", {"SqliteSink": SQLITE})
    importlib.invalidate_caches()
    assert sinks.SqliteSink.__name__ == "SqliteSink"


def test_our_own_names_are_ours(site: Path) -> None:
    install(site, "theirs", {"MemorySink": SQLITE})
    assert sinks.MemorySink.__module__ == "epochal.sinks.memory"


def test_what_nobody_registers_is_no_attribute(site: Path) -> None:
    install(site, "theirs", {"SqliteSink": SQLITE})
    with pytest.raises(AttributeError, match="has no attribute 'OtherSink'"):
        sinks.OtherSink  # noqa: B018


def test_a_module_of_ours_that_is_missing_is_no_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `pip install` of an extra would bring it."""
    monkeypatch.setitem(sinks._MODULES, "LostSink", ("epochal.sinks.lost", "spark"))
    with pytest.raises(ModuleNotFoundError, match=r"epochal\.sinks\.lost"):
        _ = sinks.LostSink
