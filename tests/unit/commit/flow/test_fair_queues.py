"""The fair queue: every tenant has its turn."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.flow.fair_queues import (
    CREDIT,
    DEBTORS_MAX,
    ArrivingRequests,
    QueueBounds,
    QueueItem,
    TenantFairQueue,
)

WIDE = QueueBounds(all_max=10_000, tenant_max=10_000, user_max=10_000)


def _filled(
    queue: TenantFairQueue[QueueItem], tenant: str, user: str, count: int, cost: int = 1
) -> None:
    for _ in range(count):
        assert queue.push(QueueItem(tenant, user, cost))[0]


def _served(queue: TenantFairQueue[QueueItem], count: int) -> list[QueueItem]:
    return [queue.pop() for _ in range(count)]


def test_a_thousand_of_one_tenant_delay_another_by_one() -> None:
    """A flood fills its own line only. [G1, E6]"""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    _filled(queue, "flood", "f", 1_000)
    _served(queue, 10)
    _filled(queue, "calm", "c", 1)
    assert "calm" in [it.tenant for it in _served(queue, 2)]


def test_turns_are_counted_by_cost() -> None:
    """Ten cheap requests weigh as much as one that costs ten. [G1]"""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    _filled(queue, "heavy", "h", 100, cost=10)
    _filled(queue, "light", "l", 100, cost=1)
    counts = Counter(it.tenant for it in _served(queue, 110))
    assert counts["heavy"] in (10, 11)


def test_inside_a_tenant_each_user_has_a_turn() -> None:
    """One user's script does not lock out colleagues. [G1]"""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    _filled(queue, "acme", "script", 500)
    _filled(queue, "acme", "ann", 5)
    assert Counter(it.user for it in _served(queue, 10))["ann"] == 5


def test_an_absent_tenant_saves_only_a_few_turns() -> None:
    """A tenant that comes late has its share from then on, and little of the past. [G1]"""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    _filled(queue, "early", "e", 200)
    _served(queue, 100)
    _filled(queue, "late", "l", 100)
    counts = Counter(it.tenant for it in _served(queue, CREDIT))
    assert counts == {"late": CREDIT}
    counts = Counter(it.tenant for it in _served(queue, 20))
    assert counts["late"] == counts["early"] == 10


def test_what_turns_out_to_cost_more_is_paid_by_later_turns() -> None:
    """A batch is one request at the door and many behind it. [G1]"""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    _filled(queue, "batch", "b", 50)
    _filled(queue, "plain", "p", 50)
    first = queue.pop()
    queue.charge(first.tenant, first.user, 20)
    other = {"batch": "plain", "plain": "batch"}[first.tenant]
    assert {it.tenant for it in _served(queue, 20)} == {other}


def test_service_that_no_other_waited_for_is_no_debt() -> None:
    """A busy day without overload does not put a tenant last in the next overload. [G1]"""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    for _ in range(1_000):
        queue.charge("busy", "b", 1)
    _filled(queue, "busy", "b", 100)
    _filled(queue, "calm", "c", 100)
    counts = Counter(it.tenant for it in _served(queue, CREDIT + 21))
    assert counts["busy"] >= 10


def test_service_past_the_queue_while_others_wait_is_a_debt() -> None:
    """Requests that found a free seat count as much as those that waited for one. [G1, E6]"""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    _filled(queue, "calm", "c", 100)
    for _ in range(50):
        queue.charge("greedy", "g", 1)
    _filled(queue, "greedy", "g", 100)
    counts = Counter(it.tenant for it in _served(queue, 50 - CREDIT))
    assert counts == {"calm": 50 - CREDIT}


@given(st.integers(0, 2**32))
def test_service_in_the_queue_and_past_it_is_shared_fairly_among_tenants_that_wait(
    seed: int,
) -> None:
    """However a tenant is served, what it gets stays within its credit of the others. [G1, E6]"""
    rng = random.Random(seed)
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    tenants = [f"t{number}" for number in range(rng.randint(2, 6))]
    given_to = dict.fromkeys(tenants, 0)
    for tenant in tenants:
        _filled(queue, tenant, "u", 400)
    for _ in range(300):
        past = tenants[0]
        # A tenant is served past the queue only while that is no more than its share.
        if rng.random() < 1 / (2 * len(tenants)):
            queue.charge(past, rng.choice("uv"), 1)
            given_to[past] += 1
        else:
            given_to[queue.pop().tenant] += 1
    assert max(given_to.values()) - min(given_to.values()) <= CREDIT


def test_lines_are_bounded_for_all_for_a_tenant_and_for_a_user() -> None:
    """No line grows without end. [E6]"""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(
        QueueBounds(all_max=100, tenant_max=10, user_max=4)
    )
    pushed = [queue.push(QueueItem("acme", "ann", 1))[0] for _ in range(6)]
    assert pushed == [True] * 4 + [False] * 2
    for user in ("bob", "cid"):
        for _ in range(4):
            queue.push(QueueItem("acme", user, 1))
    assert queue.waiting_of("acme") == 10
    assert len(queue) == 10


def test_the_longest_queue_gives_up_a_place_to_a_shorter_one() -> None:
    """When all places are taken, the flood pays, not the newcomer. [G1, E6]"""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(
        QueueBounds(all_max=10, tenant_max=10, user_max=10)
    )
    _filled(queue, "flood", "f", 10)
    has_room, evicted = queue.push(QueueItem("calm", "c", 1))
    assert has_room
    assert evicted is not None
    assert evicted.tenant == "flood"
    assert not evicted.is_in_line
    assert len(queue) == 10
    assert queue.push(QueueItem("flood", "f", 1)) == (False, None)


def test_arriving_requests_count_though_none_of_a_known_tenant_waits() -> None:
    """A party that has waited before is remembered, and its burst counts in full."""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    _filled(queue, "acme", "ann", 1)
    queue.pop()
    coming = ArrivingRequests()
    coming.more("acme", "ann", 5)
    assert queue.is_crowded("acme", "ann", 5, coming)


def test_a_removed_item_is_never_served() -> None:
    """A withdrawn request costs nothing more."""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    items = [QueueItem("acme", "ann", 1) for _ in range(300)]
    for item in items:
        queue.push(item)
    for item in items[1:-1]:
        queue.remove(item)
    assert len(queue) == 2
    assert _served(queue, 2) == [items[0], items[-1]]


def test_the_memory_of_parties_that_left_is_bounded() -> None:
    """Names come from clients; a memory of all of them would grow for ever."""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    for number in range(3 * DEBTORS_MAX):
        _filled(queue, f"tenant-{number}", "u", 1)
        queue.pop()
        queue.charge(f"tenant-{number}", "u", 1_000)
    assert queue.remembered_parties <= 2 * (DEBTORS_MAX + 2)


def test_the_memory_of_parties_that_never_waited_is_bounded() -> None:
    """Every request that starts is charged, also those of tenants and users that never queue."""
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(WIDE)
    for number in range(3 * DEBTORS_MAX):
        queue.charge(f"tenant-{number}", "u", 1)
        queue.charge("acme", f"user-{number}", 1)
    # As many tenants with a user each, and as many users of one tenant.
    assert queue.remembered_parties <= 3 * (DEBTORS_MAX + 2)
