"""What a start asks before it writes anything: a list of questions, each of which is asked by itself.

``check`` of a sink asks them in order and raises the first error.  The doctor asks the same questions, and goes on
after an error.  This file does not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from epochal.coordinator.model.epoch import Query
from epochal.sinks.protocol import Schema, Sink

NO_COLUMNS = "the columns of the rows are not known here"
"""Why a question about the rows is not asked."""


class NotAsked(Exception):
    """The question cannot be asked here and now.  The text says why.  A start that comes here goes on."""


@dataclass(frozen=True)
class Answer:
    """A good answer.  ``value``: what was found, for people.  ``cautions``: what a start warns about."""

    value: str = ""
    cautions: Sequence[str] = ()


Told = Answer | str | None
"""What ``Question.ask`` may return: an answer, the value alone, or nothing to tell."""


@dataclass(frozen=True)
class Question:
    """One question.  ``ask`` writes nothing; it raises an ``EpochalError`` for a no, or ``NotAsked``.

    ``what``: a few words, unique among the questions of one sink.
    ``needs``: the ``what`` of earlier questions that must have good answers, else this one makes no sense.
    """

    what: str
    ask: Callable[[], Told]
    needs: tuple[str, ...] = ()

    def answer(self) -> Answer:
        told = self.ask()
        return told if isinstance(told, Answer) else Answer(told or "")


@runtime_checkable
class Questioned(Protocol):
    """A sink that lists what its ``check`` asks.  Its ``check`` must ask exactly these questions (:func:`require`)."""

    def questions(self, query: Query, schema: Schema | None) -> Iterator[Question]:
        """Yield the questions, in the order in which ``check`` asks them.

        If ``schema`` is None, what needs the columns of the rows raises ``NotAsked``.
        """


def questions_of(sink: Sink, query: Query, schema: Schema | None) -> Iterator[Question]:
    """Yield the questions of a sink.  For a sink that does not list them, its ``check`` is the only question."""
    if isinstance(sink, Questioned) and _are_of_one_class(sink, "check", "questions"):
        yield from sink.questions(query, schema)
    else:
        yield Question("check", lambda: sink.check(query, known(schema)))


def require(questions: Iterable[Question], warn: Callable[[str], None]) -> None:
    """Ask all questions in order; the first error ends it.  ``warn`` is called with each caution."""
    for question in questions:
        with suppress(NotAsked):
            for caution in question.answer().cautions:
                warn(caution)


def whats(questions: Iterable[Question]) -> tuple[str, ...]:
    """Return what these questions ask, for a question that needs good answers to all of them."""
    return tuple(question.what for question in questions)


def known(schema: Schema | None) -> Schema:
    """Return the schema; raise ``NotAsked`` if it is None."""
    if schema is None:
        raise NotAsked(NO_COLUMNS)
    return schema


def _are_of_one_class(sink: Sink, *methods: str) -> bool:
    """Return whether one class defines these methods: a subclass that overrides only one of them means that one."""
    owners = {next((kind for kind in type(sink).__mro__ if method in vars(kind)), None) for method in methods}
    return len(owners) == 1
