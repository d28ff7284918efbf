"""The sentences of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from epochal.chaos.observe.checker import Finding, Verdict
from epochal.chaos.observe.history import Fault
from epochal.chaos.report.account import Account, Summary, Violation


class Meaning(NamedTuple):
    """An invariant's name, and two sentences: what is true if it holds, and what has happened if it is broken."""

    name: str
    holds: str
    broken: str


MEANINGS: Mapping[str, Meaning] = {
    "I1": Meaning("No loss", "every expected row is in every sink", "rows are missing"),
    "I2": Meaning("No duplicate", "no row is there more often than expected", "rows are there more often than once"),
    "I3": Meaning(
        "All or nothing", "no reader sees part of an epoch, also during the faults", "a reader saw part of an epoch"
    ),
    "I4": Meaning(
        "One evaluation",
        "all rows of an epoch, in all sinks and reads, come from one evaluation",
        "rows of two evaluations of one epoch were visible",
    ),
    "I5": Meaning(
        "In order",
        "epochs appear in their order, and a later read never shows less",
        "an epoch appeared out of order, or rows vanished again",
    ),
    "I6": Meaning(
        "Agreement", "sinks differ by at most one epoch at any time, and not at all at rest", "the sinks disagree"
    ),
    "I7": Meaning(
        "One decision",
        "an epoch is decided at most once, and all that is visible was decided before",
        "an epoch was decided twice, or was visible before it was decided",
    ),
    "I8": Meaning(
        "Decided is visible",
        "what is decided becomes visible in every sink, what is undecided never does",
        "a decided epoch is not visible in every sink, or an undecided one is",
    ),
    "I9": Meaning(
        "Operator state",
        "Spark's operator state is that of a run that never failed",
        "Spark's operator state is not that of a run that never failed",
    ),
    "I10": Meaning(
        "Source position",
        "Spark's offsets, the log and the sinks' markers tell one position",
        "Spark's offsets, the log and the sinks' markers tell different positions",
    ),
    "I11": Meaning(
        "Recovery",
        "after one more epoch without faults the output is that of a run that never failed",
        "after one more epoch without faults the output is not that of a run that never failed",
    ),
    "I12": Meaning(
        "Fences hold",
        "once a newer driver has fenced, nothing that an older one does has an effect",
        "an older driver had an effect after a newer one had fenced",
    ),
    "I13": Meaning(
        "Nothing is left",
        "when everything has ended, servers and stage hold no leftovers",
        "a server or the stage still holds leftovers",
    ),
    "I14": Meaning(
        "Loud",
        "a run ends converged, or with a named error and unchanged output",
        "a run ended neither converged nor with a named error and unchanged output",
    ),
    "I15": Meaning(
        "Every input", "every input that was fed is accounted for", "inputs that were fed are not accounted for"
    ),
}

VERDICTS: Mapping[Verdict, str] = {Verdict.TRUE: "valid", Verdict.FALSE: "invalid", Verdict.UNKNOWN: "unknown"}
SIGNS: Mapping[Verdict | None, str] = {Verdict.TRUE: "✓", Verdict.FALSE: "✗", Verdict.UNKNOWN: "?", None: "–"}


def meaning(invariant: str) -> Meaning:
    """Return the meaning of one of our invariants, or a default for an invariant of the caller's."""
    return MEANINGS.get(invariant, Meaning(invariant, "", f"{invariant} is broken"))


