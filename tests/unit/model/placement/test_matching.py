"""Matching several requests: none takes a candidate that only another can use."""

from __future__ import annotations

from holdfast.model.placement.matching import TRIES_MAX, MatchRequest, match


def test_a_modest_wish_gives_way_to_a_choosy_one() -> None:
    """Served one after another the second would go without, though there is enough for both."""
    wishes = [MatchRequest(1, ("a", "b")), MatchRequest(1, ("a",))]
    assert match(wishes, {"a": 0, "b": 0}) == (("b",), ("a",))


def test_what_was_given_is_passed_on_along_a_chain() -> None:
    wishes = [
        MatchRequest(1, ("a", "b")),
        MatchRequest(1, ("b", "c")),
        MatchRequest(1, ("c", "d")),
        MatchRequest(1, ("a",)),
    ]
    assert match(wishes, dict.fromkeys("abcd", 0)) == (("b",), ("c",), ("d",), ("a",))


def test_the_preferred_candidates_are_taken_while_no_other_work_needs_them() -> None:
    assert match([MatchRequest(2, ("c", "a", "b"))], dict.fromkeys("abc", 0)) == (("c", "a"),)


def test_wishes_that_stay_together_find_the_group_with_room() -> None:
    """Group 0 has one free and group 1 two, so the pair goes to group 1."""
    groups = {"a": 0, "b": 1, "c": 1}
    assert match([MatchRequest(2, ("a", "b", "c"), together=True)], groups) == (("b", "c"),)
    assert match([MatchRequest(2, ("a", "b"), together=True)], groups) is None
    three = {"a": 0, "b": 1, "c": 2, "d": 2}
    assert match([MatchRequest(2, tuple(three), together=True)], three) == (("c", "d"),)
    assert match([MatchRequest(2, ("a", "b", "c"), together=True)], three) is None


def test_pairs_share_out_the_groups() -> None:
    """A first pair that could go anywhere leaves the one group that the second can use."""
    groups = {"a": 0, "b": 0, "c": 1, "d": 1}
    wishes = [
        MatchRequest(2, ("a", "b", "c", "d"), together=True),
        MatchRequest(2, ("a", "b"), together=True),
    ]
    assert match(wishes, groups) == (("c", "d"), ("a", "b"))


def test_no_wishes_are_met_by_nothing() -> None:
    assert match([], {}) == ()
    assert match([MatchRequest(0, ())], {}) == ((),)


def test_a_hopeless_packing_ends() -> None:
    """Three threes do not go into eight groups of two, and that is found within the bound."""
    groups = {f"{group}{n}": group for group in range(8) for n in range(2)}
    wishes = [MatchRequest(3, tuple(groups), together=True)] * 3
    assert match(wishes, groups) is None
    assert TRIES_MAX < 1_000
