"""Flow control: which requests start at once, wait, or are refused."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from holdfast.commit.flow.concurrency_limit import SAMPLES, ConcurrencyLimit
from holdfast.commit.flow.fair_queues import QueueBounds
from holdfast.commit.flow.flow_control import (
    CALM_AFTER_MS,
    FlowController,
    QueuedRequest,
    RequestState,
    Seats,
)
from holdfast.commit.flow.flow_counts import TENANTS_COUNTED_MAX
from holdfast.commit.flow.overload import RejectionReason
from holdfast.commit.flow.request_classes import Flow, RequestClass
from holdfast.commit.flow.seats import FlowControllers, FlowControlSettings
from holdfast.model.pulse import OTHERS

LIFELINE = Flow(RequestClass.LIFELINE, "agents", "n1")
SYSTEM = Flow(RequestClass.SYSTEM, "schedulers", "main")
TENANT = Flow(RequestClass.TENANT, "acme", "ann")
BACKGROUND = Flow(RequestClass.BACKGROUND, "acme", "ann")
BOUNDS = QueueBounds(all_max=8, tenant_max=6, user_max=6)


def _seats(**changed: Seats) -> Mapping[RequestClass, Seats]:
    table = {it: Seats(1, 4, 4 + 2 * (4 - it), BOUNDS, 100) for it in RequestClass}
    return table | {RequestClass[name.upper()]: seats for name, seats in changed.items()}


def _controller(**changed: Seats) -> FlowController:
    return FlowController(_seats(**changed), random.Random(1))


def _states(entries: list[QueuedRequest]) -> list[RequestState]:
    return [entry.state for entry in entries]


def test_a_request_that_finds_a_free_seat_starts_at_once() -> None:
    """Without overload flow control has no effect."""
    controller = _controller()
    entries = [controller.enter(TENANT, 0) for _ in range(4)]
    assert _states(entries) == [RequestState.BEGUN] * 4
    assert controller.waiting == 0
    assert controller.turn(0) == []


def test_a_free_seat_goes_to_the_highest_class_that_waits() -> None:
    """Leases first, then components, then people, then what can wait. [E6]"""
    controller = _controller()
    begun = [
        controller.enter(flow, 0) for flow in (LIFELINE, SYSTEM, TENANT, BACKGROUND) for _ in "1234"
    ]
    waiting = [controller.enter(flow, 0) for flow in (BACKGROUND, TENANT, SYSTEM, LIFELINE)]
    assert _states(waiting) == [RequestState.WAITING] * 4
    for entry in begun:
        if entry.state is RequestState.BEGUN:
            controller.leave(entry, 1)
    order = [it.flow.request_class for it in controller.turn(1)]
    assert order[:3] == [RequestClass.LIFELINE, RequestClass.SYSTEM, RequestClass.TENANT]


def test_patience_is_longer_while_no_request_was_refused() -> None:
    """A pause of the server refuses no request; in an overload a refusal comes soon."""
    controller = _controller(tenant=Seats(1, 1, 4, BOUNDS, 10, calm_ms=100))
    controller.enter(TENANT, 0)
    calm = controller.enter(TENANT, 0)
    assert controller.turn(99) == []
    assert controller.next_ms == 100
    assert controller.turn(100) == [calm]
    assert calm.state is RequestState.REFUSED
    hasty = controller.enter(TENANT, 200)
    assert controller.next_ms == 210
    assert controller.turn(210) == [hasty]
    # Long after the last refusal it is calm again.
    again = controller.enter(TENANT, 210 + CALM_AFTER_MS)
    assert controller.turn(210 + CALM_AFTER_MS + 99) == []
    assert again.state is RequestState.WAITING


def test_a_shorter_patience_ends_before_a_longer_one_that_began_before() -> None:
    controller = _controller(tenant=Seats(1, 1, 4, BOUNDS, 10, calm_ms=100))
    controller.enter(TENANT, 0)
    first, second = controller.enter(TENANT, 0), controller.enter(TENANT, 60)
    assert controller.turn(100) == [first]
    hasty = controller.enter(TENANT, 101)
    assert controller.turn(111) == [hasty]
    assert second.state is RequestState.WAITING
    assert controller.turn(160) == [second]


def test_no_class_is_starved_by_those_above_it() -> None:
    """One seat of its own is always there. [E6, G1]"""
    controller = _controller()
    for _ in range(4):
        assert controller.enter(LIFELINE, 0).state is RequestState.BEGUN
        assert controller.enter(SYSTEM, 0).state is RequestState.BEGUN
    assert controller.enter(BACKGROUND, 0).state is RequestState.BEGUN
    assert controller.enter(BACKGROUND, 0).state is RequestState.WAITING


def test_a_request_that_waited_too_long_is_refused_and_never_started() -> None:
    """A queue is bounded in time, so that a refusal comes fast."""
    controller = _controller()
    begun = [controller.enter(TENANT, 0) for _ in range(4)]
    late = controller.enter(TENANT, 10)
    assert controller.next_ms == 110
    assert controller.turn(109) == []
    assert controller.turn(110) == [late]
    assert late.state is RequestState.REFUSED
    assert late.error is not None
    assert late.error.why is RejectionReason.WAITED_TOO_LONG
    controller.leave(begun[0], 111)
    assert controller.turn(111) == []
    assert controller.next_ms is None


def test_a_tenant_of_whom_nothing_is_under_way_does_not_wait_for_a_crowd_to_be_done() -> None:
    """One seat for each, out of some that a crowd cannot take. [G1, E6]"""
    controller = _controller(tenant=Seats(1, 4, 12, BOUNDS, 100, newcomers=2))
    crowd = [controller.enter(TENANT, 0) for _ in range(6)]
    assert _states(crowd) == [RequestState.BEGUN] * 4 + [RequestState.WAITING] * 2
    controller.leave(crowd[0], 1)
    assert controller.turn(1) == [crowd[4]]
    others = [Flow(RequestClass.TENANT, f"t{n}", "u") for n in range(3)]
    entries = [controller.enter(flow, 1) for flow in (others[0], others[0], others[1], others[2])]
    assert _states(entries) == [
        RequestState.BEGUN,
        RequestState.WAITING,
        RequestState.BEGUN,
        RequestState.WAITING,
    ]
    controller.leave(entries[0], 2)
    (next_one,) = controller.turn(2)
    assert next_one.tenant in ("t0", "t2"), "and not one of the crowd, which came first"
    assert controller.class_loads(2)[RequestClass.TENANT].executing == 6


def test_an_extra_seat_is_not_for_a_tenant_that_was_served_more_than_one_that_waits() -> None:
    """A greedy tenant would pass the queue whenever none of its requests runs. [G1, E6]"""
    controller = _controller(tenant=Seats(1, 1, 12, BOUNDS, 100, newcomers=1))
    greedy, modest, third = (Flow(RequestClass.TENANT, it, "u") for it in ("greedy", "modest", "c"))
    running = [controller.enter(third, 0), controller.enter(modest, 0)]
    waiting = controller.enter(modest, 0)
    controller.charge(greedy, 40)
    controller.leave(running[0], 1)
    controller.leave(running[1], 1)
    running = [controller.enter(third, 1), *controller.turn(1)]
    assert waiting in running
    left = controller.enter(modest, 2)
    controller.leave(waiting, 3)
    passing = controller.enter(greedy, 3)
    assert passing.state is RequestState.WAITING
    assert controller.turn(3) == [left]


def test_long_requests_may_wait_longer_and_delay_no_other() -> None:
    """Watchers that lost a server return together, and are admitted one after the other."""
    controller = _controller()
    begun = [controller.enter(TENANT, 0) for _ in range(4)]
    watch = controller.enter(TENANT, 0, is_patient=True)
    brief = controller.enter(TENANT, 1)
    assert controller.next_ms == 101
    assert controller.turn(101) == [brief]
    assert brief.state is RequestState.REFUSED
    assert controller.class_loads(101)[RequestClass.TENANT].oldest_ms == 101
    controller.leave(begun[0], 1_900)
    assert controller.turn(1_900) == [watch]
    assert watch.state is RequestState.BEGUN


def test_the_head_of_the_queue_starts_though_the_owner_polled_late_unless_much_later() -> None:
    """A server that polled late must not refuse a request that it could serve now."""
    controller = _controller()
    begun = [controller.enter(TENANT, 0) for _ in range(4)]
    first, second = controller.enter(TENANT, 0), controller.enter(TENANT, 0)
    controller.leave(begun[0], 150)
    assert controller.turn(150) == [first, second]
    assert _states([first, second]) == [RequestState.BEGUN, RequestState.REFUSED]
    third = controller.enter(TENANT, 150)
    controller.leave(begun[1], 1_250)
    assert controller.turn(1_250) == [third]
    assert third.state is RequestState.REFUSED


def test_a_request_that_started_at_once_counts_as_a_turn() -> None:
    """The tenant that found the free seat has had its turn. [G1, E6]"""
    controller = _controller(tenant=Seats(1, 1, 4, BOUNDS, 100))
    first = controller.enter(TENANT, 0)
    controller.enter(TENANT, 0)
    other = controller.enter(Flow(RequestClass.TENANT, "other", "u"), 0)
    controller.leave(first, 1)
    assert controller.turn(1) == [other]


def test_a_read_counts_when_turns_of_writes_are_given_and_the_reverse() -> None:
    """Reads find a seat at once, and take the processor from writes that wait. [G1, E6]"""
    for is_reversed in (False, True):
        controllers = FlowControllers(
            random.Random(1),
            FlowControlSettings(
                writes=_seats(tenant=Seats(1, 1, 4, BOUNDS, 100)),
                reads=_seats(tenant=Seats(1, 1, 4, BOUNDS, 100)),
                is_measured=False,
            ),
        )
        full, free = controllers.all[::-1] if is_reversed else controllers.all
        first = full.enter(Flow(RequestClass.TENANT, "first", "u"), 0)
        full.enter(TENANT, 0)
        assert free.enter(TENANT, 0).state is RequestState.BEGUN
        other = full.enter(Flow(RequestClass.TENANT, "other", "u"), 0)
        full.leave(first, 1)
        assert full.turn(1) == [other]


def test_a_withdrawn_request_is_not_started() -> None:
    """A client that closed its connection takes no seat."""
    controller = _controller()
    begun = [controller.enter(TENANT, 0) for _ in range(4)]
    gone, stays = controller.enter(TENANT, 0), controller.enter(TENANT, 0)
    assert controller.withdraw(gone)
    controller.leave(begun[0], 1)
    assert controller.turn(1) == [stays]
    assert gone.state is RequestState.OVER
    assert not controller.withdraw(stays)
    assert stays.state is RequestState.BEGUN


def test_more_than_may_wait_are_refused_at_once() -> None:
    """The line of one tenant is bounded. [E6]"""
    controller = _controller()
    entries = [controller.enter(TENANT, 0) for _ in range(4 + BOUNDS.tenant_max + 3)]
    assert _states(entries[-3:]) == [RequestState.REFUSED] * 3
    assert {it.error.why for it in entries[-3:] if it.error} == {RejectionReason.QUEUE_FULL}


def test_a_request_that_loses_its_place_is_reported_in_the_next_turn() -> None:
    """The client of the evicted request waits for its answer. [G1]"""
    controller = _controller()
    for _ in range(4 + 6):
        controller.enter(TENANT, 0)
    for _ in range(2):
        controller.enter(Flow(RequestClass.TENANT, "other", "bob"), 0)
    newcomer = controller.enter(Flow(RequestClass.TENANT, "third", "cid"), 5)
    assert newcomer.state is RequestState.WAITING
    assert controller.next_ms is not None
    (evicted,) = controller.turn(5)
    assert evicted.state is RequestState.REFUSED
    assert evicted.tenant == "acme"
    assert controller.waiting == BOUNDS.all_max


def test_refusals_say_when_to_retry_with_jitter_and_later_when_nothing_moves() -> None:
    """Clients that were refused together do not return together. [E5, E6]"""
    controller = _controller()
    for _ in range(4):
        controller.enter(TENANT, 0)

    def delays(now_ms: int) -> list[int]:
        found = []
        for _ in range(200):
            entry = controller.enter(TENANT, now_ms)
            if entry.error is not None:
                found.append(entry.error.retry_after_s)
        return found

    stalled = delays(30_000)
    assert min(stalled) == 1
    assert max(stalled) == 16


@pytest.mark.parametrize("begun_each, longest_s", [(20, 4), (1, 16)])
def test_a_refused_client_stays_away_longer_when_much_is_refused(
    begun_each: int, longest_s: int
) -> None:
    """Refusing costs as well: a crowd must not use a slow server up with it. [E5, E6]"""
    controller = _controller()
    seated = [controller.enter(TENANT, 0) for _ in range(4)]
    queued = [controller.enter(TENANT, 0) for _ in range(BOUNDS.tenant_max)]
    delays: set[int] = set()
    for ms in range(1_000):
        for _ in range(begun_each):
            controller.leave(seated.pop(0), ms)
            controller.turn(ms)
            seated.append(queued.pop(0))
            queued.append(controller.enter(TENANT, ms))
        refused = controller.enter(TENANT, ms)
        assert refused.error is not None
        delays.add(refused.error.retry_after_s)
    assert (min(delays), max(delays)) == (1, longest_s)


def test_seats_follow_the_limit_and_those_of_lifelines_do_not() -> None:
    """Few seats on a slow machine, one at least for each class, and leases pass. [E6, G1]"""
    limit = ConcurrencyLimit(8)
    controller = FlowController(
        _seats(tenant=Seats(2, 8, 16, BOUNDS, 100)), random.Random(1), limit=limit
    )
    for _ in range(SAMPLES):
        controller.leave(controller.enter(SYSTEM, 0), 1)
    tenants = [controller.enter(TENANT, 0) for _ in range(9)]
    assert _states(tenants) == [RequestState.BEGUN] * 8 + [RequestState.WAITING]
    for entry in tenants:
        if entry.state is RequestState.BEGUN:
            controller.leave(entry, 1)
        else:
            controller.withdraw(entry)
    for _ in range(40):
        controller.observe_turn(500, 10)
    tenants = [controller.enter(TENANT, 0) for _ in range(4)]
    assert _states(tenants) == [RequestState.BEGUN] + [RequestState.WAITING] * 3
    assert controller.enter(BACKGROUND, 0).state is RequestState.BEGUN
    assert _states([controller.enter(LIFELINE, 0) for _ in range(4)]) == [RequestState.BEGUN] * 4


def test_patience_follows_measurements() -> None:
    """No request is refused before a seat can have become free."""
    limit = ConcurrencyLimit(1)
    controller = FlowController(
        _seats(tenant=Seats(1, 1, 4, BOUNDS, 10, calm_ms=20)), random.Random(1), limit=limit
    )
    assert controller.patience_ms == 10
    for _ in range(200):
        controller.observe_turn(40, 100)
    assert 100 <= controller.patience_ms <= 3 * 40
    controller.enter(TENANT, 0)
    waits = controller.enter(TENANT, 0)
    assert waits.until_ms == 2 * controller.patience_ms
    assert controller.turn(waits.until_ms) == [waits]
    hasty = controller.enter(TENANT, waits.until_ms)
    assert hasty.until_ms == waits.until_ms + controller.patience_ms


@pytest.mark.parametrize("flow, seats", [(TENANT, 4), (LIFELINE, 4)])
def test_leaving_frees_exactly_the_seat_that_was_taken(flow: Flow, seats: int) -> None:
    """What is under way is counted by class and in all."""
    controller = _controller()
    entries = [controller.enter(flow, 0) for _ in range(seats)]
    assert controller.class_loads(0)[flow.request_class].executing == seats
    for entry in entries:
        controller.leave(entry, 1)
    assert controller.class_loads(1)[flow.request_class].executing == 0
    assert controller.enter(flow, 1).state is RequestState.BEGUN


def test_requests_are_counted_by_class_and_by_tenant() -> None:
    """Operators see which requests wait, since when, and why others were refused. [M6]"""
    controller = _controller()
    for _ in range(12):
        controller.enter(TENANT, 100)
    standing = controller.class_loads(130)[RequestClass.TENANT]
    assert (standing.executing, standing.waiting, standing.oldest_ms) == (4, 6, 30)
    assert standing.refused == {RejectionReason.QUEUE_FULL: 2}
    tally = controller.tenants[RequestClass.TENANT, "acme"]
    assert (tally.begun, tally.refused) == (4, 2)


def test_tenants_beyond_a_number_are_counted_together() -> None:
    """A metric has no more series than can be read."""
    controller = _controller()
    for number in range(TENANTS_COUNTED_MAX + 50):
        controller.leave(controller.enter(Flow(RequestClass.TENANT, f"t{number}", "u"), 0), 0)
    assert len(controller.tenants) == TENANTS_COUNTED_MAX + 1
    assert controller.tenants[RequestClass.TENANT, OTHERS].begun == 50
