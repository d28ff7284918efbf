"""Is a module that moved still found under its old name?"""

from __future__ import annotations

import importlib

import pytest

from epochal.coordinator.environment.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_module_of_the_new_name(old: str) -> None:
    assert importlib.import_module(old) is importlib.import_module(MOVED[old])


def test_a_name_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="never_was"):
        importlib.import_module("epochal.coordinator.never_was")
