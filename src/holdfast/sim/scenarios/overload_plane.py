"""The plane of the overload scenarios: one server, its store, a crowd of clients, and who renews.

Gates, classes and limits are those that ship (`commit/flow/guarded_server`). What is behind them is
reduced to what matters here: reads are answered from memory, writes are committed in groups, one at
a time, as the authority does, and all of it takes processor time in proportion to `service_us`.
`overload` judges what became of it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.commit.flow.guarded_server import GuardedServer
from holdfast.commit.flow.overload import Overloaded
from holdfast.commit.flow.seats import FlowControllers
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError
from holdfast.model.machine import Answer, Answered, Ask, Asked, Started, Txn, Wake, Woken
from holdfast.model.requests import Patch, PatchType, RenewLease, Term
from holdfast.model.time import Instant
from holdfast.model.transaction import Transaction
from holdfast.observe.watch_events import Get
from holdfast.sim.cell import Seat
from holdfast.sim.check import Checker
from holdfast.sim.plan import Fault
from holdfast.sim.world import World

SERVER = "server"
TENANTS = tuple(f"tenant-{n}" for n in range(10))
# Each of them has so many clients with a connection each; so many keep a server busy.
CLIENTS, PEAK_CLIENTS = 30, 6
# Schedulers and controllers, each of which renews its lease so often.
HOLDERS, RENEW_MS = 20, 500
WRITES_SHARE = 0.45
CLIENT_TIMEOUT_MS = 10_000
GROUP_MAX = 256
# The course of it, in seconds: all connections busy, a calm time, a storm, a calm time, the store
# stands still, and it is back.
PEAK_S, CALM_S, STORM_S, AFTER_S, STALL_S, BACK_S, END_S = 1, 4, 10, 20, 26, 56, 82
CALM_LOAD, STORM_LOAD = 0.6, 5.0
_CLIENT, _RENEW = "client", "renew"
WRITE, READ, LEASE = "write", "read", "lease"
SERVED, REFUSED, FAILED = "served", "refused", "failed"

# What a request costs the processor, in service times: to be read, to be refused, to be answered,
# and to be decided if it writes.
TAKEN_IN, TURNED_AWAY, ANSWERED, DECIDED = 0.25, 0.1, 0.55, 0.4


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One request: when it was due, was sent and was done, in microseconds, and what came of it."""

    kind: str
    due_us: int
    sent_us: int
    done_us: int
    outcome: str


class Meter(Checker):
    """Everything that was asked, and the peak once it is known."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.samples: list[Sample] = []
        self._peak: float | None = None

    @property
    def now_us(self) -> int:
        return self._world.now_us

    def done(self, kind: str, due_us: int, sent_us: int, outcome: str) -> None:
        self.samples.append(Sample(kind, due_us, sent_us, self.now_us, outcome))

    @property
    def peak(self) -> float:
        """Requests of tenants that were served in a second with enough connections always busy."""
        if self._peak is None:
            self._peak = self.served_per_s(PEAK_S, CALM_S)
        return self._peak

    @property
    def service_ms(self) -> float:
        """What a request takes of a server that has nothing else to do, one after the other."""
        return 1_000 / self.peak

    def served_per_s(self, begin_s: float, end_s: float) -> float:
        count = sum(
            it.kind != LEASE and it.outcome == SERVED and begin_s <= it.done_us / 1e6 < end_s
            for it in self.samples
        )
        return count / (end_s - begin_s)

    def of(self, kinds: Sequence[str], begin_s: float, end_s: float) -> list[Sample]:
        """What was due in this time."""
        return [
            it for it in self.samples if it.kind in kinds and begin_s <= it.due_us / 1e6 < end_s
        ]


def rate_at(second: float, peak: Callable[[], float]) -> float:
    """What all tenants want in a second at this time; 0 is as much as they get."""
    if second < CALM_S:
        return 0.0
    return peak() * (STORM_LOAD if STORM_S <= second < AFTER_S else CALM_LOAD)


class Service:
    """Answers reads at once and commits writes in groups, one at a time."""

    def __init__(self) -> None:
        self._line: list[Asked] = []
        self._group: list[Asked] = []
        self._calls = 0

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        out: list[Any] = []
        match stimulus:
            case Asked(call=call, body=Get()):
                return [Answer(call, None)]
            case Asked():
                self._line.append(stimulus)
            case Answered(body=body):
                failed = body if isinstance(body, HoldfastError) else None
                out += [Answer(it.call, failed) for it in self._group]
                self._group = []
        if self._line and not self._group:
            self._group, self._line = self._line[:GROUP_MAX], self._line[GROUP_MAX:]
            self._calls += 1
            out.append(Txn(self._calls, Transaction((), ())))
        return out

    @property
    def deciding(self) -> int:
        """How many requests the transaction that was just sent decides."""
        return len(self._group)


def burden(guarded: Callable[[], Any], service_us: int) -> Callable[[Any, Sequence[Any]], int]:
    """What a server's processor spends."""

    def spent(stimulus: Any, effects: Sequence[Any]) -> int:
        share = TAKEN_IN if type(stimulus) is Asked else 0.0
        for effect in effects:
            if type(effect) is Answer:
                share += TURNED_AWAY if isinstance(effect.body, Overloaded) else ANSWERED
            elif type(effect) is Txn:
                share += DECIDED * guarded().machine.deciding
        return int(share * service_us)

    return spent


