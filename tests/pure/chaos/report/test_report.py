"""The report as a file: all of it is in there, none of it from elsewhere, and whatever is hostile stays text."""

from __future__ import annotations

import base64
import gzip
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from epochal.chaos.observe import recording
from epochal.chaos.observe.checker import Finding, Verdict, judge_all, overall
from epochal.chaos.observe.history import AtRest, Changed, Decided, Ended, Event, Fault, History, Read, Row, Started
from epochal.chaos.observe.invariants import CHECKS, SIMULATED
from epochal.chaos.observe.run import Run
from epochal.chaos.report import Round, html, palette, write
from epochal.chaos.report import page as pages
from epochal.chaos.report.account import Account, summaries
from epochal.chaos.report.chart import drawing, text_width, wrapped
from epochal.chaos.report.heatmap import MOST_POINTS, OTHERS, Strikes, unstruck
from epochal.chaos.report.kinds import assign
from epochal.chaos.report.lanes import ranges
from epochal.chaos.report.text import Markup, clean, element, line
from epochal.chaos.report.words import MEANINGS, VERDICTS, fault, listed
from epochal.chaos.simulate.pipelines import Pipeline
from epochal.chaos.simulate.simulation import Simulation
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.failpoints import Point
from tests.browser import histories

SMALL: dict[str, Any] = {"epochs": 5, "rows": 3, "faults": 3}


