"""The docs: generated pages are fresh, links lead somewhere, examples are run or at least compiled."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import epochal
import epochal.sinks
from docs import generate
from epochal.chaos.campaign import own
from epochal.coordinator.environment import versions
from tests.real.examples.test_readme import python_blocks

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), ROOT / "tests/README.md", ROOT / "benchmarks/README.md"]
NAMED = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES]

# Pages that are linked and still being written; a page that is there may not stand here.
COMING: set[str] = set()

# Python on a page -> the test that runs it, or why it is compiled alone.
RUN = {
    "README.md": "tests/real/examples/test_readme.py",
    "docs/authors.md": "tests/pure/chaos/contract/test_authors.py",
    "docs/chaos.md": "tests/real/examples/test_docs.py",
    "docs/epochs.md": "tests/real/examples/test_docs_epochs.py",
    "docs/idempotent.md": "tests/real/examples/test_docs.py",
    "docs/kafka.md": "tests/real/examples/test_docs_sinks.py",
    "docs/metrics.md": "tests/pure/coordinator/telemetry/test_metrics_page.py",
    "docs/quickstart.md": "tests/real/examples/test_docs.py",
    "docs/frames.md": "tests/real/examples/test_docs_frames.py",
    "docs/sinks.md": "tests/real/examples/test_docs_sinks.py",
}
COMPILED: dict[str, str] = {"docs/deployment.md": "a bucket of a cloud"}

# `epochal SUB-COMMAND` as a page may have it.
COMMANDS = {"chaos", "doctor", "status", "log", "verify", "reconcile", "txns", "clean", "sql"}
COMMANDS |= {"adopt", "retire", "rename", "resolve"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(markdown: str) -> str:
    """Without fenced blocks."""
    return re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)


def links(markdown: str) -> list[str]:
    """Targets of links that are no addresses on the web; what stands in a code span is none."""
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", lambda span: "x" * len(span[0]), prose(markdown))
    assert not re.search(r"\]\([^)\s]*(\s|$)", text), "a link that nobody closed"
    return [to for to in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", to)]


@cache
def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings; one that repeats gets a number."""
    found: dict[str, int] = {}
    for title in re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found[slug] = found.get(slug, 0) + 1
    return {slug if n == 0 else f"{slug}-{n}" for slug, count in found.items() for n in range(count)}


# --- generated pages -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_generated_page_is_that_of_the_source(name: str) -> None:
    assert (DOCS / name).read_text() == generate.PAGES[name](), "stale: run `make docs`"


@pytest.mark.parametrize("kind", generate.kinds(), ids=lambda kind: kind.name)
def test_each_error_tells_meaning_cause_and_remedy(kind: generate.Kind) -> None:
    real = getattr(epochal, kind.name)
    assert kind.definite is real.definite
    assert all(len(text) > 20 for text in (kind.meaning, kind.cause, kind.remedy))


def test_every_error_has_its_messages_on_the_page() -> None:
    found = generate.messages()
    assert {kind.name for kind in generate.kinds()} == {message.kind for message in found}
    known = {(m.kind, m.what) for m in found}
    assert ("CheckpointMismatch", "Spark asks for epoch …, but epoch … never reached the pipeline") in known, (
        "by a name"
    )
    assert ("NonDeterministicReplay", "evaluated more than once, and not to the same rows: …") in known, "by cls()"
    assert ("Misconfigured", "mode … is not known") in known
    assert len(found) > 220
    assert sum(bool(message.helps) for message in found) > 0.9 * len(found)


@pytest.mark.parametrize("name", generate.PUBLIC)
def test_every_argument_has_its_words(name: str) -> None:
    options = generate.options_of(name)
    assert set(options.meanings) == set(options.defaults), "docstring and signature name other arguments"
    assert all(len(text) > 10 for text in options.meanings.values())
    assert options.about


def test_every_public_class_with_arguments_is_on_the_page() -> None:
    made = {
        f"epochal.{n}"
        for n in epochal.__all__
        if n not in {"errors", "events", "__version__", "Diagnosis", "Guarantee", "PipelineStatus"}
    }
    made -= {f"epochal.{kind.name}" for kind in generate.kinds()} | {"epochal.EpochalError"}
    made |= {f"epochal.sinks.{n}" for n in epochal.sinks.__all__ if not n.startswith("Memory")}
    assert made <= set(generate.PUBLIC)


def test_arguments_are_read_in_each_form_of_a_class() -> None:
    pipeline = generate.options_of("epochal.Pipeline").defaults
    assert pipeline["app"] == generate.REQUIRED
    assert (pipeline["mode"], pipeline["compact_every"]) == ('"two-phase"', "100"), "a constant, one of another module"
    log = generate.options_of("epochal.checkpoints.postgres.PostgresLog").defaults
    assert log == {"dsn": "required", "name": "required", "timeout": "30.0"}
    upsert = generate.options_of("epochal.sinks.postgres.Upsert")
    assert list(upsert.defaults) == ["key", "update", "delete_when", "order_by", "trial"], "those of its base first"


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", NAMED)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if name_of(target) in COMING:
            continue
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_pages_that_are_there_are_not_called_coming() -> None:
    assert not [name for name in COMING if (ROOT / name).exists()], "take it out of COMING"


