"""Stored results as a page, and as the figures of the README: all is told, nothing is called better than it is."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures
from benchmarks.cells import ALARMS, IN_PARTS
from benchmarks.goals import GOALS
from benchmarks.measuring import Measure, Ratio, words
from benchmarks.page import dots, grid, lines, stacks
from benchmarks.page.__main__ import main
from benchmarks.page.document import html
from benchmarks.results import FOLDER, Result
from benchmarks.stored import Run, all_stored, answers, stored, worst
from benchmarks.summary import amount, with_spread
from benchmarks.tables import GROWTH, LONG, SEVERAL, TABLES, memory
from tests.browser import measured

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of every form."""
    made = tmp_path_factory.mktemp("results")
    measured.write(made)
    return made


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return html(folder, about=measured.ABOUT)


@cache
def text(page: str) -> str:
    """What is read, without tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def section(page: str, name: str) -> str:
    found = re.search(rf'<section><h2 id="{name}">.*?</section>', page, re.DOTALL)
    assert found is not None
    return found[0]


def of_values(*values: float, goal: str | None = None) -> Ratio:
    return Ratio("a", "b", {}, "s", values, goal)


def run(result: Result, cells: list[dict[str, Any]] | None = None) -> Run:
    return Run("a.json", {"when": "2026-11-23T10:15:00+00:00", "commit": "abc"}, result, cells or [])


# --- the README -----------------------------------------------------------------------------------------


def test_readme_shows_the_figures_of_the_newest_results() -> None:
    readme = (ROOT / "README.md").read_text()
    assert f"{figures.BEGIN}{figures.table()}{figures.END}" in readme, (
        "stale: run `python -m benchmarks.figures --into README.md`"
    )


def test_the_published_page_is_of_the_newest_results() -> None:
    published = (FOLDER / "index.html").read_text()
    newest = [runs[0].file for name in TABLES if (runs := stored(name))]
    assert newest
    assert [file for file in newest if file not in published] == [], "stale: run `make bench-page`"


def test_ten_figures_of_tables_that_there_are() -> None:
    assert len(figures.FIGURES) == 10
    assert {table for figure in figures.FIGURES for table in figure.tables} <= TABLES.keys()


def test_each_figure_is_told_by_the_newest_run(folder: Path) -> None:
    told = {what: said for what, said, _ in figures.rows(folder)}
    assert figures.MISSING not in told.values()
    speeds = next(said for what, said in told.items() if what.startswith("Postgres"))
    newest = stored("throughput", folder=folder)[0].result
    mine = next(m for m in newest.measures if m.job == "epochal postgres" and m.case["rows"] == 2_000_000)
    assert speeds.startswith(f"{with_spread(mine.values)} rows/s; ")
    assert told["Correctness as outside readers see it; a cell is one kind of fault in one mode of one sink"] == (
        "wrong in 0 of 16 cells, clean in 16; other writers: wrong in 9 of 12"
    )
    growth = next(
        said for what, said in told.items() if what == "Duration of epoch 100,000, compared with that of epoch 10"
    )
    ratios = [ratio for name in GROWTH for ratio in stored(name, folder=folder)[0].result.ratios]
    asked = [ratio for ratio in ratios if ratio.goal == "growth"]
    assert len(asked) == len(GROWTH)
    assert growth.startswith(with_spread(worst(asked).values))
    assert growth.endswith("the largest of the sinks (delta)")


def test_memory_is_told_of_python_and_of_the_jvm_beside_its_peer(folder: Path) -> None:
    what = "How the peak memory grows with the size of an epoch, the worst case"
    told = {name: said for name, said, _ in figures.rows(folder)}[what]
    pattern = (
        r"memory at 50,000,000 rows divided by memory at 1,000,000 rows:"
        r" Python \((driver|worker), of epochal \w+\) [\d.]+ \(.+ to .+\) times;"
        r" JVM \(heap after a collection, of epochal \w+\) [\d.]+ \(.+ to .+\) times;"
        r" JVM of delta append [\d.]+ \(.+ to .+\) times"
    )
    assert re.fullmatch(pattern, told), told
    assert figures.DELTA == memory.APPEND in memory.JOBS


def test_a_figure_of_several_tables_says_which_is_missing(tmp_path: Path) -> None:
    measured.write(tmp_path, [measured.growth_postgres, measured.growth_delta])
    told = {what: said for what, said, _ in figures.rows(tmp_path)}[
        "Duration of epoch 100,000, compared with that of epoch 10"
    ]
    assert told.endswith("the largest of the sinks (delta); growth-kafka not measured yet")


def test_growth_is_told_where_it_is_most_also_when_that_is_not_at_the_oldest() -> None:
    def grown(job: str, epochs: int, times: float, goal: str | None = None) -> Ratio:
        return Ratio(job, "the same at 10", {"epochs before": epochs}, "s", [times] * 5, goal)

    steady = [grown("kafka", 1_000, 1.1), grown("kafka", 100_000, 1.2, "growth")]
    told = figures._growth(run(Result("growth-kafka", 5, ratios=steady), []))
    assert told == "1.2 (1.2 to 1.2) times, the largest of the sinks (kafka)"
    grows = [grown("delta", 2_000, 3.5), grown("delta append", 2_000, 2.5), grown("delta append", 100_000, 9.0)]
    both = figures._growth(run(Result("growth-delta", 5, ratios=[*steady, *grows]), []))
    younger = "earlier, after 2,000 epochs, delta had grown more: 3.5 (3.5 to 3.5) times"
    assert both == f"{told}; {younger}; delta append after as many epochs: 2.5 (2.5 to 2.5) times"


def test_what_a_mode_does_not_promise_is_told_apart_from_what_is_wrong() -> None:
    result = Result("consistency", 1)
    result.facts[ALARMS] = ["epochal delta, zombie: not struck"]
    verdicts = {
        "epochal delta": "not struck",
        "epochal kafka, two slots": "wrong",
        "epochal kafka": "clean",
        "jdbc": "wrong",
    }
    told = figures._right(run(result, [{"job": job, "verdict": verdict} for job, verdict in verdicts.items()]))
    assert told == (
        "wrong in 1 of 3 cells, clean in 1; in 1 a reader saw a part of an epoch (Kafka with `slots=2`, where an"
        " epoch is two transactions, and only each transaction is atomic); other writers: wrong in 1 of 1"
    )


def test_a_figure_of_few_rounds_says_so(tmp_path: Path) -> None:
    def short(making: measured.Making) -> Result:
        made = measured.recovery(making)
        made.rounds = 2
        return made

    measured.write(tmp_path, [short])
    (told,) = [said for _, said, _ in figures.rows(tmp_path) if said != figures.MISSING]
    assert re.search(r"s more than Spark's own restart \(sinks postgres.*, fault .*\); 2 rounds$", told)


def test_a_figure_without_results_is_not_measured_yet(tmp_path: Path) -> None:
    measured.write(tmp_path, [measured.recovery])
    told = [said for _, said, _ in figures.rows(tmp_path)]
    assert len([said for said in told if said == figures.MISSING]) == 9


def test_a_quick_run_is_no_result(tmp_path: Path) -> None:
    def quick(making: measured.Making) -> Result:
        made = measured.recovery(making)
        made.quick = True
        return made

    measured.write(tmp_path, [quick])
    assert {said for _, said, _ in figures.rows(tmp_path)} == {figures.MISSING}
    assert "Not measured yet." in section(html(tmp_path, about=measured.ABOUT), "recovery")
    of_quick = html(tmp_path, quick=True, about=measured.ABOUT)
    assert "Not measured yet." not in section(of_quick, "recovery")
    assert "are not results" in text(of_quick)


def test_results_that_do_not_tell_a_figure_are_an_error(tmp_path: Path) -> None:
    def other(making: measured.Making) -> Result:
        return Result("latency", 5, measures=[Measure("epochal", {"of": "p50 of all"}, "s", making.around(1.0))])

    measured.write(tmp_path, [other])
    with pytest.raises(figures.NotTold, match=r"latency-20261125T231000Z\.json"):
        figures.rows(tmp_path)


def test_the_table_is_put_between_its_marks_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{figures.BEGIN}old\n{figures.END}\nafter\n")
    figures.put("new\n", page)
    assert page.read_text() == f"before\n{figures.BEGIN}new\n{figures.END}\nafter\n"
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match=r"page\.md has no <!-- figures -->"):
        figures.put("new\n", page)
    assert page.read_text() == "no marks\n"


# --- the page -------------------------------------------------------------------------------------------


@pytest.mark.wide
@pytest.mark.slow
def test_the_same_results_give_the_same_page_below_its_size(folder: Path, page: str) -> None:
    assert html(folder, about=measured.ABOUT) == page
    assert len(page.encode()) < 500_000


def test_nothing_comes_from_elsewhere_and_what_is_hostile_stays_text(page: str) -> None:
    assert "default-src 'none'" in page or "default-src &#x27;none&#x27;" in page
    assert not re.search(r"<(script|img|link|iframe|object)|url\((?!#)|(src|href)=\"(?!#)", page)
    assert "alert(" in page
    assert "&lt;script&gt;" in page


def test_every_table_has_its_section_with_both_runs_and_its_command(folder: Path, page: str) -> None:
    for name in measured.ABOUT:
        told = text(section(page, name))
        if name == "reader-view":
            assert "Not measured yet. .venv/bin/python -m benchmarks reader-view makes it." in told
            continue
        newest, before = stored(name, folder=folder)
        assert f"commit {newest.commit}" in told
        assert f"beside {before.when} UTC, commit {before.commit}" in told
        assert newest.command in told
    environment = text(section(page, "environment"))
    for run in all_stored(measured.ABOUT, folder=folder)["throughput"]:
        assert run.file in environment
    assert "Intel(R) Xeon(R) Processor, ext4" in environment


def test_a_first_run_has_none_before_it(tmp_path: Path) -> None:
    measured.write(tmp_path, [measured.throughput, measured.consistency], {"20261123T101500Z": "abc"})
    made = html(tmp_path, about=measured.ABOUT)
    for name in ("throughput", "consistency"):
        told = text(section(made, name))
        assert "no run before it" in told
        assert "before: " not in told


def test_a_page_of_nothing_says_that_nothing_was_measured(tmp_path: Path) -> None:
    told = text(html(tmp_path, about=measured.ABOUT))
    assert "0 of 11 tables are measured." in told
    assert told.count("? not measured") == len(GOALS)


def test_results_of_another_form_are_left_out(tmp_path: Path) -> None:
    measured.write(tmp_path, [measured.recovery], {"20261123T101500Z": "abc"})
    (tmp_path / "recovery-20271123T101500Z.json").write_text(json.dumps({"version": 99, "table": "recovery"}))
    assert [run.commit for run in stored("recovery", folder=tmp_path)] == ["abc"]


@pytest.mark.wide
@pytest.mark.slow
def test_the_command_writes_beside_the_results(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--from", str(folder), "--into", str(tmp_path / "new" / "page.html")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_text().startswith("<!DOCTYPE html>")


# --- goals ----------------------------------------------------------------------------------------------


def goal_row(page: str, what: str) -> str:
    rows = re.findall(r"<tr>.*?</tr>", section(page, "goals"), re.DOTALL)
    (row,) = [row for row in rows if what in row]
    return text(row)


@pytest.mark.slow
def test_goals_are_told_with_what_was_found_before_and_where(page: str, folder: Path) -> None:
    holds = goal_row(page, GOALS["postgres-jdbc"].what)
    newest, before = stored("throughput", folder=folder)
    mine, old = (next(r for r in each.result.ratios if r.goal == "postgres-jdbc") for each in (newest, before))
    assert "✓ holds at least 2.2 times" in holds
    assert with_spread(mine.values) in holds
    assert with_spread(old.values) in holds
    assert f"{newest.file} , commit {newest.commit}" in holds
    assert "✗ NOT MET at most 1 s more" in goal_row(page, GOALS["small-three"].what)
    assert "? not measured at least 1.2 times" in goal_row(page, "Flink")


def test_a_goal_of_several_cases_is_met_in_all_or_not_at_all(page: str) -> None:
    row = goal_row(page, GOALS["growth"].what)
    assert re.search(r"worst of 3: delta / the same at 10, 100,000 epochs before", row)
    assert re.search(r"✗ NOT MET in \d of 3 at most 1.1 times", row)


def test_the_worst_is_the_least_or_the_most() -> None:
    low, high = of_values(0.7, goal="kafka-spark"), of_values(0.9, goal="kafka-spark")
    assert worst([high, low]) is low
    low, high = of_values(0.7, goal="growth"), of_values(0.9, goal="growth")
    assert worst([low, high]) is high


def test_a_goal_is_answered_by_the_newest_run_that_was_asked() -> None:
    new, old = Result("t", 1, ratios=[of_values(1.0)]), Result("t", 1, ratios=[of_values(9.0, goal="growth")])
    (answer,) = answers({"t": [run(new), run(old)]})["growth"]
    assert (answer.ratio.values, answer.before, answer.holds) == ((9.0,), None, False)


# --- pictures -------------------------------------------------------------------------------------------


def test_a_line_needs_points_and_one_case() -> None:
    of_rows = [Measure("a", {"rows": rows, "value bytes": rows}, "rows/s", [1.0]) for rows in (1, 2, 3)]
    assert lines.panels(of_rows, []) == [], "each in a case of its own"
    epochs = [Measure(job, {"epochs before": n}, "s", [1.0]) for job in ("a", "a: start") for n in (10, 100)]
    assert [panel.title for panel in lines.panels(epochs, [])] == [
        "Seconds over epochs before",
        "Seconds over epochs before: start",
    ]
    many = [Measure(f"job {n}", {"epoch": epoch}, "s", [1.0]) for n in range(8) for epoch in (10, 100)]
    assert [(len(panel.newest), panel.title) for panel in lines.panels(many, [])] == [
        (6, "Seconds over epochs (1 of 2)"),
        (2, "Seconds over epochs (2 of 2)"),
    ]


def test_the_run_before_is_drawn_where_it_has_the_same_alone() -> None:
    newest = [Measure("a", {"epoch": epoch}, "s", [1.0]) for epoch in (10, 100)]
    other = [Measure("a", {"epoch": epoch}, "bytes", [1.0]) for epoch in (10, 100)]
    (panel,) = lines.panels(newest, [*other, Measure("a", {"epoch": 10}, "s", [2.0])])
    assert panel.before == {"a": {10: [2.0]}}


def test_phases_are_no_lines_and_lines_no_phases() -> None:
    phases = [Measure("a", {"rows": n, "phase": p}, "s", [1.0, 3.0]) for n in (1, 2, 3) for p in ("x", "y")]
    assert lines.panels(phases, []) == []
    assert [panel.newest for panel in stacks.panels(phases, [])] == [{"a": {"x": 2.0, "y": 2.0}}] * 3
    assert stacks.panels([Measure("a", {"rows": 1}, "s", [1.0])], phases) == []


def test_a_step_within_a_phase_is_not_counted_beside_it() -> None:
    told = {"identify": 0.1, "copy": 2.0, "prepare kafka": 1.0, "prepare": 3.5, "commit kafka": 1.0, "commit": 1.2}
    measures = [Measure("a", {"rows": 1, "phase": phase}, "s", [seconds]) for phase, seconds in told.items()]
    (panel,) = stacks.panels(measures, measures)
    assert panel.newest == panel.before == {"a": {"identify": 0.1, "prepare": 3.5, "commit": 1.2}}


def test_cases_with_one_ratio_each_share_a_picture() -> None:
    cases = [Ratio("a", "b", {"fault": fault}, "s more", [1.0]) for fault in ("x", "y")]
    (panel,) = dots.panels(cases, [])
    assert (panel.title, [dot.label for dot in panel.dots]) == ("Seconds more", ["fault x", "fault y"])
    peers = [Ratio("a", peer, {"rows": rows}, "rows/s", [1.0]) for rows in (1, 2) for peer in ("b", "c")]
    assert [panel.title for panel in dots.panels(peers, [])] == ["Ratio of rows/s: 1 rows", "Ratio of rows/s: 2 rows"]
    assert [dot.label for dot in dots.panels(peers, [])[0].dots] == ["over b", "over c"]
    one = [Ratio(job, peer, {}, "s", [1.0]) for job, peer in (("a", "x"), ("b", "y"), ("c", "x"))]
    assert [(dot.heading, dot.label) for dot in dots.panels(one, [])[0].dots] == [
        ("over x", "a"),
        ("over x", "c"),
        ("over y", "b"),
    ]


def test_speeds_are_better_on_the_right_seconds_on_the_left() -> None:
    assert dots.more_is_better("rows/s")
    assert not any(dots.more_is_better(what) for what in ("s", "s more", "MB", "s of an epoch"))
    assert dots.is_difference("s more, with the epoch after it")
    assert not dots.is_difference("s of an epoch")


def test_values_at_zero_and_below_are_drawn() -> None:
    below = [Ratio("a", "b", {}, "s more", [-0.1, 0.0, 0.1], "recovery")]
    assert "✓ at most 1" in dots.draw(dots.panels(below, [])[0], "x")
    zero = [Measure("a", {"epoch": epoch}, "bytes", [0.0]) for epoch in (10, 100)]
    assert "0 at 10, 0 at 100" in lines.draw(lines.panels(zero, [])[0], "y")
    phases = [Measure("a", {"phase": phase}, "s", [0.0]) for phase in ("x", "y")]
    assert "x 0, y 0" in stacks.draw(stacks.panels(phases, [])[0], "z")


# --- consistency ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "tint", "said"),
    [
        ({"struck": 2, "verdict": "clean"}, "valid", "✓ clean"),
        ({"struck": 0, "verdict": "not struck"}, "unknown", "? not struck"),
        ({"struck": 2, "verdict": "unknown", "unknown": ["why"]}, "unknown", "? unknown"),
        ({"struck": 2, "verdict": "wrong", "duplicated": 2, "out_of_order": 1}, "invalid", "✗ 2 duplicated, 1 out of"),
        ({"struck": 2, "verdict": "wrong", "lost": 1, "unknown": ["why"]}, "invalid", "✗ 1 lost ?"),
        ({"struck": 2, "verdict": "clean", "lost": 1}, "invalid", "✗ 1 lost"),
        ({"struck": 2, "verdict": "what nobody has heard of"}, "unknown", "? what nobody"),
        ({"job": IN_PARTS[0], "struck": 2, "verdict": "wrong", "torn": 1}, "unknown", "(1 torn into its parts"),
        ({"job": IN_PARTS[0], "struck": 2, "verdict": "wrong", "torn": 1, "lost": 1}, "invalid", "✗ 1 lost, 1 torn"),
        ({"struck": 2, "verdict": "wrong", "torn": 1}, "invalid", "✗ 1 torn"),
    ],
)
def test_a_cell_is_clean_only_where_it_is_told_so(told: dict[str, Any], tint: str, said: str) -> None:
    drawn = grid.draw(run(Result("consistency", 1), [{"job": "a", "fault": "kill", **told}]), None)
    assert f'<td class="{tint}">{said}' in drawn


def test_a_cell_that_has_changed_says_what_it_was() -> None:
    cell = {"job": "a", "fault": "kill", "struck": 1, "verdict": "clean"}
    newest, before = (run(Result("consistency", 1), [each]) for each in (cell, {**cell, "verdict": "wrong", "lost": 3}))
    assert "before: ✗ 3 lost" in grid.draw(newest, before)
    assert "before" not in grid.draw(newest, newest)


@pytest.mark.slow
def test_faults_are_in_the_order_of_the_table_and_in_words(page: str) -> None:
    heads = re.findall(r'<th scope="col">([^<]*)</th>', section(page, "consistency"))
    assert heads[1 : len(measured.FAULTS) + 1] == list(reversed(measured.FAULTS))
    assert "connection cut: what connection cut does; server crashed: what" in text(section(page, "consistency"))


# --- words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [(1.4199, "1.42"), (0.0123456, "0.0123"), (999.6, "1,000"), (412_345, "412,000"), (1.5e6, "1.5 M"), (-0.5, "-0.5")],
)
def test_an_amount_has_three_digits_and_no_exponent(value: float, said: str) -> None:
    assert amount(value) == said


def test_cases_are_read_as_people_write_them() -> None:
    assert words({"rows": 2_000, "value bytes": 100, "epoch": 10, "of": "p50"}) == (
        "2,000 rows, 100 value bytes, epoch 10, of p50"
    )


def test_every_table_has_a_target_of_make() -> None:
    assert {*LONG} < {*TABLES}
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"-m benchmarks ([^\n]*)", makefile)
    asked = [word for command in commands for word in takewhile(lambda word: word[0] != "-", command.split())]
    assert {"all", "most"} < {*asked}
    of_their_own = [name for word in asked if word not in ("all", "most") for name in SEVERAL.get(word, [word])]
    assert sorted(of_their_own) == sorted(LONG)
