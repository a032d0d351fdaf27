"""Pauses between two looks at something large."""

from __future__ import annotations

from holdfast.correct.pacing import Cooldowns
from tests.unit.correct.views import NOW, later, view

KEY, OTHER = ("acme", "web"), ("acme", "other")


def test_the_pause_grows_with_what_was_looked_at_and_ends() -> None:
    """A second for ten thousand replicas, and nothing for a few."""
    rests = Cooldowns()
    rests.rest(KEY, 10_000, NOW)
    rests.rest(OTHER, 9, NOW)
    assert (rests.left_ms(KEY, NOW), rests.left_ms(OTHER, NOW)) == (1_000, 0)
    assert rests.left_ms(KEY, later(999)) == 1
    assert rests.left_ms(KEY, later(2_000)) == 0


def test_what_is_forgotten_may_be_looked_at() -> None:
    """One that is gone, or all of them at a resync."""
    rests = Cooldowns()
    rests.rest(KEY, 10_000, NOW)
    rests.rest(OTHER, 10_000, NOW)
    rests.forget(KEY)
    assert (rests.left_ms(KEY, NOW), rests.left_ms(OTHER, NOW)) == (0, 1_000)
    rests.resync(view())
    assert rests.left_ms(OTHER, NOW) == 0
