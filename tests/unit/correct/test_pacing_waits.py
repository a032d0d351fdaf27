"""Waits that no calendar makes longer."""

from __future__ import annotations

import pytest

from holdfast.correct.pacing import MonotonicWaits
from holdfast.correct.remembered import uids_of
from holdfast.model.time import Instant, timestamp
from tests.unit.correct.views import view

NOON = 1_800_000_000_000
DAY = 86_400_000
STEPS = (300_000, -300_000, DAY, -DAY, 40 * DAY, -40 * DAY)


def at(ms: int, step: int = 0) -> Instant:
    return Instant(5_000 + ms, NOON + ms + step)


def left(waits: MonotonicWaits, now: Instant, *, began: int = NOON, credit: bool = True) -> int:
    return waits.left_ms("u", "pause", timestamp(began), 60_000, now, credit=credit)


@pytest.mark.parametrize("step", STEPS)
def test_no_wait_is_longer_than_its_own_pause(step: int) -> None:
    """Whatever calendar the stamp is by, and wherever ours is set later. [E5]"""
    waits = MonotonicWaits(uids_of("workloads"))
    assert left(waits, at(0), began=NOON + step) <= 60_000
    assert left(waits, at(60_000, -step), began=NOON + step) == 0


@pytest.mark.parametrize("step", STEPS)
def test_a_calendar_that_is_set_while_it_is_waited_changes_nothing(step: int) -> None:
    """[E5]"""
    waits = MonotonicWaits(uids_of("workloads"))
    assert left(waits, at(1_000)) == 59_000
    assert left(waits, at(2_000, step)) == 58_000


def test_without_credit_only_what_was_waited_here_counts() -> None:
    waits = MonotonicWaits(uids_of("workloads"))
    assert left(waits, at(30_000), credit=False) == 60_000
    assert left(waits, at(31_000, DAY), credit=False) == 59_000


def test_another_stamp_begins_another_wait_and_what_is_gone_is_forgotten() -> None:
    waits = MonotonicWaits(uids_of("workloads"))
    left(waits, at(50_000), began=NOON)
    assert left(waits, at(60_000), began=NOON + 55_000) == 55_000
    waits.resync(view())
    assert left(waits, at(60_000), began=NOON + 55_000, credit=False) == 60_000
