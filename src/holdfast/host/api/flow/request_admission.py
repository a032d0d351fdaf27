"""Admits requests to the API: runs the flow control of `commit/` on the event loop.

`app` hands every request over once its caller and route are known, before its body is read or its
rights are checked. `commit/flow/flow_control` decides which request starts; this module decides
when to ask it.

Most reads are answered without waiting for anything. If seats were returned at once, everything
that arrives in one turn of the event loop would be served before flow control could choose an
order. So seats are returned in a later turn of the loop, and in one turn no class starts more
requests than it has seats. New requests are read between two turns, and lease renewals among them
go first. While no request waits, returned seats are collected and handed back several at a time:
one by one would cost more than flow control itself.
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
from holdfast.commit.flow.overload import RejectionReason, overload_error
from holdfast.commit.flow.request_classes import Flow, RequestClass, RequestPurpose, classify
from holdfast.commit.flow.seats import LEFT_MAX, FlowControllers
from holdfast.host.api.call import Call, Handler, Route
from holdfast.host.api.flow.connections import Connection
from holdfast.host.api.flow.load_shedder import LoadShedder
from holdfast.host.api.flow.tenant_rates import TenantRates
from holdfast.host.api.objects.reads import LIMIT_MAX, LOOKED_AT_MAX
from holdfast.host.api.objects.scope import selection
from holdfast.host.api.routes import table
from holdfast.host.client.transport import ATTEMPT_HEADER
from holdfast.host.process.metrics import Histogram
from holdfast.model.errors import HoldfastError
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watch_hub import WatchHub

# What a request does, as far as its order depends on it: by its route, and a list by its size.

# A list of more objects than this that asks for no pages can wait.
SWEEP_OVER = 1_000
# A read costs one more for this many objects each.
_OBJECTS_PER_COST = 100
# An object that must be decoded to know whether it is selected costs as much as this many others.
DECODED_COST = 5
_COST_MAX = 100
_READ_VERBS = ("get", "list", "watch", "discover", "review", "attend")


def errand_of(route: Route) -> RequestPurpose:
    """What a route does. Whether a list is a sweep depends on its query; see `extent`."""
    if route.purpose is not None:
        return route.purpose
    return RequestPurpose.READ if route.verb in _READ_VERBS else RequestPurpose.WRITE


def extent(hub: WatchHub, call: Call) -> tuple[RequestPurpose, int]:
    """Whether a list, or a watch that begins with one, is a sweep, and what it costs.

    The objects examined count, not those found: a selector that finds nothing may examine all.
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
    """What a request selects, unless that is everything. The handler refuses an invalid selector,
    and examines no objects for it.
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
# Verbs that add bytes to the store. A tenant that has written too much may still delete.
_WRITING_VERBS = ("create", "update", "patch", "request")
# Status codes from here on mean that nothing was written.
_REFUSED = 300
_PEOPLE = (RequestClass.TENANT, RequestClass.BACKGROUND)


class RequestAdmission:
    """See the module's docstring. One for each server."""

    def __init__(self, hub: WatchHub, controllers: FlowControllers | None = None) -> None:
        self._hub, self._rng = hub, random.Random()
        self.controllers = controllers if controllers is not None else FlowControllers(self._rng)
        self.watches, self.connections = Caps(), Caps()
        self.bytes_held = BytesHeld()
        self._load_shedder = LoadShedder(self.controllers)
        self.rates = TenantRates(hub)
        # By the row of the table, which lives as long as the process.
        self._errands = {id(route): errand_of(route) for route in table()}
        # Requests that are done and still have a seat, and since when.
        self._left: list[tuple[FlowController, QueuedRequest, int]] = []
        # When the next turn of the event loop was scheduled; None if it is not.
        self._turning_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        # How long requests waited, of those that did; None if it is not measured.
        self.waits: Histogram | None = None

    # Requests ------------------------------------------------------------------------------------

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer a request once it has a seat. Raises Overloaded."""
        if not call.request.content.is_eof():
            return await self._serve_large(call)
        controller, entry = self._arrive(call)
        if entry.state is not RequestState.BEGUN:
            await self._wait(call, controller, entry)
        call.seat, call.admission = entry, self
        try:
            response = await call.route.handler(call)
            if call.route.verb in _WRITING_VERBS and response.status < _REFUSED:
                self._charge_written(call, entry.flow)
            return response
        finally:
            if call.seat is not None:
                self._leave(controller, call.seat)

    def _charge_written(self, call: Call, flow: Flow) -> None:
        """Charge a write with what it sends, or with the whole object if that is larger."""
        if flow.request_class not in _PEOPLE:
            return
        size, kind = call.request.content_length or 0, call.route.kind
        if kind is not None and call.name:
            there = self._hub.get(kind, call.namespace, call.name)
            size = max(size, len(there.data) if there is not None else 0)
        self.rates.charge_written(flow.tenant, size, self.now_ms())

    async def _serve_large(self, call: Call) -> web.StreamResponse:
        """Receive the rest of the body, if there is room for it, and then serve the request."""
        flow = classify(call.identity, RequestPurpose.READ)
        length = call.request.content_length
        # `Call.body` refuses what is too large.
        most = call.request.client_max_size
        size = min(length, most) if length is not None else most
        if not self.bytes_held.take(flow, size):
            raise overload_error(flow, RejectionReason.TOO_MANY_BYTES, self._later_s())
        try:
            await call.take_in()
            return await self.serve(call)
        finally:
            self.bytes_held.give_back(flow, size)

    async def stay(self, call: Call, serve: Handler) -> web.StreamResponse:
        """Serve a long stream: it needs a seat to start, and counts among the open watches."""
        flow = classify(call.identity, RequestPurpose.READ)
        is_watch = call.route.verb == "watch"
        if is_watch and not self.watches.take(flow):
            raise overload_error(flow, RejectionReason.TOO_MANY_WATCHES, self._later_s())
        try:
            controller, entry = self._arrive(call, is_patient=True)
            if entry.state is not RequestState.BEGUN:
                await self._wait(call, controller, entry)
            self._leave(controller, entry)
            return await serve(call)
        finally:
            if is_watch:
                self.watches.give_back(flow)

    async def more(self, call: Call, cost: int) -> None:
        """Queue a request again, at this cost: its body has turned out to hold many requests.

        Components send what has to be done: they are charged and do not wait. Raises Overloaded.
        """
        entry = call.seat
        if entry is None:
            return
        flow, controller = entry.flow, self.controllers.of(errand_of(call.route))
        if flow.request_class not in _PEOPLE:
            controller.charge(flow, cost)
            return
        now_ms = self.now_ms()
        self.rates.charge(flow.tenant, cost, now_ms)
        call.seat = None
        self._leave(controller, entry)
        again = controller.enter(flow, now_ms, cost=cost)
        if again.state is not RequestState.BEGUN:
            await self._wait(call, controller, again)
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
                connection.release_ticket()
            if connection.when_lost is None:
                self._count_connection(connection, call)
        if flow.request_class in _PEOPLE:
            self._demand_rate(flow, now_ms)
            if errand is RequestPurpose.WRITE and route.verb in _WRITING_VERBS:
                self._demand_write_rate(flow, now_ms)
        controller = self.controllers.of(errand)
        if ATTEMPT_HEADER in call.request.headers:
            controller.count_retry(flow)
        return controller, controller.enter(flow, now_ms, cost=cost, is_patient=is_patient)

    def _count_connection(self, connection: Connection, call: Call) -> None:
        """Count a connection for the sender of its first request. Raises Overloaded."""
        flow = classify(call.identity, RequestPurpose.READ)
        if not self.connections.take(flow):
            raise overload_error(flow, RejectionReason.TOO_MANY_CONNECTIONS, self._later_s())
        connection.when_lost = partial(self.connections.give_back, flow)

    async def _wait(self, call: Call, controller: FlowController, entry: QueuedRequest) -> None:
        """Wait for a seat. Raises Overloaded if the request is refused instead."""
        if entry.state is RequestState.WAITING:
            turn = entry.about = asyncio.get_running_loop().create_future()
            self._watch_time(entry.since_ms)
            if self._left:
                self._soon()
            try:
                await turn
            except asyncio.CancelledError:
                # The client has left. The request may have got its seat at the same moment.
                if not controller.withdraw(entry) and entry.error is None:
                    self._leave(controller, entry)
                raise
        if entry.error is not None:
            self._shed_from_now_on(call, entry.flow)
            raise entry.error
        if self.waits is not None:
            waited_ms = self.now_ms() - entry.since_ms
            self.waits.observe(waited_ms / _MS, entry.flow.request_class.label)

    def _shed_from_now_on(self, call: Call, flow: Flow) -> None:
        """Let the load shedder answer this connection's next requests while the queue is full."""
        connection = call.request.protocol
        if flow.request_class not in _PEOPLE or not isinstance(connection, Connection):
            return
        # A later request may carry another user's token; a certificate holds for the connection.
        transport = call.request.transport
        if transport is not None and transport.get_extra_info("peercert"):
            of_all = classify(call.identity, RequestPurpose.READ)
            connection.load_shedder = (self._load_shedder, of_all)

    def _leave(self, controller: FlowController, entry: QueuedRequest) -> None:
        self._left.append((controller, entry, self.now_ms()))
        if controller.waiting or len(self._left) >= LEFT_MAX:
            self._soon()

    def _soon(self) -> None:
        if self._turning_ms is None:
            self._turning_ms = self.now_ms()
            asyncio.get_running_loop().call_soon(self._turned)

    def _turned(self) -> None:
        """The event loop has made one turn. Its duration is how long lease renewals wait."""
        if self._turning_ms is not None:
            self.controllers.observe_turn(self.now_ms() - self._turning_ms)
            self._turning_ms = None
        self._turn()

    def _turn(self) -> None:
        """Return free seats, and give them to waiting requests."""
        self.settle()
        for controller in self.controllers.all:
            if controller.waiting:
                self._decide(controller, self.now_ms())

    def settle(self) -> None:
        """Return the collected seats; the next turn decides which requests get them."""
        left, self._left = self._left, []
        for controller, entry, at_ms in left:
            controller.leave(entry, at_ms)

    def _decide(self, controller: FlowController, now_ms: int) -> None:
        for entry in controller.turn(now_ms):
            if not entry.about.done():
                entry.about.set_result(None)
        if controller.waiting:
            self._watch_time(now_ms)

    def _watch_time(self, now_ms: int) -> None:
        """Set a timer for the next wait that ends, in case no request finishes before."""
        if self._timer is None:
            firsts = [controller.next_ms for controller in self.controllers.all]
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
            raise overload_error(
                flow, RejectionReason.RATE_EXCEEDED, self._later_s() + wait_ms // _MS
            )

    def _demand_write_rate(self, flow: Flow, now_ms: int) -> None:
        wait_ms = self.rates.write_wait_ms(flow.tenant, now_ms)
        if wait_ms:
            raise overload_error(
                flow, RejectionReason.WRITES_TOO_MUCH, self._later_s() + wait_ms // _MS
            )

    def _later_s(self) -> int:
        return 1 + int(self._rng.random() * RETRY_SPREAD_S)
