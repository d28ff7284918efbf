"""Errors that name each other as their causes: whoever follows the causes comes to an end."""

from __future__ import annotations

import pytest

from epochal.sinks.rows.projection import Projection, of_an_expression
from epochal.sinks.spark.executors import causes, error_of_a_worker, first_cause, telling


def circle() -> Exception:
    """As ``raise error from error`` makes one, and as two errors make one."""
    one, other = ConnectionError("reset"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def test_each_is_told_once() -> None:
    error = circle()
    assert list(causes(error)) == [error, error.__cause__]
    assert of_an_expression(error) is None
    assert error_of_a_worker(error, 1) is None
    assert first_cause(error) == "ConnectionError: reset"


def test_contexts_are_followed_where_they_are_wanted() -> None:
    error = ValueError("late")
    error.__context__ = KeyError("early")
    assert list(causes(error)) == [error]
    assert list(causes(error, contexts=True)) == [error, error.__context__]


def test_an_error_that_is_none_of_sparks_passes_as_it_is() -> None:
    lost = ConnectionResetError("the JVM is gone")
    for scope in (telling(1), Projection("out", ("a",)).evaluating(1)):
        with pytest.raises(ConnectionResetError) as raised, scope:
            raise lost
        assert raised.value is lost
        assert lost.__cause__ is None
