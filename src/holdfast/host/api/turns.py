"""Lets requests in by their turns: performs the gates of `commit/` on the event loop.

`app` hands every request here once it is known who asks for what, before its body is read or its
rights are looked at. What the gates decide is in `commit/gate`; here is only when.

Most reads are answered without ever waiting for anything, so that a seat that came back at once
would never be missed: all that arrived in one turn of the event loop would be served before anybody
looked who is first. So seats come back with a later turn of the loop, and in one turn no class
begins more than its seats. Between two turns new requests are read, and leases among them are next.
While nobody waits, seats that came back lie about until there are several: giving each back by
itself would cost more than the gate.
"""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial

import msgspec
from aiohttp import web

from holdfast.commit.caps import Caps
from holdfast.commit.classes import Errand, Flow, RequestClass, classify
from holdfast.commit.gate import RETRY_SPREAD_S, Entry, Gate, State
from holdfast.commit.gates import Gates
from holdfast.commit.overload import Refused, overloaded
from holdfast.commit.rates import Rate, Rates
from holdfast.host.api.call import Call, Route
from holdfast.host.api.connections import Connection
from holdfast.host.api.doorkeeper import Doorkeeper
from holdfast.host.api.routes import GROUP_PATH, table
from holdfast.host.metrics import Histogram
from holdfast.model.kinds.quota import Quota
from holdfast.model.registry import kind_of_struct
from holdfast.model.validation.budgets import QUOTA_NAME
from holdfast.observe.entries import Entry as Seen
from holdfast.observe.hub import Hub

# A list of more objects than this that asks for no pages can wait.
SWEEP_OVER = 1_000
# A read costs as much more as it has hundreds of objects.
_OBJECTS_PER_COST = 100
_COST_MAX = 100
_MS = 1_000
# So many seats that came back may lie about.
_LEFT_MAX = 8
_QUOTA = kind_of_struct(Quota)
_QUOTAS_MAX = 10_000
_ANY_RATE = Rate()
_READ_VERBS = ("get", "list", "watch", "discover", "review", "attend")
_EXTENSIVE_VERBS = ("list", "watch")
_LIFELINE_PATHS = (f"{GROUP_PATH}/heartbeats", f"{GROUP_PATH}/terms")
_PEOPLE = (RequestClass.TENANT, RequestClass.BACKGROUND)


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    requests_per_second: int | None = None


class _Limited(msgspec.Struct, frozen=True, gc=False):
    """As much of a quota as is asked for here."""

    spec: _Spec = _Spec()


_LIMITED = msgspec.json.Decoder(_Limited)


def errand_of(route: Route) -> Errand:
    """What a route does. A list turns out to be a sweep only when it is known what it asks for."""
    if route.verb == "renew" or route.path in _LIFELINE_PATHS:
        return Errand.LIFELINE
    if route.subresource in ("log", "exec") or route.verb in _READ_VERBS:
        return Errand.READ
    return Errand.WRITE