def test_what_is_found_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` (c)\n[x](y.md#z) `[no](t)` [w](https://e.org) [u](#v)\n```\n# no\n[no](t)\n```\n## A b c\n"
    )
    assert links(page.read_text()) == ["y.md#z", "#v"]
    assert anchors(page) == {"a-b-c", "a-b-c-1"}


def test_the_index_has_every_page_once() -> None:
    index = DOCS / "README.md"
    lines = re.findall(r"^- \[[^]]+\]\(([^)]+)\): .+$", index.read_text(), re.MULTILINE)
    assert len(lines) == len(set(lines))
    assert {f"docs/{name}" for name in lines} == {name_of(p) for p in DOCS.glob("*.md") if p != index} | COMING


def test_the_page_of_platforms_says_which_versions_go_together() -> None:
    page = (DOCS / "deploy-it.md").read_text()
    table = page.partition("## Which versions go together")[2].partition("\n## ")[0]
    rows = {row[0]: row for row in (line.strip("| ").split(" | ") for line in re.findall(r"^\| \d.*$", table, re.M))}
    assert set(rows) == {series.name for series in versions.SERIES}
    for series in versions.SERIES:
        _, python, java, scala, delta, _ = rows[series.name]
        assert (python, scala) == (told(series.python), series.scala)
        assert (java.split()[0].strip(","), java.split()[-1]) == (series.java[0], str(int(series.java[1]) - 1))
        assert delta == ("no release" if series.delta is None else told(series.delta))


def told(supported: versions.Range) -> str:
    """A range of versions as the page tells it."""
    low, below = supported
    *major, last = below.split(".")
    high = ".".join([*major, str(int(last) - 1)])
    lists = (low, high) == ("3.10", "3.11")  # as few as two versions of Python
    return high if high.startswith(f"{low}.") or low == high else f"{low}, {high}" if lists else f"{low} to {high}"


# --- examples ------------------------------------------------------------------------------------


def test_python_on_a_page_is_run_or_listed_as_compiled_alone() -> None:
    with_python = {name_of(page) for page in PAGES if python_blocks(page.read_text())}
    assert with_python == RUN.keys() | COMPILED.keys()
    for name, test in RUN.items():
        assert Path(name).name in (ROOT / test).read_text(), f"{test} does not read {name}"


@pytest.mark.parametrize("page", NAMED)
def test_python_on_a_page_compiles(page: Path) -> None:
    for block in python_blocks(page.read_text()):
        compile(block, name_of(page), "exec")


@pytest.mark.parametrize("page", NAMED)
def test_commands_on_a_page_exist(page: Path) -> None:
    text = page.read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shell = [block for language, block in blocks if language in ("", "sh", "bash")]
    lines = [line for block in shell for line in block.splitlines()] + re.findall(r"`(epochal [^`]+)`", prose(text))
    given = {line.split()[1].rstrip("\\") for line in lines if re.match(r"epochal \S", line)}
    assert given <= COMMANDS | {"--help"}


# --- what is promised ----------------------------------------------------------------------------


UNPROVEN = "told by `guarantee()`; no test"
"""What a line says that promises nothing."""


@cache
def defined() -> dict[str, str]:
    """Every file of tests and of the kit -> its text."""
    files = [file for folder in ("tests", "chaos") for file in (ROOT / folder).rglob("*.py")]
    return {name_of(file): file.read_text() for file in files}


def proofs() -> list[str]:
    """What the page of guarantees names: a file, `file::test`, or a target of `epochal chaos run`."""
    page = (DOCS / "guarantees.md").read_text()
    return sorted(set(re.findall(r"`((?:tests|chaos)/[\w/]+\.py(?:::\w+)?|epochal(?:\.\w+)+:\w+)`", page)))


def test_every_line_of_the_table_has_a_proof_or_says_that_there_is_none() -> None:
    promised = (DOCS / "guarantees.md").read_text().partition("\n## ")[0]
    lines = re.findall(r"^\| (.*) \|$", promised, re.MULTILINE)[1:]
    assert len(lines) > 40
    for line in lines:
        *said, proof = line.split(" | ")
        assert [bool(text) for text in said] == [True] * 5, line
        assert proof == UNPROVEN or {one.strip("`") for one in proof.split(", ")} <= set(proofs()), line


@pytest.mark.parametrize("proof", proofs())
def test_a_proof_that_is_named_exists(proof: str) -> None:
    if proof.startswith("epochal."):
        assert proof in map(own.target, own.OWN)
        return
    file, _, test = proof.partition("::")
    assert f"def {test}(" in defined()[file] if test else file in defined()
