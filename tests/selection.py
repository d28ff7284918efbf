"""Which tests run where: the proof, a lane, a shard.  Pure functions; ``run.py`` and ``conftest.py`` use them.

=============  =====================================================================================================
*proof*        the tests of ``make test``: every test that is neither ``wide`` nor thinned out, and every test that a
               planted bug names in its ``first`` (``tests/planted/*.toml``), also if it is
*wide*         a marker: this test repeats what a test of the proof shows, at more places or for longer
*thinned out*  a case of a test with many cases, of which ``thinned.toml`` keeps others in the proof
*lane*         one pytest process, with servers and a Spark session of its own; three run side by side
*shard*        a part of all tests; a shard is split into lanes as the proof is
=============  =====================================================================================================

Tests are shared out by whole files, so that a file's fixtures start once.  ``seconds.json`` has how long each file
took; it balances lanes and shards and decides nothing else: no clock leaves a test out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tomli

ROOT = Path(__file__).parents[1]
SECONDS = ROOT / "tests" / "seconds.json"
FOLDERS = ("tests/pure", "tests/real")
"""What ``make test`` and ``make test-all`` run; the other folders of tests have targets of their own."""

UNKNOWN_S = 5.0
"""Assumed for a file that ``seconds.json`` does not have."""

TOGETHER = ("tests/real/checkpoints/hadoop", "tests/real/standalone")
"""Folders whose files share a server that no other folder needs: one lane runs all of a folder."""


class Part(NamedTuple):
    """The ``number``-th of ``of`` parts, counted from 1; written ``3/8``."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """ValueError, with the text, for anything else than ``number/of``."""
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ValueError(f"{text!r} is no part: write for example 3/8, the third of eight")
        return cls(int(number), int(of))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def files(root: Path = ROOT, folders: Iterable[str] = FOLDERS) -> list[str]:
    """Every test file, relative to ``root``, sorted."""
    found = (path for folder in folders for path in (root / folder).rglob("test_*.py"))
    return sorted(str(path.relative_to(root)) for path in found)


def seconds(path: Path = SECONDS) -> Mapping[str, Mapping[str, float]]:
    """``{"proof": {file: seconds}, "all": {file: seconds}}``."""
    stored: Mapping[str, Mapping[str, float]] = json.loads(path.read_text())
    return stored


def parted(given: Collection[str], took: Mapping[str, float], of: int) -> list[list[str]]:
    """``given`` files in ``of`` parts of like length: the longest goes first, each to the part with the least."""
    groups: dict[str, list[str]] = {}
    for file in sorted(given):
        groups.setdefault(next((f for f in TOGETHER if file.startswith(f"{f}/")), file), []).append(file)
    length = {name: sum(took.get(file, UNKNOWN_S) for file in group) for name, group in groups.items()}
    parts: list[list[str]] = [[] for _ in range(of)]
    total = [0.0] * of
    for name in sorted(groups, key=lambda name: (-length[name], name)):
        least = min(range(of), key=lambda number: (total[number], number))
        parts[least] += groups[name]
        total[least] += length[name]
    return [sorted(part) for part in parts]


def named_by_bugs(root: Path = ROOT) -> frozenset[str]:
    """The tests that planted bugs name in ``first``: node ids, also of a function without its parameters, or a file."""
    bugs = [
        bug
        for path in sorted((root / "tests" / "planted").glob("*.toml"))
        for bug in tomli.loads(path.read_text(encoding="utf-8")).get("bug", ())
    ]
    return frozenset(test for bug in bugs for test in bug.get("first", ()))


def is_named(test: str, names: Collection[str]) -> bool:
    """Whether a node id, its function, its class or its file is among ``names``."""
    function = test.partition("[")[0]
    above = function.split("::")
    return test in names or any("::".join(above[: count + 1]) in names for count in range(len(above)))


def thinned(root: Path = ROOT) -> Mapping[str, tuple[str, ...]]:
    """``{test: what its kept cases contain}``, for the tests of which the proof keeps some cases only."""
    tests = tomli.loads((root / "tests" / "thinned.toml").read_text(encoding="utf-8"))["test"]
    return {test["name"]: tuple(test["keeps"]) for test in tests}


def is_thinned_out(test: str, kept: Mapping[str, Collection[str]]) -> bool:
    """Whether a node id is a case that the proof leaves out."""
    function, _, case = test.partition("[")
    return function in kept and not any(part in case for part in kept[function])


def lost_cases(kept: Mapping[str, Collection[str]], tests: Iterable[str]) -> list[str]:
    """What ``kept`` names that none of ``tests``, of a function whose cases are among them, contains."""
    cases: dict[str, list[str]] = {}
    for test in tests:
        function, _, case = test.partition("[")
        cases.setdefault(function, []).append(case)
    return [
        f"{name}[{part}"
        for name, parts in kept.items()
        for part in parts
        if name in cases and not any(part in case for case in cases[name])
    ]


def in_proof(test: str, *, wide: bool, names: Collection[str], kept: Mapping[str, Collection[str]]) -> bool:
    """Whether ``make test`` runs a test."""
    return not (wide or is_thinned_out(test, kept)) or is_named(test, names)


def shards_of_commit(number: int, of: int) -> Sequence[Part]:
    """All shards, in the order in which CI runs them on the ``number``-th commit, as far as its time goes.

    Each commit begins two shards after the one before.  ``of`` must be odd: then all shards are covered by ``of``
    consecutive commits that run one each, and by half as many that run two.
    """
    return [Part((2 * number + step) % of + 1, of) for step in range(of)]
