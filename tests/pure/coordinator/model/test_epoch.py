"""The identities that sinks and logs keep for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.coordinator.model.epoch import Actor, Committable, Copy, CopyFile, Decision, Digest, Marker

DECISION = Decision("11111111-2222", 17, Actor(3, 42), "fingerprint-17", redo=1)


def test_the_id_of_a_decision_never_changes_as_markers_hold_it() -> None:
    assert DECISION.id == 0x3AEFFEF705B026CC
    assert 0 <= Decision("", 0, Actor(0, 0), "").id < 1 << 63


def test_every_part_of_a_decision_counts() -> None:
    others = [
        replace(DECISION, incarnation="else"),
        replace(DECISION, epoch=18),
        replace(DECISION, actor=Actor(4, 42)),
        replace(DECISION, actor=Actor(3, 43)),
        replace(DECISION, fingerprint="else"),
        replace(DECISION, redo=2),
    ]
    assert len({DECISION.id, *(other.id for other in others)}) == 1 + len(others)


def test_an_actor_fits_where_sinks_keep_it() -> None:
    actors = [Actor.new(7) for _ in range(200)]
    assert {actor.generation for actor in actors} == {7}
    assert len({actor.token for actor in actors}) == 200
    assert max(actor.token for actor in actors) >> 60, "the token uses its bits"
    assert all(0 <= actor.token < 1 << 63 for actor in actors)


def test_a_copy_has_the_rows_of_its_files() -> None:
    assert Copy("file:/copy", (CopyFile("a", 10, 3), CopyFile("b", 5, 4)), "{}").rows == 7


def test_a_committable_of_a_newer_version_is_not_read() -> None:
    data = Committable("a", DECISION, 1, 2, {"key": [1]}).to_json()
    assert Committable.from_json(data).to_json() == data
    with pytest.raises(ValueError, match="committable of version 2; this Epochal reads up to 1"):
        Committable.from_json({**data, "version": 2})


def test_a_committable_says_what_was_left_out_and_one_that_does_not_left_out_nothing() -> None:
    whole, part = Committable("a", DECISION, 1, 2), Committable("a", DECISION, 1, 2, left_out=3)
    assert "left_out" not in whole.to_json()
    assert [Committable.from_json(c.to_json()).left_out for c in (whole, part)] == [0, 3]


def test_a_digest_is_that_of_a_multiset() -> None:
    digest = Digest.of([5, -3, 1 << 62, 1 << 62])
    assert digest == Digest.of([1 << 62, 5, 1 << 62, -3]) == Digest.of([-3, 1 << 62]) + Digest.of([1 << 62, 5])
    assert digest == Digest(4, 2), "the sum is taken modulo 2**63"
    assert Digest.of([-1]) == Digest(1, (1 << 63) - 1)
    assert len({Digest.of(hashes) for hashes in ([], [0], [0, 0], [1], [1, 0], [2])}) == 6
    assert Digest.of([]) == Digest(0, 0)
    assert str(Digest(3, 255)) == "3 rows, 00000000000000ff"


def test_a_digest_says_nothing_about_which_epoch_a_marker_is_of() -> None:
    assert Marker(1, 7, Digest(1, 2)) == Marker(1, 7) == Marker(1, 7, Digest(9, 9))


def test_a_committable_carries_a_digest_where_it_has_one() -> None:
    with_digest = Committable("a", DECISION, 1, 2, digest=Digest(2, 5))
    assert Committable.from_json(with_digest.to_json()) == with_digest
    assert "digest" not in Committable("a", DECISION, 1, 2).to_json(), "what a vote without one was, it still is"