def number(count: int, noun: str) -> str:
    """Return the number with its noun: ``1 fault``, ``1,204 faults``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return the names as a list in words: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def seconds(time: float, clocked: bool) -> str:
    """Return the time as ``12.3 s``, or as ``event 12`` if there is no clock."""
    return f"{time:,.1f} s" if clocked else f"event {time:.0f}"


def fault(struck: Fault) -> str:
    """Return the fault in words: ``kill of the driver d1 at after-decide, sink kafka, epoch 7``."""
    who = f"the {struck.victim}" if struck.victim else "nobody named"
    parts = [f"{struck.kind} of {who}{f' {struck.driver}' if struck.driver else ''}"]
    parts[0] += f" at {struck.point}" if struck.point else ""
    parts += [f"sink {struck.sink}"] if struck.sink else []
    parts += [f"epoch {struck.epoch}"] if struck.epoch >= 0 else []
    return ", ".join(parts)


def first_violation(accounts: Sequence[Account]) -> tuple[Account, Violation] | None:
    """Return the first violation of the first round that has one."""
    return next(((account, account.violations[0]) for account in accounts if account.violations), None)


def headline(verdict: Verdict, accounts: Sequence[Account], found: Sequence[Summary]) -> list[str]:
    """Return the verdict in sentences, the most important one first."""
    if verdict is Verdict.FALSE:
        return _invalid(accounts, found)
    if verdict is Verdict.UNKNOWN:
        return _unknown(accounts, found)
    return _valid(accounts, found)


def _valid(accounts: Sequence[Account], found: Sequence[Summary]) -> list[str]:
    judged = [summary for summary in found if summary.verdict is not None]
    strikes = sum(len(account.strikes) for account in accounts)
    under = f"while {number(strikes, 'fault')} struck" if strikes else "without a single fault"
    said = [
        "Every row is where it should be, exactly once."
        if {"I1", "I2"} <= {summary.invariant for summary in judged}
        else "Nothing that was judged is wrong.",
        f"{_all(len(judged), 'invariant')} that {'was' if len(judged) == 1 else 'were'} judged "
        f"{'holds' if len(judged) == 1 else 'hold'} in {number(len(accounts), 'round')}, {under}.",
    ]
    if not strikes:
        said.append("No fault struck, so this only says that the output is exact when nothing fails.")
    return said + _not_judged(found)


def _all(count: int, noun: str) -> str:
    return f"The one {noun}" if count == 1 else f"All {count} {noun}s"


def _invalid(accounts: Sequence[Account], found: Sequence[Summary]) -> list[str]:
    first = first_violation(accounts)
    assert first is not None, "a verdict is false because a finding is"
    account, violation = first
    broken = [summary.invariant for summary in found if summary.verdict is Verdict.FALSE]
    said = [f"{_sentence(meaning(violation.invariant).broken)} ({violation.invariant})."]
    where = f"in round {account.number} of {len(accounts)}, " if len(accounts) > 1 else ""
    at_end = violation.place >= len(account.run.history.events) - 1
    when = "at its end" if at_end and where else "at the end" if at_end else _at(violation.at, account)
    said.append(f"First found {where}{when}{_after(account, violation)}.")
    if len(broken) > 1:
        said.append(f"Of {number(len(found), 'invariant')}, {len(broken)} are violated: {listed(broken)}.")
    return said + _no_verdict(found) + _not_judged(found)


def _at(time: float, account: Account) -> str:
    return f"after {seconds(time, True)}" if account.clocked else f"at {seconds(time, False)}"


def _after(account: Account, violation: Violation) -> str:
    before = [band for band in account.bands if band.start <= violation.at and not band.orphan]
    if not before:
        return ", before any fault had struck" if account.bands else ", in a round in which no fault struck"
    return f"; the last fault before it was the {fault(before[-1].fault)}"


def _unknown(accounts: Sequence[Account], found: Sequence[Summary]) -> list[str]:
    if not accounts:
        return ["Nothing was run, so there is nothing to judge.", "Unknown is not a pass."]
    said = ["No violation was found, but not everything could be judged. Unknown is not a pass."]
    return said + _prove_nothing(accounts) + _no_verdict(found) + _not_judged(found)


def _prove_nothing(accounts: Sequence[Account]) -> list[str]:
    torn = [account for account in accounts if account.run.proves_nothing]
    return [f"Round {account.number} proves nothing: {account.run.proves_nothing}" for account in torn]


def _no_verdict(found: Sequence[Summary]) -> list[str]:
    unknown = [summary for summary in found if summary.verdict is Verdict.UNKNOWN]
    if not unknown:
        return []
    names = listed([f"{summary.invariant} ({meaning(summary.invariant).name.lower()})" for summary in unknown])
    return [f"There is no verdict on {names}."]


def _not_judged(found: Sequence[Summary]) -> list[str]:
    names = [summary.invariant for summary in found if summary.verdict is None]
    if not names or len(names) == len(found):
        return []
    return [f"{listed(names)} {'was' if len(names) == 1 else 'were'} not asked in this run."]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def why(finding: Finding) -> str:
    """Return the reason of a finding; empty for a true one without a reason."""
    return finding.why or ("" if finding else "no reason was given")