class Tenant:
    """The clients of one tenant. Each has one connection and stays away for as long as it is told.

    Requests fall due by the clock. What finds every client busy waits for one; what finds some told
    to stay away is not sent at all.
    """

    def __init__(self, seat: Seat, name: str, meter: Meter) -> None:
        self._rng, self._name, self._meter = seat.rng, name, meter
        self._idle = CLIENTS
        # When clients that were told to stay away come back, and what waits for one that is busy.
        self._away: list[int] = []
        self._waiting: list[int] = []
        self._open: dict[int, tuple[str, int, int]] = {}
        self._calls = 0
        self._next_us = 0.0

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        out: list[Any] = []
        if isinstance(stimulus, Answered):
            self._answered(stimulus, now)
        while self._away and self._away[0] <= now.monotonic_ms:
            heapq.heappop(self._away)
            self._idle += 1
        self._send(now, out)
        out.append(Wake(_CLIENT, self._wake_ms(now)))
        return out

    def _answered(self, answered: Answered, now: Instant) -> None:
        kind, due_us, sent_us = self._open.pop(answered.call)
        body, outcome = answered.body, SERVED
        if isinstance(body, Overloaded):
            outcome = REFUSED
            heapq.heappush(self._away, now.monotonic_ms + 1_000 * body.retry_after_s)
        else:
            self._idle += 1
            outcome = FAILED if isinstance(body, HoldfastError) else SERVED
        self._meter.done(kind, due_us, sent_us, outcome)

    def _send(self, now: Instant, out: list[Any]) -> None:
        now_us = self._meter.now_us
        if now_us < CALM_S * 1_000_000:
            while CLIENTS - self._idle < PEAK_CLIENTS:
                self._ask(now_us, out)
            self._next_us = now_us
            return
        while self._waiting and self._idle:
            self._ask(self._waiting.pop(0), out)
        rate = rate_at(now_us / 1e6, lambda: self._meter.peak) / len(TENANTS)
        while self._next_us <= now_us:
            due_us = int(self._next_us)
            self._next_us += -math.log(1.0 - self._rng.random()) * 1e6 / rate
            if self._idle:
                self._ask(due_us, out)
            elif not self._away:
                self._waiting.append(due_us)

    def _ask(self, due_us: int, out: list[Any]) -> None:
        self._calls += 1
        self._idle -= 1
        is_write = self._rng.random() < WRITES_SHARE
        body: Any = Get("workloads", "w", self._name)
        if is_write:
            operation = f"{self._name}/{self._calls}"
            body = Patch("workloads", self._name, "w", PatchType.MERGE, {}, operation=operation)
        kind = WRITE if is_write else READ
        self._open[self._calls] = (kind, due_us, self._meter.now_us)
        out.append(Ask(self._calls, SERVER, body, CLIENT_TIMEOUT_MS))

    def _wake_ms(self, now: Instant) -> int:
        soonest_ms = now.monotonic_ms + max(1, int((self._next_us - self._meter.now_us) / 1_000))
        if self._away:
            soonest_ms = min(soonest_ms, max(now.monotonic_ms + 1, self._away[0]))
        return soonest_ms


class Holder:
    """A component that renews its lease, whatever happens."""

    def __init__(self, seat: Seat, meter: Meter) -> None:
        self._rng, self._name, self._meter = seat.rng, seat.name, meter
        self._calls = 0
        self._open: dict[int, int] = {}

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        match stimulus:
            case Started():
                return [Wake(_RENEW, now.monotonic_ms + int(self._rng.random() * RENEW_MS))]
            case Answered(call=call, body=body):
                sent_us = self._open.pop(call)
                outcome = SERVED
                if isinstance(body, HoldfastError):
                    outcome = REFUSED if isinstance(body, Overloaded) else FAILED
                self._meter.done(LEASE, sent_us, sent_us, outcome)
            case Woken():
                self._calls += 1
                self._open[self._calls] = self._meter.now_us
                ask = Ask(self._calls, SERVER, RenewLease(Term(self._name, 1)), CLIENT_TIMEOUT_MS)
                return [ask, Wake(_RENEW, now.monotonic_ms + RENEW_MS)]
        return []


class Plane:
    """Builds it, and plans what happens to it."""

    def __init__(self, world: World, service_us: int, store_us: int) -> None:
        """`service_us` is what a request takes of the processor, `store_us` a transaction of the
        store, however fast the processor is."""
        self.world, self.service_us, self.store_us = world, service_us, store_us
        self.meter = Meter(world)
        world.add_store()
        world.stores["store"].service_us = store_us

        def server(seat: Seat) -> GuardedServer:
            return GuardedServer(Service(), FlowControllers(seat.rng))

        cell = world.add(SERVER, server, store="store", identity="system:server:s")
        cell.burden = burden(lambda: cell.machine, service_us)
        stalled_ms = (BACK_S - STALL_S) * 1_000
        world.faults.schedule(Fault(STALL_S * 1_000, "store_stall", "store", for_ms=stalled_ms))
        for tenant in TENANTS:
            identity = Identity(name=f"program-of-{tenant}", tenants=(tenant,))

            def make(seat: Seat, tenant: str = tenant) -> Tenant:
                return Tenant(seat, tenant, self.meter)

            world.add(identity.name, make, identity=identity)
        for number in range(HOLDERS):
            name = f"scheduler-{number}"
            holder = f"system:scheduler:s{number}"
            world.add(name, lambda seat: Holder(seat, self.meter), identity=holder)
