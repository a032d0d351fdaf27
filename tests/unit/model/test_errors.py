"""Errors: sorted by what the caller does, and a bug of ours is never among them."""

from __future__ import annotations

import pickle

import pytest

from holdfast.model import errors
from holdfast.model.errors import (
    Conflict,
    Expired,
    FieldError,
    Forbidden,
    HoldfastError,
    Invalid,
    InvariantBroken,
    Missing,
    OutcomeUnknown,
    RecordsDisagree,
    Rejected,
    Unavailable,
    agree,
    invariant,
    unreachable,
)

TREE = {
    Rejected: HoldfastError,
    Conflict: Rejected,
    Forbidden: Rejected,
    Invalid: Rejected,
    Missing: Rejected,
    Unavailable: HoldfastError,
    OutcomeUnknown: HoldfastError,
    Expired: HoldfastError,
}


def test_the_tree_is_the_one_that_is_drawn() -> None:
    """Whether it happened is decided by class: no, no by fault, perhaps. [N1.1]"""
    declared = {
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, HoldfastError) and cls is not HoldfastError
    }
    assert declared == set(TREE)
    for error, parent in TREE.items():
        assert error.__bases__ == (parent,)
    assert not issubclass(OutcomeUnknown, Rejected)


def test_every_class_has_a_stable_code_of_its_own() -> None:
    assert {cls: cls.code for cls in TREE} == {cls: cls.__name__ for cls in TREE}


def test_one_error_may_be_more_precise_than_its_class() -> None:
    """The class keeps its own code for all others, also in another process."""
    error = Forbidden("no", code="QuotaExceeded")
    assert (error.code, error.message, str(error)) == ("QuotaExceeded", "no", "no")
    assert (Forbidden.code, Forbidden("no").code) == ("Forbidden", "Forbidden")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, again.message) == (Forbidden, "QuotaExceeded", "no")


def test_an_invalid_object_names_everything_that_is_wrong() -> None:
    """Field, value and rule, and nothing where there is nothing to say. [B4]"""
    wrong = (FieldError("spec.replicas", "-1", "must not be negative"), FieldError("", "x", "no"))
    assert [str(error) for error in wrong] == ["spec.replicas: -1: must not be negative", "x: no"]
    assert Invalid("two", wrong).errors == wrong
    assert Invalid("none").errors == ()


def test_a_broken_invariant_is_never_caught_and_shows_its_history() -> None:
    """A handler of errors that are meant for callers must not go on after a bug. [C5]"""
    assert not issubclass(InvariantBroken, HoldfastError)
    invariant(True, "fine")
    invariant([0], "any true value is fine")
    with pytest.raises(InvariantBroken) as broken:
        invariant((), "two owners", history=("bound to a", "bound to b"))
    assert str(broken.value) == "two owners\n  bound to a\n  bound to b"
    assert broken.value.history == ("bound to a", "bound to b")
    with pytest.raises(InvariantBroken, match="cannot be"):
        unreachable("cannot be")


def test_records_that_disagree_are_a_bug_unless_a_second_look_follows() -> None:
    """A decision on an old view may catch only this; other code catches neither. [C3]"""
    assert issubclass(RecordsDisagree, InvariantBroken)
    agree(True, "they do")
    with pytest.raises(RecordsDisagree, match="never taken"):
        agree(None, "what is given back was never taken")
