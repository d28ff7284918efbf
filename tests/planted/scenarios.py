"""The published faults of ``scenarios.toml`` as one table, and whether what it says is red is red.

::

    python -m tests.planted.scenarios             writes docs/scenarios.md
    python -m tests.planted.scenarios --verify    plants each bug and runs the test that is named beside it

``--verify`` takes ids or names of bugs (``--only``, several times) and ends with 0 if all of them are red.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from epochal.chaos.mutants.planting import Bug, Planter, bugs

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).with_name("scenarios.toml")
PAGE = ROOT / "docs" / "scenarios.md"
MOST_NOT_SHOWABLE = 5
KINDS = {"P": "in the simulation or in one process", "S": "on a real server", "K": "with a real kill"}

HEAD = """\
# Published faults

Each line is a fault that a real system shipped. Our tests replay it, except for the faults in the second table. A test
that never fails proves nothing. So the column *red* names what makes a test of the fault fail: a bug that is planted in
a copy of our code (`epochal chaos mutants --only NAME`), or a common batch function under a strike
(`epochal chaos run`). The column *green* names the tests in which Epochal survives the fault.

`python -m tests.planted.scenarios` writes this page from `tests/planted/scenarios.toml`. With `--verify` it plants each
bug, and runs the test that is named beside the bug.
"""


@dataclass(frozen=True)
class Red:
    """What fails the schedule, as ``test`` shows: a planted bug, or an example under a strike."""

    test: str
    bug: str = ""
    example: str = ""
    strike: str = ""


@dataclass(frozen=True)
class Scenario:
    """One published fault; ``kind``: letters of KINDS; ``not_showable``: why nothing can be red."""

    id: str
    source: str
    kind: str
    what: str
    green: tuple[str, ...]
    red: tuple[Red, ...] = ()
    remark: str = ""
    not_showable: str = ""


def load() -> tuple[list[str], list[Scenario]]:
    """The ids that there must be, and the scenarios."""
    import tomli

    data = tomli.loads(DATA.read_text(encoding="utf-8"))
    return list(data["ids"]), [_scenario(entry) for entry in data["scenario"]]


def _scenario(entry: Mapping[str, Any]) -> Scenario:
    red = tuple(Red(**one) for one in entry.get("red", ()))
    return Scenario(**{**entry, "green": tuple(entry["green"]), "red": red})


def page() -> str:
    """docs/scenarios.md, whole."""
    _, scenarios = load()
    shown = [s for s in scenarios if not s.not_showable]
    lines = [
        HEAD,
        *_counts(scenarios),
        "",
        "| id | source | kind | the fault | red | green |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_line(scenario) for scenario in shown]
    lines += [
        "",
        "## Faults that no test of ours can show",
        "",
        "| id | source | kind | the fault | why no test of it can be red | what is tested instead |",
    ]
    lines += ["|---|---|---|---|---|---|"]
    lines += [_line(scenario) for scenario in scenarios if scenario.not_showable]
    return "\n".join(lines) + "\n"


def _counts(scenarios: Sequence[Scenario]) -> Iterator[str]:
    planted = [s for s in scenarios if any(red.bug for red in s.red)]
    naive = [s for s in scenarios if any(red.example for red in s.red)]
    without = [s for s in scenarios if s.not_showable]
    yield (
        f"{len(scenarios)} faults. A planted bug shows {len(planted)} of them red; a common batch function shows"
        f" {len(naive)} of these red, too. {len(without)} cannot be shown red."
    )
    kinds = (f"{letter} ({words}) {sum(letter in s.kind for s in scenarios)}" for letter, words in KINDS.items())
    yield f"Kinds (a fault can have two): {', '.join(kinds)}."


def _line(scenario: Scenario) -> str:
    what = f"{scenario.what} *{scenario.remark}*" if scenario.remark else scenario.what
    red = scenario.not_showable or "<br>".join(_red(red) for red in scenario.red)
    green = "<br>".join(_test(test) for test in scenario.green)
    cells = (scenario.id, scenario.source, " ".join(scenario.kind), what, red, green)
    return f"| {' | '.join(cells)} |"


def _red(red: Red) -> str:
    if red.bug:
        return f"`{red.bug}` in {_test(red.test)}"
    return f"[{red.example}](../examples/chaos/{red.example}.py) with `{red.strike}` in {_test(red.test)}"


def _test(test: str) -> str:
    """The test's name, as a link to its file."""
    path, _, name = test.partition("::")
    return f"[{name.rpartition('::')[2]}](../{path})"


def pairs(only: Sequence[str] = ()) -> Iterator[tuple[str, Bug]]:
    """(id of the scenario, its bug with nothing but the scenario's own test to notice it)."""
    known = {bug.name: bug for bug in bugs(ROOT)}
    for scenario in load()[1]:
        for red in scenario.red:
            if red.bug and (not only or scenario.id in only or red.bug in only):
                yield scenario.id, replace(known[red.bug], suite=(red.test,), first=())


def verify(only: Sequence[str] = ()) -> int:
    """Plant each bug, run the test that is named beside it; 0: all red, 1: one is not."""
    planter, missed = Planter(ROOT), 0
    for scenario, bug in pairs(only):
        result = planter.try_bug(bug)
        missed += result.verdict != "caught"
        print(f"{scenario:4} {result}", flush=True)
    print(f"{missed} not red")
    return int(missed > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted.scenarios")
    parser.add_argument("--verify", action="store_true", help="plant the bugs instead of writing the page")
    parser.add_argument("--only", action="append", default=[], help="an id or the name of a bug")
    options = parser.parse_args(arguments)
    if options.verify:
        return verify(options.only)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
