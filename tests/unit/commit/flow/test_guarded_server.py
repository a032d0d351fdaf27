"""A server behind its flow controllers, as the simulator runs it."""

from __future__ import annotations

import random
from typing import Any

from holdfast.commit.flow.fair_queues import QueueBounds
from holdfast.commit.flow.flow_control import Seats
from holdfast.commit.flow.guarded_server import TURN, WAKE, GuardedServer
from holdfast.commit.flow.overload import Overloaded
from holdfast.commit.flow.request_classes import RequestClass
from holdfast.commit.flow.seats import DEFAULT_FLOW_CONTROL, FlowControllers, FlowControlSettings
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.machine import Answer, Asked, Started, Wake, Woken
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.heartbeat import Renew
from holdfast.model.requests import Create
from holdfast.model.time import Instant

ANN = Identity("ann", groups=("tenant:acme",), tenants=("acme",))
BOUNDS = QueueBounds(all_max=4, tenant_max=4, user_max=4)
TIGHT = FlowControlSettings(
    writes=dict.fromkeys(RequestClass, Seats(1, 2, 2, BOUNDS, 50)),
    reads=dict.fromkeys(RequestClass, Seats(1, 2, 2, BOUNDS, 50)),
    is_measured=False,
)


class Slow:
    """Answers no request until the test asks it to."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        match stimulus:
            case Asked(call=call):
                self.taken.append(call)
                return []
            case Woken(name=name):
                return [Answer(int(name), "done")]
        return []


def at(ms: int) -> Instant:
    return Instant(ms, 1_700_000_000_000 + ms)


def create(call: int, sender: Identity = ANN) -> Asked:
    return Asked(call, sender, Create(Tenant(ObjectMeta(name="acme"))))


def test_what_finds_a_seat_reaches_the_machine_and_what_does_not_waits_for_an_answer() -> None:
    """A seat is held until the turn after the answer, as on a real event loop."""
    slow = Slow()
    guarded = GuardedServer(slow, FlowControllers(random.Random(1), TIGHT))
    for call in (1, 2, 3):
        guarded.step(create(call), at(0))
    assert slow.taken == [1, 2]
    effects = guarded.step(Woken("1"), at(10))
    assert effects == [Answer(1, "done"), Wake(TURN, 10)]
    assert slow.taken == [1, 2]
    guarded.step(Woken(TURN), at(12))
    assert slow.taken == [1, 2, 3]


def test_a_turn_is_requested_once_and_both_flow_controllers_observe_it() -> None:
    """What leases wait for is measured, and seats follow it."""
    slow = Slow()
    controllers = FlowControllers(random.Random(1))
    guarded = GuardedServer(slow, controllers)
    for call in range(1_000):
        guarded.step(create(call), at(0))
    before = [it.limit.scale for it in controllers.all if it.limit is not None]
    for turn in range(9):
        # Several answers ask for one turn.
        first, second = slow.taken[2 * turn : 2 * turn + 2]
        asked = [
            *guarded.step(Woken(str(first)), at(25 * turn)),
            *guarded.step(Woken(str(second)), at(25 * turn)),
        ]
        assert asked.count(Wake(TURN, 25 * turn)) == 1
        guarded.step(Woken(TURN), at(25 * turn + 20))
    after = [it.limit.scale for it in controllers.all if it.limit is not None]
    assert len(before) == len(after) == 2
    assert after[0] < 1
    assert before[1] >= after[1]


def test_a_request_that_waits_too_long_is_answered_unavailable() -> None:
    """The machine asks for a wake-up for it, and never receives the request."""
    slow = Slow()
    guarded = GuardedServer(slow, FlowControllers(random.Random(1), TIGHT))
    guarded.step(create(1), at(0))
    guarded.step(create(2), at(0))
    (wake,) = guarded.step(create(3), at(5))
    assert wake == Wake(WAKE, 55)
    (answer,) = guarded.step(Woken(WAKE), at(55))
    assert answer.call == 3
    assert isinstance(answer.body, Overloaded)
    assert answer.body.retry_after_s >= 1
    guarded.step(Woken("1"), at(60))
    assert slow.taken == [1, 2]


def test_more_than_may_wait_are_answered_at_once() -> None:
    """A line has an end."""
    guarded = GuardedServer(Slow(), FlowControllers(random.Random(1), TIGHT))
    answers = [it for n in range(10) for it in guarded.step(create(n + 1), at(0))]
    refused = [it.call for it in answers if isinstance(it, Answer)]
    assert refused == [7, 8, 9, 10]


def test_lifelines_pass_while_everything_else_waits() -> None:
    """Work lives by renewals, so they have seats of their own. [E6]"""
    slow = Slow()
    guarded = GuardedServer(slow, FlowControllers(random.Random(1), DEFAULT_FLOW_CONTROL))
    for call in range(2_000):
        guarded.step(create(call), at(0))
    guarded.step(Asked(9_999, who.agent("n1"), Renew("n1", "u", 1)), at(0))
    assert slow.taken[-1] == 9_999


def test_whatever_is_no_request_goes_straight_through() -> None:
    """Flow controllers are before requests only."""
    guarded = GuardedServer(Slow(), FlowControllers(random.Random(1), TIGHT))
    assert guarded.step(Started({}), at(0)) == []
    assert list(guarded.step(Woken("7"), at(0))) == [Answer(7, "done")]
