"""The page: its sections are in the order of a reader's questions, and its size is limited.

Large parts (pictures and tables of single rounds, histories) are added while there is room, rounds that are not valid
first.  A line says what was left out.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from epochal.chaos.observe import recording
from epochal.chaos.observe.checker import Finding, Verdict
from epochal.chaos.report import blocks, heatmap, overview, timeline, words
from epochal.chaos.report.account import Account, Band, Round, Summary, strikes, summaries, whole
from epochal.chaos.report.kinds import assign
from epochal.chaos.report.style import SHEET
from epochal.chaos.report.text import CUT, Markup, clean, element, line
from epochal.chaos.report.timeline import Picture

LIMIT = 5_000_000  # bytes; the whole page stays below
PICTURES = 3_000_000  # bytes; no pictures and tables of single rounds are added beyond
SPARE = 50_000  # bytes; for the lines that say what was left out
REASON = 1_500  # characters of one finding
REASONS = 20  # rounds whose reasons are shown in full, per invariant
FAULTS = 2_000  # rows in the list of faults
ROUNDS = 500  # rows in the table of rounds
SIGHTINGS = 200  # epochs in the table of one round
ABOUT = 20_000  # characters of one value of ``about``


class Page:
    """The content of the page, and how many bytes it has so far."""

    def __init__(self, rounds: Sequence[Round], about: Mapping[str, Any]) -> None:
        self.about = about
        self.accounts = [Account(number, round_) for number, round_ in enumerate(rounds, 1)]
        self.verdict = whole(self.accounts)
        self.found = summaries(self.accounts)
        self.bands = list(strikes(self.accounts))
        self.faults = [band.fault for _, band in self.bands if not band.orphan]
        self.kinds = assign(band.fault for _, band in self.bands)
        self._bytes = 0

    def html(self) -> str:
        """Return the whole page."""
        word = words.VERDICTS[self.verdict]
        title = f"{word}: {line(self.about.get('target', 'chaos report'), 80)}"
        first = [self._verdict(), self._figures()]
        last = [
            self._heatmap(),
            self._invariants(),
            self._fault_list(),
            self._environment(),
        ]
        self._bytes += sum(_size(part) for part in (*first, *last, SHEET)) + SPARE
        over_time = self._over_time()
        histories = self._histories()
        heading = element("h1", f"Epochal chaos report: {line(self.about.get('target', 'no target named'))}")
        return blocks.document(title, [heading, first, over_time, last, histories, _footer()])

    def _take(self, part: Markup, limit: int) -> bool:
        """Return whether there is room for the part.  If so, count it."""
        if self._bytes + _size(part) > limit:
            return False
        self._bytes += _size(part)
        return True

    # --- what was found ---------------------------------------------------------------------------

    def _verdict(self) -> Markup:
        word = words.VERDICTS[self.verdict]
        said = words.headline(self.verdict, self.accounts, self.found)
        sign = element("span", words.SIGNS[self.verdict], class_="sign", aria_hidden="true")
        heading = element("h2", sign, element("span", word.capitalize()), id="verdict")
        detail = self._first_found() if self.verdict is not Verdict.TRUE else None
        paragraphs = [element("p", clean(sentence, 3_000)) for sentence in said]
        seed = self.about.get("seed")
        again = element("p", f"Seed {line(seed)}.", class_="note") if seed is not None else None
        return element("section", heading, paragraphs, detail, again, class_=f"verdict {word}")

    def _first_found(self) -> Markup | None:
        """What the checker says about the first violation, in its own words; else why there is no verdict."""
        first = words.first_violation(self.accounts)
        if first is not None:
            return element("pre", clean(first[1].why, REASON), tabindex="0", aria_label="what the checker found first")
        unknown = [s for s in self.found if s.verdict is Verdict.UNKNOWN]
        reasons = [(s.invariant, s.reasons[0][1]) for s in unknown if s.reasons]
        text = "\n".join(f"{name}: {clean(words.why(finding), CUT)}" for name, finding in reasons)
        return element("pre", text, tabindex="0", aria_label="why there is no verdict") if text else None

    def _figures(self) -> Markup:
        accounts = self.accounts
        figures = {
            "rounds": f"{len(accounts):,}",
            "faults": f"{len(self.faults):,}",
            "epochs": f"{sum(a.epochs for a in accounts):,}",
            "rows per sink": f"{sum(a.rows for a in accounts):,}",
            "sinks": f"{len({sink for a in accounts for sink in a.sinks}):,}",
            "driver starts": f"{sum(len(a.lives) for a in accounts):,}",
            "reads": f"{sum(a.reads for a in accounts):,}",
        }
        if any(account.clocked for account in accounts):
            figures["minutes"] = f"{sum(a.end for a in accounts if a.clocked) / 60:,.1f}"
        cells = [element("div", element("dt", name), element("dd", value)) for name, value in figures.items()]
        return element("dl", cells, class_="figures", aria_label="the run in figures")

    # --- over time --------------------------------------------------------------------------------

    def _over_time(self) -> Markup:
        if not self.accounts:
            return Markup()
        parts: list[Markup] = [element("h2", "Over time")]
        if len(self.accounts) > 1:
            parts.append(self._overview())
        else:
            parts.append(self._single())
        return element("section", parts)

    def _single(self) -> Markup:
        body = self._round(self.accounts[0])
        return body if self._take(body, PICTURES) else _left_out("The picture of the round is")

    def _overview(self) -> Markup:
        said = element("p", "One row for each round, with its faults; a thick stroke marks a violation.", class_="note")
        drawn = _figure(overview.draw(self.accounts, self.kinds, "overview"))
        drawn = drawn if self._take(drawn, PICTURES) else _left_out("The picture of all rounds is")
        table = self._table_of_rounds()
        self._take(table, LIMIT)
        return Markup(said + drawn + table + self._rounds())

    def _rounds(self) -> Markup:
        """The single rounds.  Rounds that are not valid are chosen first, and all are shown in their order."""
        parts: dict[int, Markup] = {}
        full = False
        for account in self._worst_first():
            if not full:
                opened = account.number == self._opened()
                part = element("details", element("summary", _summary(account)), self._round(account), open=opened)
                full = not self._take(part, PICTURES)
            if not full:
                parts[account.number] = part
        missing = [account.number for account in self.accounts if account.number not in parts]
        note = _left_out(f"The pictures of {_rounds_named(missing)} are") if missing else Markup()
        return Markup("".join(parts[number] for number in sorted(parts)) + note)

    def _opened(self) -> int:
        """The round that is open at first: the first round whose verdict is that of the whole."""
        return next((a.number for a in self.accounts if a.verdict is self.verdict), 1)

    def _worst_first(self) -> list[Account]:
        order = {Verdict.FALSE: 0, Verdict.UNKNOWN: 1, Verdict.TRUE: 2}
        return sorted(self.accounts, key=lambda account: (order[account.verdict], account.number))

    def _round(self, account: Account) -> Markup:
        picture = timeline.draw(account, self.kinds, f"round-{account.number}")
        said = (
            "A segment of a sink begins where a reader first saw the epoch that it names; grey bands over the sinks "
            "last as long as a fault was felt; ◆ is a decision; ▼ with a broken line is a violation, first seen there."
        )
        own = [
            element("p", f"{line(name)}: ", element("code", _value(value)))
            for name, value in _flat(account.round.about)
        ]
        return Markup(element("p", said, class_="note") + _figure(picture) + "".join(own) + _sightings(account))

    def _table_of_rounds(self) -> Markup:
        rows = [
            blocks.row(
                element("th", f"round {a.number}", scope="row"),
                _verdict_cell(a.verdict, words.VERDICTS[a.verdict]),
                blocks.number(len(a.strikes)),
                blocks.number(a.epochs),
                blocks.number(a.rows),
                blocks.number(words.seconds(a.end, a.clocked)),
                " ".join(v.invariant for v in a.violations),
            )
            for a in overview.choose(self.accounts, ROUNDS)
        ]
        heads = ("round", "verdict", "faults", "epochs", "rows", "until", "violated")
        table = blocks.table("Rounds", heads, rows, numbers=(2, 3, 4, 5))
        more = len(self.accounts) - len(rows)
        note = (
            blocks.note(f"{more:,} further rounds have no row; rounds that are not valid were chosen first.")
            if more
            else None
        )
        return element("details", element("summary", "All rounds as a table"), table, note, class_="paper")

    # --- lists ------------------------------------------------------------------------------------

    def _heatmap(self) -> Markup:
        heading = element("h2", "Where faults struck")
        if not self.faults:
            return element("section", heading, blocks.note("No fault struck."))
        said = blocks.note("How often each kind of fault struck each sink at each point: one field for each kind.")
        drawn = _figure(heatmap.draw(self.faults, self.kinds, "heatmap"))
        if _size(drawn) > 1_000_000:
            drawn = _left_out("The picture is")
        missed = heatmap.unstruck(self.faults)
        total = len(missed) + len({fault.point for fault in self.faults} & set(heatmap.PROTOCOL))
        text = f"Of the {total} points of the protocol these were not struck: {words.listed(missed)}."
        return element("section", heading, said, drawn, blocks.note(text) if missed else None)

    def _invariants(self) -> Markup:
        several = len(self.accounts) > 1
        heads = ("", "verdict", "invariant", "what it says", *(("rounds ✓ ✗ ?",) if several else ()), "observations")
        rows = [self._invariant(summary, several) for summary in self.found]
        table = blocks.table("The invariants and their verdicts", heads, rows, numbers=(len(heads) - 1,))
        return element("section", element("h2", "Invariants"), table, self._reasons())

    def _invariant(self, summary: Summary, several: bool) -> Markup:
        meaning = words.meaning(summary.invariant)
        counts = [summary.rounds[verdict] for verdict in (Verdict.TRUE, Verdict.FALSE, Verdict.UNKNOWN)]
        return blocks.row(
            element("th", line(summary.invariant), scope="row"),
            _verdict_cell(summary.verdict),
            element("td", line(meaning.name), class_="name"),
            element("td", meaning.holds, class_="text"),
            *([element("td", " / ".join(f"{count:,}" for count in counts), class_="number")] if several else []),
            blocks.number(summary.observations),
        )

    def _reasons(self) -> Markup:
        return Markup("".join(self._why(summary) for summary in self.found if summary.reasons))

    def _why(self, summary: Summary) -> Markup:
        """The reasons why an invariant is not true, round by round."""
        several = len(self.accounts) > 1
        verdict = "it is violated" if summary.verdict is Verdict.FALSE else "there is no verdict"
        said = [
            element("h3", f"{line(summary.invariant)}: why {verdict}"),
            *(_reason(number, finding, several) for number, finding in summary.reasons[:REASONS]),
        ]
        more = [number for number, _ in summary.reasons[REASONS:]]
        if more:
            said.append(blocks.note(f"Also in {_rounds_named(more)}."))
        return Markup("".join(said))

    def _fault_list(self) -> Markup:
        if not self.bands:
            return Markup()
        rows = [self._fault(account, band) for account, band in self.bands[:FAULTS]]
        heads = ("round", "at", "kind", "victim", "point", "sink", "epoch", "driver", "felt for", "until")
        table = blocks.table("Every fault, in its order", heads, rows, numbers=(0, 1, 6, 8))
        more = len(self.bands) - len(rows)
        note = blocks.note(f"{more:,} further faults are only in the histories.") if more else None
        count = words.number(len(self.bands), "fault")
        return element(
            "section",
            element("h2", "Faults"),
            element("p", self._counted()),
            element("details", element("summary", f"List of {count}"), table, note, class_="paper"),
        )

    def _counted(self) -> str:
        counts = Counter(fault.kind for fault in self.faults)
        return ", ".join(f"{count:,} × {line(kind)}" for kind, count in counts.most_common()) + "."

    def _fault(self, account: Account, band: Band) -> Markup:
        fault, kind = band.fault, self.kinds[band.fault.kind]
        return blocks.row(
            blocks.number(account.number),
            blocks.number(words.seconds(band.start, account.clocked)),
            f"{kind.letter}  {line(fault.kind)}",
            line(fault.victim),
            line(fault.point),
            line(fault.sink),
            blocks.number(fault.epoch if fault.epoch >= 0 else ""),
            line(fault.driver),
            blocks.number(
                f"{band.end - band.start:,.1f} s" if account.clocked else f"{band.end - band.start:.0f} events"
            ),
            line(band.ended),
        )

    # --- environment and histories ----------------------------------------------------------------

    def _environment(self) -> Markup:
        rows = [
            blocks.row(element("th", line(name), scope="row"), element("td", element("code", _value(value))))
            for name, value in _flat(self.about)
        ]
        heading = element("h2", "Environment and seed")
        if not rows:
            return element("section", heading, blocks.note("There is no information about the run."))
        return element("section", heading, blocks.table("What was run, and on what", ("", ""), rows, class_="about"))

    def _histories(self) -> Markup:
        """The histories as downloads, as many as there is room for."""
        if not self.accounts:
            return Markup()
        parts: dict[int, Markup] = {}
        for account in self._worst_first():
            link = self._history(account)
            if self._take(link, LIMIT):
                parts[account.number] = link
        missing = [account.number for account in self.accounts if account.number not in parts]
        said = (
            "Each file is a history of JSON lines, compressed with gzip. Unpacked it can be judged again without "
            "running anything: epochal.chaos.observe.recording.load reads it, "
            "epochal.chaos.observe.checker.judge_all judges it."
        )
        links = element("ul", [parts[number] for number in sorted(parts)]) if parts else None
        note = _left_out(f"The histories of {_rounds_named(missing)} are") if missing else None
        return element("section", element("h2", "Histories"), element("p", said), links, note, class_="screen")

    def _history(self, account: Account) -> Markup:
        packed = pack(account, {**self.about, **account.round.about})
        link = element(
            "a",
            f"round-{account.number}.jsonl.gz",
            download=f"round-{account.number}.jsonl.gz",
            href=f"data:application/gzip;base64,{base64.b64encode(packed).decode()}",
        )
        events = words.number(len(account.run.history.events), "event")
        return element("li", link, f" ({events}, {len(packed) / 1000:,.0f} kB)")


def _summary(account: Account) -> str:
    """A round in one line."""
    counts = (words.number(len(account.strikes), "fault"), words.number(account.epochs, "epoch"))
    length = [words.seconds(account.end, True)] if account.clocked else []
    return f"Round {account.number}: {words.VERDICTS[account.verdict]} – {', '.join([*counts, *length])}"


def pack(account: Account, about: Mapping[str, Any]) -> bytes:
    """Return the round as a compressed file of :mod:`epochal.chaos.observe.recording`.

    The same round gives the same bytes.
    """
    lines = recording.lines(account.run, {str(name): _plain(value) for name, value in about.items()})
    text = "".join(json.dumps(data, separators=(",", ":")) + "\n" for data in lines)
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    return json.loads(json.dumps(value, default=_other))


def _other(value: Any) -> Any:
    """A value that JSON does not know, as text; a set as a sorted list, so that the order is always the same."""
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)


def _size(part: str) -> int:
    return len(part.encode())


def _figure(picture: Picture) -> Markup:
    return blocks.picture(picture.markup, picture.notes)


def _left_out(what: str) -> Markup:
    return blocks.note(f"{what} left out: the page would be larger than {LIMIT / 1e6:.0f} MB.")


def _rounds_named(numbers: Sequence[int]) -> str:
    """The rounds in words: ``round 3``, ``12 rounds (1-11, 40)``."""
    from epochal.chaos.report.lanes import ranges

    return f"round {numbers[0]}" if len(numbers) == 1 else f"{len(numbers):,} rounds ({clean(ranges(numbers))})"


_HELD = {Verdict.TRUE: "holds", Verdict.FALSE: "violated", Verdict.UNKNOWN: "unknown", None: "not asked"}


def _verdict_cell(verdict: Verdict | None, text: str = "") -> Markup:
    """A table cell with the sign of a verdict and ``text``, by default what the verdict says about an invariant."""
    said = f"{words.SIGNS[verdict]} {text or _HELD[verdict]}"
    return element("td", said, class_="note" if verdict is None else words.VERDICTS[verdict])


def _reason(number: int, finding: Finding, several: bool) -> Markup:
    where = f"round {number}: " if several else ""
    return element("pre", f"{where}{clean(words.why(finding), REASON)}")


def _sightings(account: Account) -> Markup:
    """A table that says when each sink first showed each epoch."""
    first: dict[int, dict[str, float]] = {}
    for sink, shown in account.shown.items():
        for one in shown:
            for epoch in one.epochs:
                first.setdefault(epoch, {})[sink] = one.at
    rows = [
        blocks.row(
            element("th", f"{epoch}", scope="row"),
            *(
                blocks.number(words.seconds(at[sink], account.clocked) if sink in at else "never")
                for sink in account.shown
            ),
        )
        for epoch, at in sorted(first.items())[:SIGHTINGS]
    ]
    heads = ("epoch", *(line(sink) for sink in account.shown))
    table = blocks.table("When each sink first showed each epoch", heads, rows, numbers=range(1, len(heads)))
    more = len(first) - len(rows)
    note = blocks.note(f"{more:,} further epochs are only in the history.") if more > 0 else None
    return element("details", element("summary", "First sightings as a table"), table, note)


def _flat(about: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of ``about``; nested names are joined with dots."""
    for name, value in about.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=_other, ensure_ascii=False)
    return clean(text, ABOUT)


def _footer() -> Markup:
    said = (
        "Valid: every invariant that was judged holds. Invalid: at least one is violated. Unknown: none is violated, "
        "but at least one could not be judged, which is not a pass. Observations: how many support a verdict."
    )
    return element("footer", element("p", said))
