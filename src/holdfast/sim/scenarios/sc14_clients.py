"""The tenants of the retry storm: programs that send requests at a constant rate.

Each intent goes through the operation machine (`observe/operation`), as in `host/client`; only the
sockets are simulated. Intents start by the clock, not when earlier ones have ended: users do not
want less from a plane in trouble.
"""

from __future__ import annotations

import heapq
import math
from typing import Any

from holdfast.commit.flow.overload import Overloaded
from holdfast.model.errors import HoldfastError
from holdfast.model.machine import Answered, Ask, Started, Wake, Woken
from holdfast.model.operation_evidence import Evidence, evidence_in
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Patch, PatchType
from holdfast.model.time import Instant
from holdfast.observe.operation import (
    Begun,
    Failed,
    Finish,
    Looked,
    LookFailed,
    LookForOperation,
    Nature,
    OperationMachine,
    Pause,
    Paused,
    Replied,
    Send,
    Stimulus,
)
from holdfast.observe.retry import DEFAULT_POLICY, Budget
from holdfast.observe.watch_events import SERVERS
from holdfast.sim.cell import Seat
from holdfast.sim.scenarios.sc14_meter import StormMeter

# One intent in this many writes; the others read.
WRITES_ONE_IN = 3
_WAKE = "client"


class _Intent:
    """One intent, from its first request to its end."""

    __slots__ = ("began_us", "is_looking", "operation", "request")

    def __init__(self, operation: OperationMachine, request: Patch | Get, began_us: int) -> None:
        self.operation, self.request, self.began_us = operation, request, began_us
        self.is_looking = False


class TenantClient:
    """A program of one tenant that reads and writes its workloads at a constant rate."""

    def __init__(
        self,
        seat: Seat,
        tenant: str,
        names: tuple[str, ...],
        rate: float,
        meter: StormMeter,
        budget: Budget,
    ) -> None:
        self._rng, self._tenant, self._names = seat.rng, tenant, names
        self._life, self._rate, self._meter = f"{seat.name}.{seat.life}", rate, meter
        self._budget = budget
        self._next_ms = 0.0
        self._count = self._calls = 0
        self._open: dict[int, _Intent] = {}
        # Pausing intents: (until when, number, intent).
        self._pausing: list[tuple[int, int, _Intent]] = []

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        out: list[Any] = []
        match stimulus:
            case Started():
                self._next_ms = now.monotonic_ms + self._gap_ms()
            case Answered(call=call, body=body):
                intent = self._open.pop(call)
                self._go_on(intent, _retry_stimulus(intent, body), now, out)
            case Woken():
                self._due(now, out)
        return [*out, self._tick(now)]

    def _gap_ms(self) -> float:
        return -math.log(1.0 - self._rng.random()) * 1_000 / self._rate

    def _tick(self, now: Instant) -> Wake:
        at_ms = int(self._next_ms)
        if self._pausing:
            at_ms = min(at_ms, self._pausing[0][0])
        return Wake(_WAKE, max(now.monotonic_ms + 1, at_ms))

    def _due(self, now: Instant, out: list[Any]) -> None:
        while self._pausing and self._pausing[0][0] <= now.monotonic_ms:
            _, _, intent = heapq.heappop(self._pausing)
            self._go_on(intent, Paused(), now, out)
        while self._next_ms <= now.monotonic_ms:
            self._next_ms += self._gap_ms()
            self._begin(now, out)

    def _begin(self, now: Instant, out: list[Any]) -> None:
        self._count += 1
        name = self._names[self._count % len(self._names)]
        request: Patch | Get = Get("workloads", name, self._tenant)
        nature = Nature.READ
        if self._rng.random() * WRITES_ONE_IN < 1:
            nature = Nature.WRITE
            body = {"metadata": {"annotations": {"wish": f"{self._count}"}}}
            operation = f"{self._life}/{self._count}"
            request = Patch(
                "workloads", self._tenant, name, PatchType.MERGE, body, operation=operation
            )
        machine = OperationMachine(DEFAULT_POLICY, nature, self._rng, self._budget)
        self._meter.begin_intent()
        self._go_on(_Intent(machine, request, self._meter.now_us), Begun(), now, out)

    def _go_on(self, intent: _Intent, stimulus: Stimulus, now: Instant, out: list[Any]) -> None:
        effect = intent.operation.step(stimulus, now.monotonic_ms)
        match effect:
            case Send(timeout_ms=timeout_ms) | LookForOperation(timeout_ms=timeout_ms):
                intent.is_looking = isinstance(effect, LookForOperation)
                self._calls += 1
                self._open[self._calls] = intent
                out.append(Ask(self._calls, SERVERS, _request(intent), timeout_ms))
            case Pause(duration_ms=duration_ms):
                until_ms = now.monotonic_ms + duration_ms
                self._calls += 1
                heapq.heappush(self._pausing, (until_ms, self._calls, intent))
            case Finish():
                self._meter.intent_succeeded(intent.began_us)
            case _:
                self._meter.intent_failed(intent.began_us)


def _request(intent: _Intent) -> Patch | Get:
    request = intent.request
    if intent.is_looking and isinstance(request, Patch):
        return Get(request.plural, request.name, request.namespace)
    return request


def _retry_stimulus(intent: _Intent, body: Any) -> Stimulus:
    """What an answer means to the operation machine, as in `host/client/retrying`."""
    after_ms = 1_000 * body.retry_after_s if isinstance(body, Overloaded) else 0
    if intent.is_looking:
        if isinstance(body, HoldfastError):
            return LookFailed(body, after_ms)
        return Looked(_evidence(intent.request, body), body)
    is_error = isinstance(body, HoldfastError | Refusal)
    return Failed(body, after_ms) if is_error else Replied(body)


def _evidence(request: Patch | Get, found: Any) -> Evidence:
    if not isinstance(found, GetResult) or not isinstance(request, Patch):
        return Evidence.ABSENT
    return evidence_in(request, found.object)