class Seen(HTMLParser):
    """Elements, texts and links of a page, as a browser takes them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def cells(self) -> list[str]:
        return [text.strip() for text in self.texts if text.strip()]


def page(*rounds: Round) -> Seen:
    return Seen(html(rounds, histories.ABOUT))


@cache
def written(kind: str) -> str:
    """A page that more than one test looks at."""
    made = {
        "wide": lambda: [histories.wide()],
        "two": lambda: [histories.valid(**SMALL), histories.invalid()],
    }
    return html(made[kind](), histories.ABOUT)


def of(events: Sequence[Event], times: Sequence[float] = (), sinks: tuple[str, ...] = ("a", "b")) -> Account:
    return Account(1, Round(Run(History(list(events), times=list(times)), sinks, {}), {}))


# --- what is in the page ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "verdict"),
    [(histories.valid, "valid"), (histories.invalid, "invalid"), (histories.unknown, "unknown")],
)
def test_the_verdict_is_that_of_the_findings(made: Callable[[], Round], verdict: str) -> None:
    round_ = made()
    assert VERDICTS[overall(round_.findings)] == verdict
    seen = page(round_)
    assert seen.cells()[4] == verdict.capitalize()
    assert ("class", f"verdict {verdict}") in seen.attributes


def test_unknown_is_no_pass_and_says_so() -> None:
    seen = page(histories.valid(), histories.unknown())
    assert "Unknown is not a pass." in seen.text
    assert ("class", "verdict valid") not in seen.attributes


def test_nothing_that_was_run_is_unknown() -> None:
    seen = page()
    assert "Nothing was run" in seen.text
    assert ("class", "verdict unknown") in seen.attributes


def test_a_run_without_faults_says_what_it_is_worth() -> None:
    assert "No fault struck, so this only says" in page(histories.valid(**{**SMALL, "faults": 0})).text


def test_what_was_found_first_is_said_in_words() -> None:
    text = page(histories.valid(**SMALL), histories.invalid()).text
    assert "Rows are there more often than once (I2)." in text
    said = r"First found in round 2 of 2, after \d+\.\d s; the last fault before it was the kill of the driver"
    assert re.search(said, text)


def test_every_finding_is_in_the_page() -> None:
    rounds = [histories.valid(**SMALL), histories.invalid(), histories.unknown()]
    seen = page(*rounds)
    for name in CHECKS:
        assert name in seen.cells()
        assert MEANINGS[name].name in seen.cells()
    for round_ in rounds:
        for finding in round_.findings.values():
            assert finding.why in seen.text
    observations = sum(round_.findings["I4"].observations for round_ in rounds)
    assert f"{observations:,}" in seen.cells()


def test_every_fault_is_in_the_page_with_all_that_is_known_of_it() -> None:
    round_ = histories.wide()
    seen = Seen(written("wide")).cells()
    for _, struck in round_.run.history.of(Fault):
        if not struck.healed:
            assert any(text.endswith(struck.kind) for text in seen)
            assert {struck.victim, struck.point, struck.sink} - {""} <= set(seen)
    struck_times = sum(not struck.healed for _, struck in round_.run.history.of(Fault))
    assert f"List of {struck_times} faults" in seen


def test_environment_and_seed_are_in_the_page() -> None:
    seen = page(histories.valid(**SMALL)).cells()
    assert "Seed 20261121." in seen
    for text in ("versions.spark", "4.2.0", "started_at", "machine.memory", histories.ABOUT["command"]):
        assert text in seen


def test_invariants_that_were_not_asked_do_not_hold() -> None:
    world = Simulation(Pipeline(("delta", "postgres"), ("kafka",)))
    with failpoints.handler(world.hit):
        world.play(3)
        world.converge(4)
    run = world.run_of(4)
    seen = page(Round(run, judge_all(run, SIMULATED)))
    assert "I9, I10, I13 and I15 were not asked in this run." in seen.text
    assert seen.cells().count("– not asked") == 4
    assert seen.cells().count("✓ holds") == 11
    assert "events since the round began" in seen.text


def test_an_invariant_of_the_callers_own_has_its_row() -> None:
    own = {"order of keys": Finding(Verdict.FALSE, "key 7 came before key 6", 12)}
    seen = page(histories.bad_findings(histories.valid(**SMALL), own))
    assert "order of keys" in seen.cells()
    assert "key 7 came before key 6" in seen.text
    assert ("class", "verdict invalid") in seen.attributes


def test_all_invariants_have_a_meaning() -> None:
    assert MEANINGS.keys() == CHECKS.keys()


def test_the_worst_round_decides() -> None:
    rounds = [histories.valid(**SMALL), histories.unknown(**SMALL), histories.invalid()]
    found = {s.invariant: s for s in summaries([Account(n, r) for n, r in enumerate(rounds, 1)])}
    assert found["I13"].verdict is Verdict.UNKNOWN
    assert found["I13"].rounds == {Verdict.TRUE: 2, Verdict.FALSE: 0, Verdict.UNKNOWN: 1}
    assert found["I2"].verdict is Verdict.FALSE
    assert [number for number, _ in found["I2"].reasons] == [3]
    assert found["I9"].verdict is Verdict.TRUE


# --- one file, below a size, the same every time ------------------------------------------------------


def test_nothing_is_loaded_from_elsewhere() -> None:
    seen = Seen(written("two"))
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(seen.tags)
    outside = [value for name, value in seen.attributes if name in ("href", "src", "srcset", "action")]
    assert all(value.startswith(("#", "data:application/gzip;base64,")) for value in outside)
    assert not re.search(r"url\((?!#)|@import|https?:", written("two"))


def test_the_same_rounds_give_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "again", [histories.valid(**SMALL), histories.invalid()], histories.ABOUT)
    assert (tmp_path / "again").read_text(encoding="utf-8") == written("two")


@pytest.mark.slow
def test_the_same_rounds_give_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from epochal.chaos.report import write; from tests.browser import histories; "
        "write(pathlib.Path(sys.argv[1]), [histories.invalid()], histories.ABOUT)"
    )
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / seed)],
            cwd=Path(__file__).parents[4],
            env={"PATH": "", "PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed, "HOME": str(tmp_path)},
            check=True,
            timeout=120,
        )
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_ids_are_not_used_twice_and_refer_to_something() -> None:
    ids = re.findall(r'\bid="([^"]+)"', written("two"))
    assert len(ids) == len(set(ids))
    referred = set(re.findall(r'(?:url\(|href=")#([\w-]+)', written("two")))
    referred |= {name for names in re.findall(r'aria-labelledby="([^"]+)"', written("two")) for name in names.split()}
    assert referred <= set(ids)


@pytest.mark.slow
def test_a_page_has_a_bound_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [histories.valid(seed, **SMALL) for seed in range(3)] + [histories.invalid()]
    whole = html(rounds, histories.ABOUT)
    limit = len(whole.encode()) * 3 // 4
    monkeypatch.setattr(pages, "LIMIT", limit)
    monkeypatch.setattr(pages, "PICTURES", limit - 9_000)
    monkeypatch.setattr(pages, "SPARE", 5_000)
    small = html(rounds, histories.ABOUT)
    assert len(small.encode()) < limit
    seen = Seen(small)
    assert re.search(r"The pictures of .*rounds? .* are left out", seen.text)
    assert re.search(r"The histories of .*rounds? .* are left out", seen.text)
    assert any(text.startswith("Round 4: invalid") for text in seen.cells()), "what is wrong is left out last"


def test_a_large_history_is_left_out_and_the_rest_is_there() -> None:
    rng = random.Random(1)
    round_ = histories.valid(**SMALL)
    noise = tuple(f"{rng.getrandbits(512):x}" for _ in range(60_000))
    run = replace(round_.run, history=History([*round_.run.history.events, AtRest("noise", noise)]))
    small = html([Round(run, round_.findings)], histories.ABOUT)
    assert len(small.encode()) < 200_000
    assert "The histories of round 1 are left out: the page would be larger than 5 MB." in Seen(small).text


@pytest.mark.slow
def test_very_many_rounds_and_faults_stay_below_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    one = histories.invalid(**SMALL)
    loud = Round(one.run, {name: Finding(Verdict.FALSE, "x" * 100_000, 1) for name in CHECKS})
    monkeypatch.setattr(pages, "FAULTS", 200)
    monkeypatch.setattr(pages, "PICTURES", 400_000)  # no more than a few pictures: they take time
    large = html([loud] * 250, histories.ABOUT)
    assert len(large.encode()) < pages.LIMIT
    seen = Seen(large)
    assert "further faults are only in the histories." in seen.text
    assert "Also in 230 rounds (21–250)." in seen.text


def test_a_history_in_the_page_is_one_that_can_be_loaded(tmp_path: Path) -> None:
    round_ = histories.invalid()
    links = [v for n, v in page(round_).attributes if n == "href" and v.startswith("data:")]
    assert len(links) == 1
    (tmp_path / "h.jsonl").write_bytes(gzip.decompress(base64.b64decode(links[0].partition(",")[2])))
    run, about = recording.load(tmp_path / "h.jsonl")
    assert judge_all(run) == round_.findings
    assert about == {**histories.ABOUT, "seed": 2}


def test_what_is_said_about_a_run_need_not_be_json() -> None:
    seen = Seen(html([histories.valid(**SMALL)], {"path": Path("some/where"), "points": Point, "sinks": {"b", "a"}}))
    assert any("some/where" in text for text in seen.cells())
    assert '["a", "b"]' in seen.cells()


# --- hostile texts ------------------------------------------------------------------------------------

ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style></svg><script>alert(1)</script>",
    "]]>--><!--",
    "javascript:alert(1)",
    "$\\frac{1}{0}$ ${x} {x} %s #fe01ef",
    "&lt;b&gt; &amp;",
    "line one\nline two\ttab",
    "nul \x00 escape \x1b[31m surrogate \ud800 turn \u202e end \ufffe",
    "😀 中文表格 e\u0301",
    "",
    " ",
    "x" * 2_000,
)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_names_stay_text(attack: str) -> None:
    struck = [
        Fault(attack, attack, attack, attack, 1, attack),
        Fault("kill", "driver", attack, "", 2),
        Fault(attack, attack, healed=True),
    ]
    rows = {attack: (Row(1, 1, 1, 1),)}
    events: list[Event] = [
        Started(attack),
        Read({attack: ()}),
        *struck,
        Decided(1, 7, attack),
        Changed(attack, attack, 1),
        Read(rows),
        Ended(attack, attack),
    ]
    run = Run(History(events), (attack,), {1: rows[attack]})
    findings = {"I1": Finding(Verdict.FALSE, attack, 1), attack: Finding(Verdict.UNKNOWN, attack, 1)}
    harmless = page(Round(of([]).run, {}))
    hostile = html([Round(run, findings, {attack: attack})] * 2, {attack: attack, "target": attack, "seed": attack})
    seen = Seen(hostile)
    assert not {"script", "img", "b"} & set(seen.tags)
    assert not {name for name, _ in seen.attributes if name.startswith("on")}
    assert seen.open == []
    assert harmless.open == []
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800\ufffe]", hostile)
    if line(attack):
        assert line(attack, 100)[:90] in seen.text


def test_text_is_escaped_and_markup_is_not() -> None:
    assert element("p", "<b>", Markup("<i></i>"), title='"<') == '<p title="&quot;&lt;">&lt;b&gt;<i></i></p>'
    assert element("a", ["x", None, ("y",)], open=True, hidden=False, aria_label="z") == '<a open aria-label="z">xy</a>'


def test_what_is_cut_says_how_much_is_missing() -> None:
    assert clean("x" * 1_500, 100) == "x" * 100 + " … (1,400 more characters)"


# --- what is read out of a history --------------------------------------------------------------------


def test_a_fault_lasts_until_it_is_undone() -> None:
    cut, pause = Fault("cut", "kafka", sink="k"), Fault("pause", "driver", driver="d1")
    account = of(
        [cut, pause, Fault("cut", "kafka", healed=True), cut, Fault("pause", "driver", healed=True), Started("d2")],
        [0, 1, 2, 3, 4, 5],
    )
    told = [(band.fault.kind, band.start, band.end, band.ended) for band in account.bands]
    assert told == [("cut", 0, 2, "undone"), ("pause", 1, 4, "undone"), ("cut", 3, 5, "d2 started")]


@pytest.mark.parametrize(
    ("victim", "end", "ended"),
    [("driver", 6, "d2 started"), ("executor", 4, "work went on"), ("postgres", 4, "work went on")],
)
def test_a_kill_lasts_until_there_is_life_again(victim: str, end: float, ended: str) -> None:
    events: list[Event] = [
        Started("d1"),
        Fault("kill", victim),
        Decided(1, 7, "g1/1"),
        Changed("a", "g1/1", 1),
        Started("d2"),
    ]
    band = of(events, [0, 2, 4, 5, 6]).bands[0]
    assert (band.start, band.end, band.ended) == (2, end, ended)


def test_a_fault_that_nothing_ends_lasts_until_the_end() -> None:
    band = of([Fault("kill", "driver"), Ended("d1", "killed")], [1, 9]).bands[0]
    assert (band.start, band.end, band.ended) == (0, 8, "the round ended")


def test_an_undoing_without_a_fault_is_told_and_counts_as_none() -> None:
    account = of([Fault("cut", "kafka", healed=True)], [3])
    assert [band.orphan for band in account.bands] == [True]
    assert account.strikes == []


def test_another_victim_or_sink_is_not_healed() -> None:
    cut = Fault("cut", "kafka", sink="k")
    for healed in (Fault("cut", "postgres", healed=True), Fault("cut", "kafka", sink="other", healed=True)):
        assert [band.ended for band in of([cut, healed]).bands if not band.orphan] == ["the round ended"]


def test_each_epoch_is_shown_once_at_its_first_sighting() -> None:
    one, two = (Row(1, 1, 1),), (Row(1, 1, 1), Row(2, 2, 1), Row(3, 3, 1))
    account = of(
        [Read({"a": (), "b": ()}), Read({"a": one}), Read({"b": two}), Read({"a": two, "b": one})], [5, 6, 7, 8]
    )
    found = {sink: [(one.at, one.epochs) for one in shown] for sink, shown in account.shown.items()}
    assert found == {"a": [(1, (1,)), (3, (2, 3))], "b": [(2, (1, 2, 3))]}


def test_a_driver_lives_from_its_start_to_its_end() -> None:
    events: list[Event] = [Started("d1"), Started("d2"), Ended("d1", "Fenced"), Started("d1"), Ended("d1", "finished")]
    lives = of(events, [0, 1, 2, 3, 4]).lives
    assert [(life.driver, life.start, life.end, life.outcome) for life in lives] == [
        ("d1", 0, 2, "Fenced"),
        ("d2", 1, 4, ""),
        ("d1", 3, 4, "finished"),
    ]


def test_violations_lie_where_the_history_first_shows_them() -> None:
    round_ = histories.invalid()
    account = Account(1, round_)
    reads = [at for at, _ in round_.run.history.of(Read)]
    places = {violation.invariant: violation.place for violation in account.violations}
    twice = next(
        at
        for at, read in round_.run.history.of(Read)
        if len(set(read.content["postgres"])) < len(read.content["postgres"])
    )
    assert places["I2"] == twice
    assert places["I5"] in reads
    assert places["I5"] > twice
    assert places["I1"] == len(round_.run.history.events) - 1
    assert account.violations[0].invariant == "I2"


# --- pictures -----------------------------------------------------------------------------------------


def test_the_heat_map_counts_points_sinks_and_kinds() -> None:
    faults = [
        Fault("kill", "driver", "after-decide"),
        *[Fault("cut", "kafka", "in-write", "k")] * 3,
        Fault("kill", "x"),
    ]
    strikes = Strikes.of(faults)
    assert strikes.counts == {("after-decide", "", "kill"): 1, ("in-write", "k", "cut"): 3, ("", "", "kill"): 1}
    assert strikes.points == ("after-decide", "in-write", "")
    assert len(unstruck(faults)) == len(Point) - 2
    assert unstruck([Fault("kill", "driver", "row 7")]) == []


def test_very_many_points_are_put_together_and_none_is_lost() -> None:
    faults = [Fault("kill", "driver", f"row {n}") for n in range(500)]
    strikes = Strikes.of(faults)
    assert sum(strikes.counts.values()) == 500
    assert len(strikes.points) == MOST_POINTS + 1
    assert strikes.counts[OTHERS, "", "kill"] == 500 - MOST_POINTS


def test_each_kind_has_a_letter_of_its_own() -> None:
    kinds = assign([Fault(kind, "v") for kind in ("cut", "crash", "clock", "CUT", "c", "C", "", "é", "X", "x")])
    letters = [kind.letter for kind in kinds.values()]
    assert len(letters) == len(set(letters)) == 10


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([3, 4, 5], "3–5"), ([5, 3, 4, 9, 4], "3–5, 9"), ([-1, 0], "-1–0")]
)
def test_numbers_are_written_as_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_long_names_are_broken_into_lines_and_nothing_is_lost() -> None:
    for name in histories.LONG_SINKS:
        with drawing():
            lines = wrapped(name, 120).split("\n")
            assert all(text_width(one) <= 120 for one in lines)
        assert "".join(lines).replace(" ", "") == name.replace(" ", "")


def texts_of(chart: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(chart).iter("text")]


def test_names_of_sinks_points_and_kinds_are_in_the_pictures() -> None:
    charts = re.findall(r"<svg.*?</svg>", written("wide"), re.DOTALL)
    assert len(charts) == 2
    over_time, heat = ("".join(texts_of(chart)).replace(" ", "") for chart in charts)
    for sink in histories.LONG_SINKS:
        assert sink.replace(" ", "") in over_time
    for kind in histories.LONG_KINDS:
        assert kind.replace(" ", "") in over_time
        assert kind.replace(" ", "") in heat


def test_every_picture_has_a_title_and_a_description() -> None:
    charts = re.findall(r"<svg.*?</svg>", written("two"), re.DOTALL)
    assert len(charts) == 4
    for chart in charts:
        assert re.search(r'role="img" aria-labelledby="[\w-]+-title [\w-]+-desc"', chart)
        assert re.search(r"<title id=[^>]+>[^<]+</title><desc id=[^>]+>[^<]+</desc>", chart)


def test_tables_have_headers_and_captions() -> None:
    seen = page(histories.valid(**SMALL), histories.invalid())
    tables = seen.tags.count("table")
    assert tables == seen.tags.count("caption") > 4
    assert seen.attributes.count(("scope", "col")) > 20


# --- colours ------------------------------------------------------------------------------------------


READABLE: tuple[tuple[str, str, float], ...] = (
    *((ink, paper, 4.5) for ink in ("ink", "muted", "link") for paper in ("paper", "page")),
    *((verdict, paper, 4.5) for verdict in ("valid", "invalid", "unknown") for paper in ("paper", f"{verdict}-soft")),
    *(("ink", f"{verdict}-soft", 4.5) for verdict in ("valid", "invalid", "unknown")),
    *((f"kind-{n}", "paper", 3.0) for n in range(palette.KINDS)),
    *((f"heat-ink-{n}", f"heat-{n}", 4.5) for n in range(6)),
    *(("ink", paper, 4.5) for paper in ("tape-0", "tape-1", "bar")),
)
"""(foreground, background, contrast that they must have): by WCAG 2, 4.5 for text and 3 for shapes."""


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours ``#rrggbb``, from 1 to 21, as WCAG 2 defines it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_colours_can_be_read(colours: dict[str, str]) -> None:
    pale = {
        (ink, paper): round(contrast(colours[ink], colours[paper]), 2)
        for ink, paper, least in READABLE
        if contrast(colours[ink], colours[paper]) < least
    }
    assert pale == {}


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.slow
def test_both_schemes_have_every_colour_that_the_page_uses() -> None:
    used = set(re.findall(r"var\(--([\w-]+)\)", written("wide") + written("two")))
    assert used <= palette.LIGHT.keys()
    assert palette.LIGHT.keys() == palette.DARK.keys()


def test_pictures_have_no_colours_of_their_own() -> None:
    for chart in re.findall(r"<svg.*?</svg>", written("wide") + written("two"), re.DOTALL):
        assert not re.search(r"#[0-9a-f]{6}\b", chart)
        for text in re.findall(r"<text[^>]*>", chart):
            assert "fill:var(--" in text


# --- words --------------------------------------------------------------------------------------------


def test_a_fault_is_told_with_what_is_known() -> None:
    whole = Fault("kill", "driver", "after-decide", "kafka", 7, "d1")
    assert fault(whole) == "kill of the driver d1 at after-decide, sink kafka, epoch 7"
    assert fault(Fault("crash", "postgres")) == "crash of the postgres"


def test_lists_of_names_are_sentences() -> None:
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_nobody_needs_matplotlib_who_writes_no_report() -> None:
    program = "import sys, epochal.chaos.report; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
