"""Wrong arguments for what users make end in a named error at once, never in one of Python deep inside."""

from __future__ import annotations

import pytest

from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.errors import Misconfigured
from tests.fuzz import misuse
from tests.fuzz.misuse import Kind, Odd, Try


@pytest.mark.parametrize("kind", misuse.KINDS)
def test_no_wrong_argument_ends_in_a_raw_error(kind: str) -> None:
    """``table=None``, ``connections="4"``, ``select=1`` and some 900 others ended in a TypeError or AttributeError."""
    raw = {str(one): told for one in misuse.every_single() if one.kind == kind and (told := one.refusal())}
    assert raw == {}


def test_no_pair_of_wrong_arguments_ends_in_a_raw_error() -> None:
    raw = {str(one): told for n in range(1_000) if (told := (one := misuse.call(1, n)).refusal())}
    assert raw == {}


def test_the_search_reports_a_class_that_checks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(name: str) -> str:
        return name.upper()

    monkeypatch.setattr(misuse, "KINDS", {"Unchecked": Kind(unchecked, {"name": "n"})})
    told = [one.refusal() for one in misuse.every_single()]
    assert "AttributeError(\"'int' object has no attribute 'upper'\")" in told
    assert Try("Unchecked", {"name": "n"}).refusal() is None
    assert Try("Unchecked", {"other": "n"}).refusal() is None  # Python's own error says it all


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        ("str | None", ["x", None], [b"x", 1, "\ud800"]),
        ("bool", [True], [1, "true", None]),
        ("int", [3], [True, 3.0, "3"]),
        ("float | None", [3, 0.5, None], [True, float("nan"), float("inf"), "3"]),
        ("str | Sequence[str]", ["a", ["a"], ("a",), {"a"}], [["a", 1], {"a": 1}, 1, b"a"]),
        ("Mapping[str, str] | None", [{"a": "b"}, None], [[("a", "b")], {1: "b"}]),
        ("Options | Callable[[], Options] | None", [{"a": 1}, dict, None], [["a"], 5]),
        ("Unknown | None", [1, None, Odd()], []),
    ],
)
def test_a_value_must_be_of_a_type_in_its_annotation(annotation: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        check_types({"given": annotation}, {"given": value})
    for value in bad:
        with pytest.raises(Misconfigured, match=r"given=.* is not ") as refused:
            check_types({"given": annotation}, {"given": value}, "out")
        assert refused.value.help.startswith("give given= ")
        assert refused.value.sink == "out"
