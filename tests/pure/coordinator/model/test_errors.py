"""What an error looks like to who reads it, and that it survives the way from a Spark worker."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from epochal.coordinator.model import errors
from epochal.coordinator.model.errors import CommitInDoubt, EpochalError, Fenced

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, EpochalError) and kind is not EpochalError
]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ({}, "gone\n  Help: restore it"),
        ({"sink": "a"}, "sink 'a': gone\n  Help: restore it"),
        ({"epoch": 0}, "epoch 0: gone\n  Help: restore it"),
        ({"sink": "a", "epoch": 7}, "sink 'a', epoch 7: gone\n  Help: restore it"),
        ({"sink": "a", "state": "none"}, "sink 'a': gone\n  State: none\n  Help: restore it"),
    ],
)
def test_the_text_says_where_what_in_which_state_and_what_to_do(where: dict[str, Any], text: str) -> None:
    assert str(Fenced("gone", help="restore it", **where)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_pickling_whole(kind: type[EpochalError]) -> None:
    error = kind("what", help="help", sink="a", epoch=3, state="state")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert vars(again) == vars(error)
    assert str(again) == str(error)


def test_what_is_indefinite() -> None:
    assert {kind.__name__ for kind in KINDS if not kind.definite} == {"OutcomeUnknown", "CommitInDoubt", "Interrupted"}
    assert CommitInDoubt("what", help="help").definite is False