class Turns:
    """See the module's docstring. One for each server."""

    def __init__(self, hub: Hub, gates: Gates | None = None) -> None:
        self._hub, self._rng = hub, random.Random()
        self.gates = gates if gates is not None else Gates(self._rng)
        self.watches, self.connections = Caps(), Caps()
        self._doorkeeper = Doorkeeper(self.gates)
        self._rates = Rates()
        # Requests refused for the rate of their tenant.
        self.too_often = 0
        # What each tenant's quota says, and the quota that said it.
        self._quotas: dict[str, tuple[Seen, Rate]] = {}
        # By the row of the table, which lives as long as the process.
        self._errands = {id(route): errand_of(route) for route in table()}
        self._left: list[tuple[Gate, Entry]] = []
        self._is_turning = False
        self._timer: asyncio.TimerHandle | None = None
        # How long those waited that did, if anybody counts.
        self.waits: Histogram | None = None

    # Requests ------------------------------------------------------------------------------------

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer a request when its turn has come. Raises Overloaded."""
        gate, entry = self._arrive(call)
        if entry.state is not State.BEGUN:
            await self._wait(call, gate, entry)
        call.seat, call.turns = entry, self
        try:
            return await call.route.handler(call)
        finally:
            if call.seat is not None:
                self._leave(gate, call.seat)

    async def stay(self, call: Call) -> web.StreamResponse:
        """The same for what lasts: it takes a seat to begin, and a place among what is open."""
        flow = classify(call.identity, Errand.READ)
        is_watch = call.route.verb == "watch"
        if is_watch and not self.watches.take(flow):
            raise overloaded(flow, Refused.TOO_MANY_WATCHES, self._later_s())
        try:
            gate, entry = self._arrive(call)
            if entry.state is not State.BEGUN:
                await self._wait(call, gate, entry)
            self._leave(gate, entry)
            return await call.route.handler(call)
        finally:
            if is_watch:
                self.watches.give_back(flow)

    async def more(self, call: Call, cost: int) -> None:
        """A request has turned out to be many: it takes its turn again, for so many of them.

        Components are trusted to bring what has to be done, and only pay for it. Raises Overloaded.
        """
        entry = call.seat
        if entry is None:
            return
        flow, gate = entry.flow, self.gates.of(errand_of(call.route))
        if flow.request_class not in _PEOPLE:
            gate.charge(flow, cost)
            return
        now_ms = self.now_ms()
        self._rates.charge(flow.tenant, self._rate_of(flow.tenant), cost, now_ms)
        call.seat = None
        self._leave(gate, entry)
        again = gate.enter(flow, now_ms, cost=cost)
        if again.state is not State.BEGUN:
            await self._wait(call, gate, again)
        call.seat = again

    def _arrive(self, call: Call) -> tuple[Gate, Entry]:
        route = call.route
        errand, cost = self._errands.get(id(route)) or errand_of(route), 1
        if route.verb in _EXTENSIVE_VERBS and errand is Errand.READ:
            errand, cost = self._extent(call)
        flow = classify(call.identity, errand)
        now_ms = self.now_ms()
        connection = call.request.protocol
        if isinstance(connection, Connection):
            connection.use_pass()
            if connection.when_lost is None:
                self._count_connection(connection, call)
        if flow.request_class in _PEOPLE:
            self._demand_rate(flow, now_ms)
        gate = self.gates.of(errand)
        return gate, gate.enter(flow, now_ms, cost=cost)

    def _count_connection(self, connection: Connection, call: Call) -> None:
        """The first request of a connection says whose it is. Raises Overloaded."""
        flow = classify(call.identity, Errand.READ)
        if not self.connections.take(flow):
            raise overloaded(flow, Refused.TOO_MANY_CONNECTIONS, self._later_s())
        connection.when_lost = partial(self.connections.give_back, flow)

    async def _wait(self, call: Call, gate: Gate, entry: Entry) -> None:
        """Until its turn has come. Raises Overloaded when it does not."""
        if entry.state is State.WAITING:
            turn = entry.about = asyncio.get_running_loop().create_future()
            self._watch_time(entry.since_ms)
            if self._left:
                self._soon()
            try:
                await turn
            except asyncio.CancelledError:
                # The client has gone. Its turn may have come in the same moment.
                if not gate.withdraw(entry) and entry.error is None:
                    self._leave(gate, entry)
                raise
        if entry.error is not None:
            self._watch_door(call, entry.flow)
            raise entry.error
        if self.waits is not None:
            waited_ms = self.now_ms() - entry.since_ms
            self.waits.observe(waited_ms / _MS, entry.flow.request_class.label)

    def _watch_door(self, call: Call, flow: Flow) -> None:
        """Whoever was refused may be turned away at the door when he comes again too soon."""
        connection = call.request.protocol
        if flow.request_class not in _PEOPLE or not isinstance(connection, Connection):
            return
        # Another token may say that somebody else is asking; a certificate says it for good.
        transport = call.request.transport
        if transport is not None and transport.get_extra_info("peercert"):
            of_all = classify(call.identity, Errand.READ)
            connection.doorkeeper = (self._doorkeeper, of_all)

    def _leave(self, gate: Gate, entry: Entry) -> None:
        self._left.append((gate, entry))
        if gate.waiting or len(self._left) >= _LEFT_MAX:
            self._soon()

    def _soon(self) -> None:
        if not self._is_turning:
            self._is_turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Give the seats back that became free, and then away."""
        self._is_turning = False
        self.settle()
        for gate in self.gates.all:
            if gate.waiting:
                self._decide(gate, self.now_ms())

    def settle(self) -> None:
        """Give back what lies about; who takes the seats is decided with the next turn."""
        now_ms = self.now_ms()
        left, self._left = self._left, []
        for gate, entry in left:
            gate.leave(entry, now_ms)

    def _decide(self, gate: Gate, now_ms: int) -> None:
        for entry in gate.turn(now_ms):
            if not entry.about.done():
                entry.about.set_result(None)
        if gate.waiting:
            self._watch_time(now_ms)

    def _watch_time(self, now_ms: int) -> None:
        """Look again when somebody has waited too long, though nobody leaves."""
        if self._timer is None:
            firsts = [gate.next_ms for gate in self.gates.all]
            at_ms = min((it for it in firsts if it is not None), default=now_ms)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(1, at_ms - now_ms) / _MS, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        for gate in self.gates.all:
            if gate.waiting:
                self._decide(gate, self.now_ms())

    @staticmethod
    def now_ms() -> int:
        return int(time.monotonic() * _MS)

    # What a request is ---------------------------------------------------------------------------

    def _extent(self, call: Call) -> tuple[Errand, int]:
        """How much a list, or a watch that begins with one, may have to read."""
        kind, query = call.route.kind, call.query
        if kind is None or "continue" in query or "fieldSelector" in query:
            return Errand.READ, 1
        if call.route.verb == "watch" and query.get("resourceVersion", "0") != "0":
            return Errand.READ, 1
        count = self._hub.count(kind, call.namespace)
        limit = call.number("limit") or 0
        cost = 1 + min(_COST_MAX, min(limit or count, count) // _OBJECTS_PER_COST)
        is_sweep = not limit and count > SWEEP_OVER
        return (Errand.SWEEP if is_sweep else Errand.READ), cost

    def _demand_rate(self, flow: Flow, now_ms: int) -> None:
        wait_ms = self._rates.take(flow.tenant, self._rate_of(flow.tenant), now_ms)
        if wait_ms:
            self.too_often += 1
            raise overloaded(flow, Refused.RATE_EXCEEDED, self._later_s() + wait_ms // _MS)

    def _rate_of(self, tenant: str) -> Rate:
        """What the tenant's quota says."""
        seen = self._hub.get(_QUOTA, tenant, QUOTA_NAME)
        if seen is None:
            return _ANY_RATE
        known = self._quotas.get(tenant)
        if known is None or known[0] is not seen:
            spec = _LIMITED.decode(seen.data).spec
            if len(self._quotas) >= _QUOTAS_MAX:
                self._quotas.clear()
            known = self._quotas[tenant] = (seen, Rate(spec.requests_per_second or 0))
        return known[1]

    def _later_s(self) -> int:
        return 1 + int(self._rng.random() * RETRY_SPREAD_S)
