"""When a candidate may take a lease, by its own clock."""

from __future__ import annotations

import pytest

from holdfast.model.kinds.lease import LeaseSpec
from holdfast.model.lease_takeover import LeaseObserver, LeaseSighting

HELD = LeaseSpec(scope="s", holder="another", epoch=3, renewals=7, duration_ms=6_000)
RENEWED = LeaseSpec(scope="s", holder="another", epoch=3, renewals=8, duration_ms=6_000)
TAKEN = LeaseSpec(scope="s", holder="a third", epoch=4, renewals=8, duration_ms=6_000)
FREE = LeaseSpec(scope="s", epoch=3, renewals=7)


@pytest.mark.parametrize("spec", [None, FREE])
def test_a_lease_without_a_holder_may_be_taken_at_once(spec: LeaseSpec | None) -> None:
    """[K1, K2]"""
    assert LeaseObserver().may_take(spec, 1_000)


def test_a_held_lease_may_be_taken_after_its_duration_without_a_renewal() -> None:
    """Counted from the first sighting, whatever the lease says about times. [K1, K2]"""
    observer = LeaseObserver()
    assert not observer.may_take(HELD, 1_000)
    assert not observer.may_take(HELD, 6_999)
    assert observer.may_take(HELD, 7_000)


@pytest.mark.parametrize("change", [RENEWED, TAKEN])
def test_every_change_of_the_lease_starts_the_count_again(change: LeaseSpec) -> None:
    """[K1, K2]"""
    observer = LeaseObserver()
    observer.may_take(HELD, 1_000)
    assert not observer.may_take(change, 7_000)
    assert observer.seen == LeaseSighting(change.epoch, change.renewals, change.holder, 7_000)
    assert not observer.may_take(change, 12_999)
    assert observer.may_take(change, 13_000)


def test_a_candidate_that_held_it_meanwhile_counts_again() -> None:
    """[K1, K2]"""
    observer = LeaseObserver()
    observer.may_take(HELD, 1_000)
    observer.forget()
    assert not observer.may_take(HELD, 7_000)


def test_what_an_earlier_process_of_the_candidate_holds_needs_no_waiting() -> None:
    """[K2]"""
    assert LeaseObserver().may_take(HELD, 1_000, inherits=True)
