"""A server machine behind its flow controllers, as one machine for the simulator.

Requests (`Asked`) wait at the flow controllers of `commit/flow/seats`; any other stimulus passes
straight through. A request is running from the moment the inner machine receives it until its
`Answer`. Refused requests get `Overloaded`, which is Unavailable: the request did not happen. On a
real server `host/api/flow/request_admission` does the same before a body is even read, and in the
same order: seats come back with a later turn of the event loop. Here that is a wake-up that is due
at once, which a busy machine processes after everything that arrived before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.commit.flow.flow_control import FlowController, QueuedRequest, RequestState
from holdfast.commit.flow.request_classes import RequestPurpose, classify, purpose_of
from holdfast.commit.flow.seats import LEFT_MAX, FlowControllers
from holdfast.model.access.identity import Identity
from holdfast.model.machine import Answer, Asked, Effects, PlaneMachine, Stimulus, Wake, Woken
from holdfast.model.time import Instant

# A request has waited too long; and the event loop has turned.
WAKE, TURN = "flow", "flow/turn"


class GuardedServer:
    """See the module's docstring. `purpose` gives the purpose of a request; `machine` stays
    reachable.
    """

    def __init__(
        self,
        machine: PlaneMachine,
        controllers: FlowControllers,
        purpose: Callable[[Any], RequestPurpose] = purpose_of,
    ) -> None:
        self.machine, self.controllers = machine, controllers
        self._purpose = purpose
        # Requests that the inner machine has not answered yet, by call number.
        self._begun: dict[int, tuple[FlowController, QueuedRequest]] = {}
        # Answered requests that still have their seat, and when they were answered.
        self._left: list[tuple[FlowController, QueuedRequest, int]] = []
        self._wake_ms: int | None = None
        # Since when the next turn is awaited.
        self._turning_ms: int | None = None

    def step(self, stimulus: Stimulus, now: Instant) -> Effects:
        effects: Effects = []
        if isinstance(stimulus, Asked):
            self._asked(stimulus, now, effects)
        elif isinstance(stimulus, Woken) and stimulus.name == WAKE:
            self._wake_ms = None
            self._turn(now, effects)
        elif isinstance(stimulus, Woken) and stimulus.name == TURN:
            if self._turning_ms is not None:
                self.controllers.observe_turn(now.monotonic_ms - self._turning_ms)
                self._turning_ms = None
            self._turn(now, effects)
        else:
            self._through(stimulus, now, effects)
        self._plan(now, effects)
        return effects

    def _asked(self, asked: Asked, now: Instant, effects: Effects) -> None:
        sender = asked.sender
        identity = sender if isinstance(sender, Identity) else Identity(name=sender)
        purpose = self._purpose(asked.body)
        controller = self.controllers.of(purpose)
        entry = controller.enter(classify(identity, purpose), now.monotonic_ms, about=asked)
        if entry.state is RequestState.BEGUN:
            self._begin(controller, entry, now, effects)
        elif entry.error is not None:
            effects.append(Answer(asked.call, entry.error))

    def _begin(
        self, controller: FlowController, entry: QueuedRequest, now: Instant, effects: Effects
    ) -> None:
        self._begun[entry.about.call] = (controller, entry)
        self._through(entry.about, now, effects)

    def _through(self, stimulus: Stimulus, now: Instant, effects: Effects) -> None:
        """Pass a stimulus to the inner machine; the requests that it answers are done."""
        for effect in self.machine.step(stimulus, now):
            effects.append(effect)
            if type(effect) is Answer:
                begun = self._begun.pop(effect.call, None)
                if begun is not None:
                    self._left.append((*begun, now.monotonic_ms))

    def _turn(self, now: Instant, effects: Effects) -> None:
        """Return the seats that became free, then give them out."""
        left, self._left = self._left, []
        for controller, entry, at_ms in left:
            controller.leave(entry, at_ms)
        for controller in self.controllers.all:
            for entry in controller.turn(now.monotonic_ms):
                if entry.state is RequestState.BEGUN:
                    self._begin(controller, entry, now, effects)
                elif entry.error is not None:
                    effects.append(Answer(entry.about.call, entry.error))

    def _plan(self, now: Instant, effects: Effects) -> None:
        """Schedule a wake-up for the next turn, and for the next request that will have waited too
        long.
        """
        waiting = sum(controller.waiting for controller in self.controllers.all)
        is_due = len(self._left) >= LEFT_MAX or (waiting and self._left)
        if is_due and self._turning_ms is None:
            self._turning_ms = now.monotonic_ms
            effects.append(Wake(TURN, now.monotonic_ms))
        firsts = [controller.next_ms for controller in self.controllers.all]
        at_ms = min((it for it in firsts if it is not None), default=None)
        if at_ms is not None and (self._wake_ms is None or at_ms < self._wake_ms):
            self._wake_ms = at_ms
            effects.append(Wake(WAKE, max(at_ms, now.monotonic_ms + 1)))
