"""The plane of the overload scenarios: one server, its store, clients of ten tenants, and leases.

Flow controllers, request classes and limits are those that ship (`commit/flow/guarded_server`). The
server behind them is reduced to what matters here: it answers reads from memory and commits writes
in groups, one at a time, as the authority does. All of it takes processor time in proportion to
`service_us`. `overload_speeds` checks the results.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.commit.flow.guarded_server import GuardedServer
from holdfast.commit.flow.overload import Overloaded
from holdfast.commit.flow.seats import FlowControllers
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError
from holdfast.model.machine import Answer, Answered, Ask, Asked, Started, Txn, Wake, Woken
from holdfast.model.plane import Plane
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.requests import Patch, PatchType, RenewLease, Term
from holdfast.model.time import Instant
from holdfast.model.transaction import Transaction
from holdfast.sim.cell import Seat
from holdfast.sim.check import Checker
from holdfast.sim.plan import Fault
from holdfast.sim.planes.components import servers, store
from holdfast.sim.planes.simulated_plane import SimulatedPlane, build_plane
from holdfast.sim.world import World

SERVER = "server"
TENANTS = tuple(f"tenant-{n}" for n in range(10))
# The clients of each tenant, with a connection each; and how many of them keep a server busy.
CLIENTS, PEAK_CLIENTS = 30, 6
# How often one more client reads where the store stalls. All connections of the others may wait for
# the store, and then none of them sends a read.
PROBE_MS = 500
# The number of schedulers and controllers, and how often each renews its lease.
HOLDERS, RENEW_MS = 20, 500
WRITES_SHARE = 0.45
CLIENT_TIMEOUT_MS = 10_000
GROUP_MAX = 256
# The phases of a run, by the second in which each begins: the peak is measured with all connections
# busy, normal load, overload, normal load, the store stalls, and the store is back. All connections
# are busy before the peak as well, for `warm_s` more than a second: negative times belong to it.
PEAK_S, CALM_S, STORM_S, AFTER_S, STALL_S, BACK_S, END_S = 1, 4, 10, 20, 26, 56, 82
CALM_LOAD, STORM_LOAD = 0.6, 5.0
_CLIENT, _PERIOD = "client", "renew"
WRITE, READ, LEASE, PROBE = "write", "read", "lease", "probe"
SERVED, REFUSED, FAILED = "served", "refused", "failed"

# The processor time of a request, in service times: to read it, to refuse it, to answer it, and to
# decide it if it writes.
TAKEN_IN, TURNED_AWAY, ANSWERED, DECIDED = 0.25, 0.1, 0.55, 0.4


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One request: when it was due, sent and done, in microseconds, and its outcome.

    `tenant` is empty for leases and probes.
    """

    tenant: str
    kind: str
    due_us: int
    sent_us: int
    done_us: int
    outcome: str


class LoadMeter(Checker):
    """All requests of a run, and the peak once it is known."""

    def __init__(self, world: World, warm_s: int, peak: float | None) -> None:
        """Without a given peak, it is measured."""
        self._world, self._warm_us = world, warm_s * 1_000_000
        self.samples: list[Sample] = []
        # The number of requests of a tenant that fell due in a second, sent or not.
        self.due: Counter[tuple[str, int]] = Counter()
        self._peak = peak

    @property
    def now_us(self) -> int:
        """The time since the phases began; negative while the server warms up."""
        return self._world.now_us - self._warm_us

    def add(self, tenant: str, kind: str, due_us: int, sent_us: int, outcome: str) -> None:
        self.samples.append(Sample(tenant, kind, due_us, sent_us, self.now_us, outcome))

    @property
    def peak(self) -> float:
        """Requests of tenants served per second while enough connections are always busy."""
        if self._peak is None:
            self._peak = self.served_per_s(PEAK_S, CALM_S)
        return self._peak

    @property
    def service_ms(self) -> float:
        """The time that the server spends on one request at the peak."""
        return 1_000 / self.peak

    def served_per_s(self, begin_s: float, end_s: float, tenants: Sequence[str] = TENANTS) -> float:
        count = sum(
            it.tenant in tenants and it.outcome == SERVED and begin_s <= it.done_us / 1e6 < end_s
            for it in self.samples
        )
        return count / (end_s - begin_s)

    def due_per_s(self, begin_s: int, end_s: int, tenants: Sequence[str]) -> float:
        count = sum(self.due[it, second] for it in tenants for second in range(begin_s, end_s))
        return count / (end_s - begin_s)

    def of(self, kinds: Sequence[str], begin_s: float, end_s: float) -> list[Sample]:
        """The requests that were due in this time."""
        return [
            it for it in self.samples if it.kind in kinds and begin_s <= it.due_us / 1e6 < end_s
        ]


