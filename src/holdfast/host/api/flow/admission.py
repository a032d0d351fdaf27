"""Lets requests in by their turns: performs the gates of `commit/` on the event loop.

`app` hands every request here once it is known who asks for what, before its body is read or its
rights are looked at. What the gates decide is in `commit/flow/flow_control`; here is only when.

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

from aiohttp import web

from holdfast.commit.flow.caps import BytesHeld, Caps
from holdfast.commit.flow.flow_control import (
    RETRY_SPREAD_S,
    FlowController,
    QueuedRequest,
    RequestState,
)
from holdfast.commit.flow.overload import RejectionReason, overloaded
from holdfast.commit.flow.request_classes import Flow, RequestClass, RequestPurpose, classify
from holdfast.commit.flow.seats import LEFT_MAX, FlowControllers
from holdfast.host.api.call import Call, Route
from holdfast.host.api.flow.connections import Connection
from holdfast.host.api.flow.load_shedder import LoadShedder
from holdfast.host.api.flow.tenant_rates import TenantRates
from holdfast.host.api.objects.reads import LIMIT_MAX, LOOKED_AT_MAX
from holdfast.host.api.objects.scope import selection
from holdfast.host.api.routes import GROUP_PATH, table
from holdfast.host.client.transport import ATTEMPT_HEADER
from holdfast.host.process.metrics import Histogram
from holdfast.model.errors import HoldfastError
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watch_hub import WatchHub

# What a request does, as far as its turn depends on it: by its route, and a list by its size.

# A list of more objects than this that asks for no pages can wait.
SWEEP_OVER = 1_000
# A read costs as much more as it has hundreds of objects.
_OBJECTS_PER_COST = 100
# An object that has to be decoded to know whether it is selected costs as much as so many others.
DECODED_COST = 5
_COST_MAX = 100
_READ_VERBS = ("get", "list", "watch", "discover", "review", "attend")
_LIFELINE_PATHS = (f"{GROUP_PATH}/heartbeats", f"{GROUP_PATH}/terms")


def errand_of(route: Route) -> RequestPurpose:
    """What a route does. A list turns out to be a sweep only when it is known what it asks for."""
    if route.verb == "renew" or route.path in _LIFELINE_PATHS:
        return RequestPurpose.LIFELINE
    if route.subresource in ("log", "exec") or route.verb in _READ_VERBS:
        return RequestPurpose.READ
    return RequestPurpose.WRITE


def extent(hub: WatchHub, call: Call) -> tuple[RequestPurpose, int]:
    """How much a list, or a watch that begins with one, may have to read, and what that costs.

    What is looked at counts, not what is found: a selector that finds nothing may look at all.
    """
    kind, query = call.route.kind, call.query
    if kind is None or (call.route.verb == "watch" and not _begins_with_list(query)):
        return RequestPurpose.READ, 1
    limit, chosen = call.number("limit") or 0, _chosen(call)
    count, decodes = hub.count(kind, call.namespace), False
    if chosen is not None:
        count, decodes = hub.candidates(chosen).count, chosen.decodes
    if limit:
        count = min(count, LOOKED_AT_MAX if chosen is not None else min(limit, LIMIT_MAX))
    cost = 1 + min(_COST_MAX, count * (DECODED_COST if decodes else 1) // _OBJECTS_PER_COST)
    is_sweep = count > SWEEP_OVER and (decodes or not limit)
    return (RequestPurpose.SWEEP if is_sweep else RequestPurpose.READ), cost


def _chosen(call: Call) -> ObjectSelection | None:
    """What a request selects, where that is not everything. What cannot be read is refused by the
    handler, which looks at nothing for it.
    """
    if "fieldSelector" not in call.query and "labelSelector" not in call.query:
        return None
    try:
        return selection(call, named=bool(call.name))
    except HoldfastError:
        return None


def _begins_with_list(query: dict[str, str]) -> bool:
    said = query.get("sendInitialEvents")
    return said in ("true", "1") if said else query.get("resourceVersion", "0") == "0"


_MS = 1_000
_EXTENSIVE_VERBS = ("list", "watch")
# What adds bytes to the store. Who has written too much may still delete.
_WRITING_VERBS = ("create", "update", "patch", "request")
# Codes from here on say that nothing was written.
_REFUSED = 300
_PEOPLE = (RequestClass.TENANT, RequestClass.BACKGROUND)


class RequestAdmission:
    """See the module's docstring. One for each server."""

    def __init__(self, hub: WatchHub, gates: FlowControllers | None = None) -> None:
        self._hub, self._rng = hub, random.Random()
        self.gates = gates if gates is not None else FlowControllers(self._rng)
        self.watches, self.connections = Caps(), Caps()
        self.bytes_held = BytesHeld()
        self._load_shedder = LoadShedder(self.gates)
        self.rates = TenantRates(hub)
        # By the row of the table, which lives as long as the process.
        self._errands = {id(route): errand_of(route) for route in table()}
        # Who is done and has a seat still, and since when.
        self._left: list[tuple[FlowController, QueuedRequest, int]] = []
        # Since when the next turn of the event loop is awaited.
        self._turning_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        # How long those waited that did, if anybody counts.
        self.waits: Histogram | None = None

    # Requests ------------------------------------------------------------------------------------

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer a request when its turn has come. Raises Overloaded."""
        if not call.request.content.is_eof():
            return await self._serve_large(call)
        gate, entry = self._arrive(call)
        if entry.state is not RequestState.BEGUN:
            await self._wait(call, gate, entry)
        call.seat, call.admission = entry, self
        try:
            response = await call.route.handler(call)
            if call.route.verb in _WRITING_VERBS and response.status < _REFUSED:
                self._charge_written(call, entry.flow)
            return response
        finally:
            if call.seat is not None:
                self._leave(gate, call.seat)

    def _charge_written(self, call: Call, flow: Flow) -> None:
        """A write costs what it sends, or the whole object if that is more."""
        if flow.request_class not in _PEOPLE:
            return
        size, kind = call.request.content_length or 0, call.route.kind
        if kind is not None and call.name:
            there = self._hub.get(kind, call.namespace, call.name)
            size = max(size, len(there.data) if there is not None else 0)
        self.rates.charge_written(flow.tenant, size, self.now_ms())

    async def _serve_large(self, call: Call) -> web.StreamResponse:
        """Read what is still on its way, if there is room for it, and then the same."""
        flow = classify(call.identity, RequestPurpose.READ)
        length = call.request.content_length
        # Too large is refused by whoever reads it.
        most = call.request.client_max_size
        size = min(length, most) if length is not None else most
        if not self.bytes_held.take(flow, size):
            raise overloaded(flow, RejectionReason.TOO_MANY_BYTES, self._later_s())
        try:
            await call.take_in()
            return await self.serve(call)
        finally:
            self.bytes_held.give_back(flow, size)

    async def stay(self, call: Call) -> web.StreamResponse:
        """The same for what lasts: it takes a seat to begin, and a place among what is open."""
        flow = classify(call.identity, RequestPurpose.READ)
        is_watch = call.route.verb == "watch"
        if is_watch and not self.watches.take(flow):
            raise overloaded(flow, RejectionReason.TOO_MANY_WATCHES, self._later_s())
        try:
            gate, entry = self._arrive(call, is_patient=True)
            if entry.state is not RequestState.BEGUN:
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
        self.rates.charge(flow.tenant, cost, now_ms)
        call.seat = None
        self._leave(gate, entry)
        again = gate.enter(flow, now_ms, cost=cost)
        if again.state is not RequestState.BEGUN:
            await self._wait(call, gate, again)
        call.seat = again

    def _arrive(
        self, call: Call, *, is_patient: bool = False
    ) -> tuple[FlowController, QueuedRequest]:
        route = call.route
        errand, cost = self._errands.get(id(route)) or errand_of(route), 1
        if route.verb in _EXTENSIVE_VERBS and errand is RequestPurpose.READ:
            errand, cost = extent(self._hub, call)
        flow = classify(call.identity, errand)
        now_ms = self.now_ms()
        connection = call.request.protocol
        if isinstance(connection, Connection):
            if connection.ticket is not None:
                connection.use_pass()
            if connection.when_lost is None:
                self._count_connection(connection, call)
        if flow.request_class in _PEOPLE:
            self._demand_rate(flow, now_ms)
            if errand is RequestPurpose.WRITE and route.verb in _WRITING_VERBS:
                self._demand_write_rate(flow, now_ms)
        gate = self.gates.of(errand)
        if ATTEMPT_HEADER in call.request.headers:
            gate.count_retry(flow)
        return gate, gate.enter(flow, now_ms, cost=cost, is_patient=is_patient)

    def _count_connection(self, connection: Connection, call: Call) -> None:
        """The first request of a connection says whose it is. Raises Overloaded."""
        flow = classify(call.identity, RequestPurpose.READ)
        if not self.connections.take(flow):
            raise overloaded(flow, RejectionReason.TOO_MANY_CONNECTIONS, self._later_s())
        connection.when_lost = partial(self.connections.give_back, flow)

    async def _wait(self, call: Call, gate: FlowController, entry: QueuedRequest) -> None:
        """Until its turn has come. Raises Overloaded when it does not."""
        if entry.state is RequestState.WAITING:
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
            self._shed_from_now_on(call, entry.flow)
            raise entry.error
        if self.waits is not None:
            waited_ms = self.now_ms() - entry.since_ms
            self.waits.observe(waited_ms / _MS, entry.flow.request_class.label)

    def _shed_from_now_on(self, call: Call, flow: Flow) -> None:
        """Whoever was refused may be turned away at the door when he comes again too soon."""
        connection = call.request.protocol
        if flow.request_class not in _PEOPLE or not isinstance(connection, Connection):
            return
        # Another token may say that somebody else is asking; a certificate says it for good.
        transport = call.request.transport
        if transport is not None and transport.get_extra_info("peercert"):
            of_all = classify(call.identity, RequestPurpose.READ)
            connection.load_shedder = (self._load_shedder, of_all)

    def _leave(self, gate: FlowController, entry: QueuedRequest) -> None:
        self._left.append((gate, entry, self.now_ms()))
        if gate.waiting or len(self._left) >= LEFT_MAX:
            self._soon()

    def _soon(self) -> None:
        if self._turning_ms is None:
            self._turning_ms = self.now_ms()
            asyncio.get_running_loop().call_soon(self._turned)

    def _turned(self) -> None:
        """The event loop has gone round once. How long that took is how long leases wait."""
        if self._turning_ms is not None:
            self.gates.turned(self.now_ms() - self._turning_ms)
            self._turning_ms = None
        self._turn()

    def _turn(self) -> None:
        """Give the seats back that became free, and then away."""
        self.settle()
        for gate in self.gates.all:
            if gate.waiting:
                self._decide(gate, self.now_ms())

    def settle(self) -> None:
        """Give back what lies about; who takes the seats is decided with the next turn."""
        left, self._left = self._left, []
        for gate, entry, at_ms in left:
            gate.leave(entry, at_ms)

    def _decide(self, gate: FlowController, now_ms: int) -> None:
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
        self._turn()

    @staticmethod
    def now_ms() -> int:
        return int(time.monotonic() * _MS)

    def _demand_rate(self, flow: Flow, now_ms: int) -> None:
        wait_ms = self.rates.take(flow.tenant, now_ms)
        if wait_ms:
            raise overloaded(flow, RejectionReason.RATE_EXCEEDED, self._later_s() + wait_ms // _MS)

    def _demand_write_rate(self, flow: Flow, now_ms: int) -> None:
        wait_ms = self.rates.write_wait_ms(flow.tenant, now_ms)
        if wait_ms:
            raise overloaded(
                flow, RejectionReason.WRITES_TOO_MUCH, self._later_s() + wait_ms // _MS
            )

    def _later_s(self) -> int:
        return 1 + int(self._rng.random() * RETRY_SPREAD_S)
