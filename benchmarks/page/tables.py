"""Figures as tables: goals, ratios, absolute figures, environments, facts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.goals import GOALS, Goal
from benchmarks.measuring import Case, Measure, Ratio, words
from benchmarks.stored import Answer, Run, same, same_measure, worst
from benchmarks.summary import amount, between, with_spread
from epochal.chaos.report import blocks
from epochal.chaos.report.text import Markup, clean, element, line

FACT = 3_000  # characters of one fact


def goals(answers: Mapping[str, Sequence[Answer]]) -> Markup:
    """Return a table of every goal, with the worst of its answers."""
    rows = [_goal(GOALS[name], of) for name, of in answers.items()]
    heads = ("goal", "asked for", "newest run", "the run before")
    return blocks.table("Goals: the median of the worst case, with its quartiles", heads, rows, numbers=(2, 3))


def _goal(goal: Goal, answers: Sequence[Answer]) -> Markup:
    asked = element("span", f"{goal.bound} {goal.unit}", class_="was")
    if not answers:
        verdict = element("td", "? not measured", asked, class_="unknown")
        return blocks.row(element("th", goal.what, scope="row", class_="text"), verdict, _spread(None), _spread(None))
    ratio = worst([answer.ratio for answer in answers])
    one = next(answer for answer in answers if answer.ratio is ratio)
    missed = sum(not answer.holds for answer in answers)
    several = len(answers) > 1
    of = f" in {missed} of {len(answers)}" if several else ""
    which = f"worst of {len(answers)}: {line(one.ratio.job)} / {line(one.ratio.peer)}, {line(words(one.ratio.case))}"
    return blocks.row(
        element(
            "th",
            goal.what,
            element("span", which, class_="was") if several else None,
            element("span", element("code", one.run.file), f", commit {line(one.run.commit)}", class_="was"),
            scope="row",
            class_="text",
        ),
        element("td", f"✗ NOT MET{of}" if missed else "✓ holds", asked, class_="invalid" if missed else "valid"),
        _spread(one.ratio.values, strong=True),
        _spread(_values(one.before)),
    )


def ratios(run: Run, before: Run | None) -> Markup:
    """Return a table of every ratio of a run."""
    old = before.result.ratios if before else ()
    rows = [
        blocks.row(
            element("th", line(r.job), scope="row", class_="name"),
            element("td", line(r.peer), class_="name"),
            element("td", line(words(r.case)), class_="name"),
            line(r.what),
            _spread(r.values, strong=True),
            _spread(_values(same(r, old))),
            _asked(r),
        )
        for r in run.result.ratios
    ]
    heads = ("job", "over", "case", "of", "newest run", "the run before", "goal")
    return blocks.table("Ratios within a round: median and quartiles", heads, rows, numbers=(4, 5))


def _asked(ratio: Ratio) -> Markup:
    goal = GOALS.get(ratio.goal) if ratio.goal else None
    if goal is None:
        return element("td")
    holds = goal.holds(statistics.median(ratio.values))
    said = f"{'✓' if holds else '✗'} {goal.bound}"
    return element("td", said, class_="valid" if holds else "invalid")


def measures(run: Run, before: Run | None) -> Markup:
    """Return a table of every absolute figure of a run, by case."""
    old = before.result.measures if before else ()
    rows: list[Markup] = []
    by_case: dict[str, list[Measure]] = {}
    for measure in run.result.measures:
        by_case.setdefault(words(_without_phase(measure)), []).append(measure)
    for case, some in by_case.items():
        head = element("th", line(case) or "–", scope="rowgroup", rowspan=len(some), class_="name")
        for place, m in enumerate(some):
            rows.append(blocks.row(*([head] if place == 0 else []), *_measure(m, same_measure(m, old))))
    heads = ("case", "job", "newest run", "the run before", "change", "unit")
    return blocks.table("Absolute figures: median and quartiles", heads, rows, numbers=(2, 3, 4))


def _without_phase(measure: Measure) -> Case:
    return {key: value for key, value in measure.case.items() if key != "phase"}


def _measure(measure: Measure, before: Measure | None) -> Iterator[Markup]:
    phase = f", {line(measure.case['phase'])}" if "phase" in measure.case else ""
    yield element("td", line(measure.job) + phase, class_="name")
    yield _spread(measure.values, strong=True)
    yield _spread(_values(before))
    yield blocks.number(_change(measure, before))
    yield element("td", line(measure.unit))


def _values(found: Measure | Ratio | None) -> Sequence[float] | None:
    return found.values if found is not None else None


def _change(measure: Measure, before: Measure | None) -> str:
    old = statistics.median(before.values) if before is not None else 0.0
    return f"{100 * (statistics.median(measure.values) / old - 1):+.0f} %" if old else "–"


def _spread(values: Sequence[float] | None, *, strong: bool = False) -> Markup:
    if not values:
        return blocks.number("–")
    if not strong:
        return blocks.number(with_spread(values))
    return element("td", element("b", amount(statistics.median(values))), f" {between(values)}", class_="number")


def environments(runs: Sequence[Run]) -> Markup:
    """Return a table of where the runs of the page were measured."""
    rows = [_environment(run) for run in runs]
    heads = ("table", "when (UTC)", "commit", "rounds", "machine", "versions")
    return blocks.table("The runs of this page and where they were measured", heads, rows, numbers=(3,))


def _environment(run: Run) -> Markup:
    told = run.environment
    machine = f"{told.get('cores', '?')} cores, {told.get('memory_gb', '?')} GB, {told.get('machine', '?')}"
    more = ", ".join(line(told[name]) for name in ("processor", "file_system") if told.get(name))
    load = element("span", f"load before: {line(told.get('load_before', '?'))}", class_="was")
    versions = told.get("versions", {})
    named = ", ".join(f"{name} {version}" for name, version in versions.items()) if isinstance(versions, dict) else ""
    return blocks.row(
        element("th", run.result.table, element("span", run.file, class_="was"), scope="row", class_="name"),
        element("td", line(run.when)),
        element("td", element("code", line(run.commit))),
        blocks.number(run.result.rounds),
        element("td", line(machine), element("span", more, class_="was") if more else None, load, class_="name"),
        element("td", line(named, FACT), class_="text"),
    )


def facts(told: Mapping[str, object]) -> Markup:
    """Return a table of what else was found."""
    rows = [
        blocks.row(element("th", line(name), scope="row", class_="name"), element("td", element("code", _fact(value))))
        for name, value in told.items()
    ]
    return blocks.table("What was found beside the figures", ("", ""), rows, class_="about")


def _fact(value: object) -> str:
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return f"{len(value):,} records in the file"
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), FACT)