class TenantDemand(msgspec.Struct, frozen=True):
    """The requests that a tenant wants, as multiples of its share of the peak."""

    storm: float = STORM_LOAD
    calm: float = CALM_LOAD
    # The end of the overload.
    until_s: float = AFTER_S

    def rate(self, second: float, peak: float) -> float:
        """Requests per second."""
        load = self.storm if STORM_S <= second < self.until_s else self.calm
        return load * peak / len(TENANTS)


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
                return [Answer(call, GetResult(None, 0))]
            case Asked():
                self._line.append(stimulus)
            case Answered(body=body):
                out += [Answer(it.call, body) for it in self._group]
                self._group = []
        if self._line and not self._group:
            self._group, self._line = self._line[:GROUP_MAX], self._line[GROUP_MAX:]
            self._calls += 1
            out.append(Txn(self._calls, Transaction((), ())))
        return out

    @property
    def deciding(self) -> int:
        """The number of requests in the transaction that was just sent."""
        return len(self._group)


def burden(guarded: Callable[[], Any], service_us: int) -> Callable[[Any, Sequence[Any]], int]:
    """A function for the processor time that a server spends on a stimulus."""

    def spent(stimulus: Any, effects: Sequence[Any]) -> int:
        share = TAKEN_IN if type(stimulus) is Asked else 0.0
        for effect in effects:
            if type(effect) is Answer:
                share += TURNED_AWAY if isinstance(effect.body, Overloaded) else ANSWERED
            elif type(effect) is Txn:
                share += DECIDED * guarded().machine.deciding
        return int(share * service_us)

    return spent


