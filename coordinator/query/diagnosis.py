"""What the doctor and ``Pipeline.check`` tell: one finding for each question that a start asks, without secrets."""

from __future__ import annotations

import enum
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from epochal.coordinator.environment.redaction import redacted
from epochal.coordinator.model.epoch import Json
from epochal.coordinator.model.errors import EpochalError, OutcomeUnknown, SinkUnavailable
from epochal.sinks.questions import NotAsked, Question


class Verdict(str, enum.Enum):
    """What an answer means for a start."""

    FINE = "fine"
    CAUTION = "caution"  # a start goes on, with a warning
    WRONG = "wrong"  # a start would be refused
    UNKNOWN = "unknown"  # no answer: a server is away, or takes too long
    NOT_ASKED = "not asked"  # it cannot be asked here, or makes no sense after another answer

    @property
    def is_good(self) -> bool:
        return self in (Verdict.FINE, Verdict.CAUTION)


_TICKS = {
    Verdict.FINE: "✓",
    Verdict.CAUTION: "!",
    Verdict.WRONG: "✗",
    Verdict.UNKNOWN: "✗",
    Verdict.NOT_ASKED: "-",
}


@dataclass(frozen=True)
class Problem:
    """An error, in the parts that every command of the console shows."""

    kind: str
    what: str
    sink: str | None = None
    epoch: int | None = None
    state: str | None = None
    help: str | None = None

    @classmethod
    def of(cls, error: Exception) -> Problem:
        """Return the parts of an error, without secrets.

        The text of an error that is not Epochal's may be anything, also a password.  So only its kind and its place
        are told.
        """
        if isinstance(error, EpochalError):
            texts = (None if text is None else redacted(text) for text in (error.what, error.state, error.help))
            what, state, help_line = texts
            return cls(type(error).__name__, what or "", error.sink, error.epoch, state, help_line)
        return cls(
            type(error).__name__,
            f"raised {_place(error)}",
            help="its text may hold a secret, so it is not shown: pipeline.check(df) raises it with its text",
        )


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno}" if frames else "at an unknown place"


@dataclass(frozen=True)
class Finding:
    """The answer to one question.  ``of``: what was asked about, for example a sink's name.

    ``value``: what was found, or why nothing was asked.  No text in it holds a secret.
    """

    of: str
    what: str
    verdict: Verdict
    value: str = ""
    cautions: Sequence[str] = ()
    error: Problem | None = None

    def __str__(self) -> str:
        lines = [f"{_TICKS[self.verdict]} {self.what}" + (f": {self.value}" if self.value else "")]
        lines += [f"    {caution}" for caution in self.cautions]
        if self.error is not None:
            lines.append(f"    {self.error.kind}: {self.error.what}")
            lines += [f"    State: {self.error.state}"] if self.error.state else []
            lines += [f"    Help: {self.error.help}"] if self.error.help else []
        return "\n".join(lines)

    def to_json(self) -> Json:
        return {**asdict(self), "verdict": self.verdict.value, "cautions": list(self.cautions)}


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """All findings, in the order of the questions; ``print`` it."""

    findings: Sequence[Finding] = field(default_factory=tuple)

    def of(self, verdict: Verdict) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict is verdict]

    @property
    def is_fine(self) -> bool:
        """Whether no answer is wrong or missing.  There may be cautions, and questions that were not asked."""
        return not (self.of(Verdict.WRONG) or self.of(Verdict.UNKNOWN))

    def counts(self) -> dict[str, int]:
        return {verdict.value: len(self.of(verdict)) for verdict in Verdict}

    def __str__(self) -> str:
        lines: list[str] = []
        for about in dict.fromkeys(finding.of for finding in self.findings):
            lines.append(about)
            lines += [f"  {line}" for f in self.findings if f.of == about for line in str(f).splitlines()]
        return "\n".join([*lines, self.summary()])

    def __repr__(self) -> str:
        return f"Diagnosis({self.summary()})"

    def summary(self) -> str:
        """Return how many answers are of which kind."""
        return ", ".join(f"{number} {verdict}" for verdict, number in self.counts().items() if number) or "nothing"


def ask(of: str, question: Question) -> Finding:
    """Ask one question.  Raise its error."""
    try:
        answer = question.answer()
    except NotAsked as reason:
        return Finding(of, question.what, Verdict.NOT_ASKED, redacted(str(reason)))
    cautions = tuple(map(redacted, answer.cautions))
    return Finding(of, question.what, Verdict.CAUTION if cautions else Verdict.FINE, redacted(answer.value), cautions)


def ask_all(of: str, questions: Iterable[Question]) -> Iterator[Finding]:
    """Ask all questions, and go on after an error.  A question whose needs have no good answer is not asked."""
    good: set[str] = set()
    try:
        for question in questions:
            finding = _asked(of, question, good)
            if finding.verdict.is_good:
                good.add(question.what)
            yield finding
    except Exception as error:  # the list of questions itself cannot be made
        yield failed(of, "questions", error)


def _asked(of: str, question: Question, good: set[str]) -> Finding:
    lacking = [what for what in question.needs if what not in good]
    if lacking:
        return Finding(of, question.what, Verdict.NOT_ASKED, f"needs a good answer to: {lacking[0]}")
    try:
        return ask(of, question)
    except Exception as error:
        return failed(of, question.what, error)


def failed(of: str, what: str, error: Exception) -> Finding:
    is_no = isinstance(error, EpochalError) and not isinstance(error, SinkUnavailable | OutcomeUnknown)
    return Finding(of, what, Verdict.WRONG if is_no else Verdict.UNKNOWN, error=Problem.of(error))