class TenantClients:
    """The clients of one tenant. Each has one connection and honours Retry-After.

    Requests fall due by the clock. A request that is due while all clients are busy waits for one.
    If a client stays away because of Retry-After, it is not sent at all.
    """

    def __init__(
        self, seat: Seat, name: str, meter: LoadMeter, demand: TenantDemand, peak_clients: int
    ) -> None:
        self._rng, self._name, self._meter, self._demand = seat.rng, name, meter, demand
        self._peak_clients = peak_clients
        self._idle = CLIENTS
        # When clients that stay away return, and the due times of requests that wait for a client.
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
        self._meter.add(self._name, kind, due_us, sent_us, outcome)

    def _send(self, now: Instant, out: list[Any]) -> None:
        now_us = self._meter.now_us
        if now_us < CALM_S * 1_000_000:
            while CLIENTS - self._idle < self._peak_clients:
                self._ask(now_us, out)
            self._next_us = CALM_S * 1e6
            return
        while self._waiting and self._idle:
            self._ask(self._waiting.pop(0), out)
        rate = self._demand.rate(now_us / 1e6, self._meter.peak)
        while self._next_us <= now_us:
            due_us = int(self._next_us)
            self._meter.due[self._name, due_us // 1_000_000] += 1
            self._next_us += -math.log(1.0 - self._rng.random()) * 1e6 / rate
            if self._idle:
                self._ask(due_us, out)
            elif not self._away:
                self._waiting.append(due_us)

    def _ask(self, due_us: int, out: list[Any]) -> None:
        self._calls += 1
        self._idle -= 1
        kind = WRITE if self._rng.random() < WRITES_SHARE else READ
        body: Any = Get("workloads", "w", self._name)
        if kind == WRITE:
            operation = f"{self._name}/{self._calls}"
            body = Patch("workloads", self._name, "w", PatchType.MERGE, {}, operation=operation)
        self._open[self._calls] = (kind, due_us, self._meter.now_us)
        out.append(Ask(self._calls, SERVER, body, CLIENT_TIMEOUT_MS))

    def _wake_ms(self, now: Instant) -> int:
        soonest_ms = now.monotonic_ms + max(1, int((self._next_us - self._meter.now_us) / 1_000))
        if self._away:
            soonest_ms = min(soonest_ms, max(now.monotonic_ms + 1, self._away[0]))
        return soonest_ms


class PeriodicClient:
    """A client that sends the same request at a fixed interval, whatever the answers."""

    def __init__(self, seat: Seat, meter: LoadMeter, kind: str, body: Any, every_ms: int) -> None:
        self._rng, self._meter = seat.rng, meter
        self._kind, self._body, self._every_ms = kind, body, every_ms
        self._calls = 0
        self._open: dict[int, int] = {}

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        match stimulus:
            case Started():
                return [Wake(_PERIOD, now.monotonic_ms + int(self._rng.random() * self._every_ms))]
            case Answered(call=call, body=body):
                sent_us = self._open.pop(call)
                outcome = SERVED
                if isinstance(body, HoldfastError):
                    outcome = REFUSED if isinstance(body, Overloaded) else FAILED
                self._meter.add("", self._kind, sent_us, sent_us, outcome)
            case Woken():
                self._calls += 1
                self._open[self._calls] = self._meter.now_us
                ask = Ask(self._calls, SERVER, self._body, CLIENT_TIMEOUT_MS)
                return [ask, Wake(_PERIOD, now.monotonic_ms + self._every_ms)]
        return []


class OverloadPlane:
    """Builds the plane and schedules the stall of its store."""

    def __init__(
        self,
        world: World,
        service_us: int,
        store_us: int,
        *,
        warm_s: int = 0,
        peak_clients: int = PEAK_CLIENTS,
        is_peak_measured: bool = True,
        demand_of: Callable[[str], TenantDemand] = lambda _: TenantDemand(),
    ) -> None:
        """`service_us` is the processor time of a request and `store_us` the store's time for a
        transaction, which does not depend on the processor.
        """
        self.service_us, self.store_us = service_us, store_us
        self.parts = SimulatedPlane(world, Plane(servers=(SERVER,)))
        self.meter = LoadMeter(world, warm_s, None if is_peak_measured else self.capacity)
        self._warm_s = warm_s

        def server(seat: Seat, _settings: PlaneSettings) -> GuardedServer:
            return GuardedServer(Service(), FlowControllers(seat.rng))

        build_plane(self.parts, (store(), servers(server)))
        world.stores["store"].service_us = store_us
        cell = world.cells[SERVER]
        cell.burden = burden(lambda: cell.machine, service_us)
        for tenant in TENANTS:
            identity = Identity(name=f"program-of-{tenant}", tenants=(tenant,))

            def make(seat: Seat, tenant: str = tenant) -> TenantClients:
                return TenantClients(seat, tenant, self.meter, demand_of(tenant), peak_clients)

            self.parts.add(identity.name, make, identity)
        for number in range(HOLDERS):
            name = f"scheduler-{number}"
            self._add_periodic(
                name, f"system:scheduler:s{number}", LEASE, RenewLease(Term(name, 1)), RENEW_MS
            )

    def _add_periodic(
        self, name: str, identity: Identity | str, kind: str, body: Any, every_ms: int
    ) -> None:
        def make(seat: Seat) -> PeriodicClient:
            return PeriodicClient(seat, self.meter, kind, body, every_ms)

        self.parts.add(name, make, identity)

    @property
    def capacity(self) -> float:
        """The requests of tenants per second that the processor can serve beside all renewals."""
        write = TAKEN_IN + DECIDED + ANSWERED
        request = WRITES_SHARE * write + (1 - WRITES_SHARE) * (TAKEN_IN + ANSWERED)
        return (1e6 / self.service_us - HOLDERS * 1_000 / RENEW_MS * write) / request

    def schedule_stall(self) -> None:
        """Let the store stall in its phase, with a client that goes on reading."""
        # It shares the first tenant's turns: a tenant of its own would have the newcomers' seats.
        reader = Identity(name="reader", tenants=(TENANTS[0],))
        probe = Get("workloads", "w", TENANTS[0])
        self._add_periodic("reader", reader, PROBE, probe, PROBE_MS)
        at_ms, stalled_ms = (self._warm_s + STALL_S) * 1_000, (BACK_S - STALL_S) * 1_000
        self.parts.world.faults.schedule(Fault(at_ms, "store_stall", "store", for_ms=stalled_ms))
