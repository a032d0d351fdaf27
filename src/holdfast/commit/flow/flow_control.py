"""Flow control: which requests start at once, which wait, and which are refused in time.

A pure machine without effects: `host/api/flow/request_admission` runs two on each server, one for
writes and one for reads, and `commit/flow/guarded_server` puts them before a whole server in the
simulator. The owner reports arrivals (`enter`) and completions (`leave`), and polls the decisions
in between (`turn`). `docs/overload.md` explains the figures.

- Each request class has seats. Some are reserved for it at all times, so that no class starves;
  beyond them it takes free seats below its ceiling, and higher classes have higher ceilings. A seat
  that a waiting request may take is never left empty.
- Free seats go to the classes in their order, and inside a class to the least served
  (`commit/flow/fair_queues`), counted over both flow controllers of a server and over all that
  started: reads hardly ever wait for a seat, and use the same processor.
- The number of seats follows measurements (`commit/flow/concurrency_limit`), except those of
  lifelines: the table gives each class its initial seats, and their proportion from then on.
- Waiting is bounded in number and in time. While no request of a class was refused lately its
  patience is longer, so that a short pause of the server refuses none. Once one was, later requests
  most likely wait in vain, and learn so soon. That time follows measurements too: no request is
  refused before a seat can have become free. A request that waited too long is refused, and one
  whose caller has given up (`withdraw`) is not started. A refusal says when to retry, with jitter,
  and later when nothing moves or much is refused. The head of the queue starts even past its
  deadline: then the owner polled late, because one turn of an overloaded server may take longer
  than any patience.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from holdfast.commit.flow.concurrency_limit import CALM_FACTOR, ConcurrencyLimit
from holdfast.commit.flow.fair_queues import (
    ArrivingRequests,
    QueueBounds,
    QueueItem,
    TenantFairQueue,
)
from holdfast.commit.flow.flow_counts import TENANTS_COUNTED_MAX, ClassLoad, RequestCounts
from holdfast.commit.flow.overload import Overloaded, RejectionReason, overload_error
from holdfast.commit.flow.request_classes import Flow, RequestClass
from holdfast.model.errors import unreachable
from holdfast.model.machine import Rng
from holdfast.model.pulse import OTHERS

# Beyond this a request is too late even if the owner polled late.
OWNER_LATE_MAX_MS = 1_000
# A class is calm again this long after its last refusal.
CALM_AFTER_MS = 5_000
# A refused client may retry after one second, plus up to this many seconds of jitter.
RETRY_SPREAD_S = 4
# When nothing of a class was finished lately, or more than one is refused for this many that start,
# refused clients stay away for longer, up to this maximum: refusing costs as well, and a crowd that
# returns every few seconds would take most of a slow server.
RETRY_SPREAD_MAX_S = 16
REFUSED_ONE_IN = 4
# Both are counted over about this time.
_LATELY_MS = 2_000
# The lines of waiting requests may contain this many decided ones, and one for each that waits.
_DECIDED_MAX = 256


class Seats(msgspec.Struct, frozen=True, gc=False):
    """The seats of one class at one flow controller.

    reserved: seats of its own, whatever the others do.
    most: the maximum number of seats at once, reserved ones included.
    ceiling: beyond its reserved seats it starts nothing while this many requests of all classes
        except lifelines are running.
    patience_ms: the minimum waiting time, if no measurement asks for more.
    calm_ms: the same while none was refused lately; 0 if that makes no difference to the class,
        and then its patience follows no measurement either.
    patient_ms: the same for requests that last once started, such as a watch: a client that
        stays for hours does not mind a second, and clients that lost a server return all at once.
    newcomers: extra seats for tenants with nothing running: a tenant that asks for little does
        not wait until a crowd that holds all seats is done, however long that takes. One that was
        served more than a waiting tenant queues behind it.
    """

    reserved: int
    most: int
    ceiling: int
    queue: QueueBounds
    patience_ms: int
    calm_ms: int = 0
    patient_ms: int = 2_000
    newcomers: int = 0


class RequestState(Enum):
    """The state of a queued request."""

    WAITING = "waiting"
    BEGUN = "begun"
    REFUSED = "refused"
    OVER = "over"


class QueuedRequest(QueueItem):
    """One request at a flow controller. `about` is for its owner's use."""

    __slots__ = ("about", "began_ms", "error", "flow", "since_ms", "state", "until_ms")

    def __init__(self, flow: Flow, cost: int, now_ms: int, about: Any) -> None:
        # Every request creates one, so each call in here is measurable.
        self.tenant, self.user, self.cost, self.is_in_line = flow.tenant, flow.user, cost, False
        self.flow, self.about = flow, about
        self.since_ms = self.until_ms = self.began_ms = now_ms
        self.state = RequestState.BEGUN
        self.error: Overloaded | None = None


class _Lane:
    """One class at one flow controller."""

    __slots__ = (
        "busy",
        "calm",
        "ceiling",
        "executing",
        "hasty",
        "hasty_until_ms",
        "lately_begun",
        "lately_ms",
        "lately_refused",
        "most",
        "moved_ms",
        "newcomers",
        "patient",
        "queue",
        "refused",
        "reserved",
        "seats",
        "tally",
        "tenants",
    )

    def __init__(self, seats: Seats) -> None:
        self.seats = seats
        self.reserved, self.most = seats.reserved, seats.most
        self.ceiling, self.newcomers = seats.ceiling, seats.newcomers
        self.executing = 0
        # The number of running requests of each tenant that has any; for the newcomers' seats.
        self.busy: dict[str, int] = {}
        self.queue: TenantFairQueue[QueuedRequest] = TenantFairQueue(seats.queue)
        # All waiting requests by arrival, in one line for each kind of patience.
        self.hasty: deque[QueuedRequest] = deque()
        self.calm: deque[QueuedRequest] = deque()
        self.patient: deque[QueuedRequest] = deque()
        # Until when arriving requests have the shorter patience.
        self.hasty_until_ms = 0
        # When a seat last became free, or was first taken.
        self.moved_ms = 0
        # Recent starts and refusals, decaying over time.
        self.lately_begun = self.lately_refused = self.lately_ms = 0
        self.tally = RequestCounts()
        self.tenants: dict[str, RequestCounts] = {}
        self.refused: dict[RejectionReason, int] = {}

    @property
    def lines(self) -> tuple[deque[QueuedRequest], ...]:
        return self.hasty, self.calm, self.patient

    def resize(self, scale: float) -> None:
        """Scale the seats of the table, with at least one of each kind."""
        seats = self.seats
        self.reserved = max(min(1, seats.reserved), int(seats.reserved * scale))
        self.most = max(1, int(seats.most * scale))
        self.ceiling = max(1, int(seats.ceiling * scale))
        self.newcomers = max(min(1, seats.newcomers), int(seats.newcomers * scale))

    def stand(self, entry: QueuedRequest, now_ms: int, wait_ms: int, *, is_patient: bool) -> None:
        """Put an arriving request into its line, with its deadline."""
        seats = self.seats
        if is_patient:
            line, patience_ms = self.patient, seats.patient_ms
        elif not seats.calm_ms:
            line, patience_ms = self.hasty, seats.patience_ms
        elif now_ms < self.hasty_until_ms:
            line, patience_ms = self.hasty, max(seats.patience_ms, wait_ms)
        else:
            line, patience_ms = self.calm, max(seats.calm_ms, CALM_FACTOR * wait_ms)
        # An earlier request is not refused later than a later one, even if the patience has shrunk
        # since.
        entry.until_ms = max(now_ms + patience_ms, line[-1].until_ms if line else 0)
        line.append(entry)
        if len(line) > 2 * len(self.queue) + _DECIDED_MAX:
            kept = [it for it in line if it.state is RequestState.WAITING]
            line.clear()
            line.extend(kept)

    def crowding(self, now_ms: int) -> float:
        """The ratio of recent refusals to the tolerated ones; at least 1."""
        while now_ms - self.lately_ms >= _LATELY_MS and (self.lately_begun or self.lately_refused):
            self.lately_ms += _LATELY_MS
            self.lately_begun //= 2
            self.lately_refused //= 2
        if not self.lately_begun and not self.lately_refused:
            self.lately_ms = now_ms
        return max(1.0, REFUSED_ONE_IN * self.lately_refused / max(1, self.lately_begun))

    def count(self, tenant: str) -> RequestCounts:
        """The counts of a tenant; tenants beyond a number are counted together."""
        found = self.tenants.get(tenant)
        if found is None:
            if len(self.tenants) >= TENANTS_COUNTED_MAX:
                tenant = OTHERS
            found = self.tenants.setdefault(tenant, RequestCounts())
        return found


class FlowController:
    """See the module's docstring. Times are readings of the owner's monotonic clock."""

    def __init__(
        self,
        seats: Mapping[RequestClass, Seats],
        rng: Rng,
        name: str = "",
        limit: ConcurrencyLimit | None = None,
    ) -> None:
        """Without a limit the seats are those of the table, whatever happens."""
        self.name = name
        self._rng = rng
        self.limit, self._scale = limit, 1.0
        self._lanes = [_Lane(seats[it]) for it in RequestClass]
        # Running requests of all classes except lifelines, which no other class has to make room
        # for.
        self._executing = 0
        # Waiting requests of all classes.
        self.waiting = 0
        # The other flow controller of the same server. What starts here uses the same processor, so
        # the next turns of its tenant come later there.
        self.sibling: FlowController | None = None
        # Requests that lost their place; `turn` reports them to their owner.
        self._evicted: list[QueuedRequest] = []
        self._resize()

    # Coming and going ----------------------------------------------------------------------------

    def enter(
        self,
        flow: Flow,
        now_ms: int,
        *,
        cost: int = 1,
        is_patient: bool = False,
        about: Any = None,
    ) -> QueuedRequest:
        """Take in a request: it starts at once, waits, or is refused."""
        lane = self._lanes[flow.request_class]
        entry = QueuedRequest(flow, cost, now_ms, about)
        has_seat = (not self.waiting or not lane.queue) and self._has_seat(lane)
        if has_seat or (
            self._is_newcomer(lane, entry.tenant)
            and not lane.queue.waiting_of(entry.tenant)
            and not lane.queue.is_ahead(entry.tenant)
        ):
            self.charge(flow, cost)
            self._begin(lane, entry, now_ms)
            return entry
        entry.state = RequestState.WAITING
        wait_ms = 0
        if self.limit is not None:
            self.limit.is_short, wait_ms = True, self.limit.wait_ms
        has_room, evicted = lane.queue.push(entry)
        if evicted is not None:
            self.waiting -= 1
            self._refuse(lane, evicted, RejectionReason.QUEUE_FULL, now_ms)
            self._evicted.append(evicted)
        if not has_room:
            self._refuse(lane, entry, RejectionReason.QUEUE_FULL, now_ms)
            return entry
        self.waiting += 1
        lane.stand(entry, now_ms, wait_ms, is_patient=is_patient)
        return entry

    def leave(self, entry: QueuedRequest, now_ms: int) -> None:
        """Note that a request is done, whatever its result. `turn` says which one takes the
        seat.
        """
        if entry.state is not RequestState.BEGUN:
            unreachable(f"{entry.user} leaves and has not begun")
        entry.state = RequestState.OVER
        lane = self._lanes[entry.flow.request_class]
        lane.executing -= 1
        if lane.newcomers:
            left = lane.busy[entry.tenant] - 1
            if left:
                lane.busy[entry.tenant] = left
            else:
                del lane.busy[entry.tenant]
        lane.moved_ms = now_ms
        if entry.flow.request_class is RequestClass.LIFELINE:
            return
        if self.limit is not None:
            self.limit.observe_end(entry.began_ms, now_ms, self._executing)
        self._executing -= 1
        if self.limit is not None:
            self._resize()

    def observe_turn(self, took_ms: int, most_ms: int) -> None:
        """Note one turn of the owner's event loop: how long it took, and how long it may take."""
        if self.limit is not None:
            self.limit.observe_turn(took_ms, most_ms)
            self._resize()

    def _resize(self) -> None:
        if self.limit is not None and self.limit.scale != self._scale:
            self._scale = self.limit.scale
            for it in RequestClass:
                if it is not RequestClass.LIFELINE:
                    self._lanes[it].resize(self._scale)

    def withdraw(self, entry: QueuedRequest) -> bool:
        """Withdraw a waiting request whose caller has given up. False if it was already decided."""
        if entry.state is not RequestState.WAITING:
            return False
        entry.state = RequestState.OVER
        self.waiting -= 1
        self._lanes[entry.flow.request_class].queue.remove(entry)
        return True

    def is_crowded(self, flow: Flow, coming: ArrivingRequests) -> bool:
        """Whether as many wait as can run, and this flow has at least its fair share of them: one
        more would wait in vain, and no seat stays empty without it.
        """
        lane = self._lanes[flow.request_class]
        return lane.queue.is_crowded(flow.tenant, flow.user, lane.most, coming)

    @property
    def patience_ms(self) -> int:
        """How long requests of people may wait while others are refused."""
        least_ms = self._lanes[RequestClass.TENANT].seats.patience_ms
        return max(least_ms, self.limit.wait_ms if self.limit is not None else 0)

    def refuse_early(self, flow: Flow, now_ms: int) -> int:
        """Refuse a request before it enters. Returns the retry delay in seconds."""
        lane = self._lanes[flow.request_class]
        self._count_refusal(lane, flow, RejectionReason.QUEUE_FULL)
        return self._retry_after_s(lane, now_ms)

    def count_retry(self, flow: Flow) -> None:
        """Count a request that its client marks as a retry. It does not affect decisions."""
        self._lanes[flow.request_class].count(flow.tenant).retried += 1

    def charge(self, flow: Flow, cost: int) -> None:
        """Charge a flow for a request that started past the queue, or cost more than was known.

        Lifelines have seats for all, so none of them delays another.
        """
        if flow.request_class is not RequestClass.LIFELINE:
            self._lanes[flow.request_class].queue.charge(flow.tenant, flow.user, cost)

    def turn(self, now_ms: int) -> list[QueuedRequest]:
        """The requests that start or are refused now, in order."""
        decided, self._evicted = self._evicted, []
        self._expire(now_ms, decided, is_turn_over=False)
        for lane in self._lanes:
            while lane.queue and lane.executing < lane.reserved:
                self._next(lane, now_ms, decided)
        for lane in self._lanes:
            while lane.queue and (
                self._has_seat(lane) or self._is_newcomer(lane, lane.queue.next_tenant)
            ):
                self._next(lane, now_ms, decided)
        self._expire(now_ms, decided, is_turn_over=True)
        return decided

    @property
    def next_ms(self) -> int | None:
        """When `turn` has a request to refuse if none leaves before; None if none waits."""
        if self._evicted:
            return self._evicted[0].since_ms
        firsts = [line[0].until_ms for lane in self._lanes for line in lane.lines if line]
        return min(firsts) if firsts else None

    def _has_seat(self, lane: _Lane) -> bool:
        if lane.executing < lane.reserved:
            return True
        return lane.executing < lane.most and self._executing < lane.ceiling

    def _is_newcomer(self, lane: _Lane, tenant: str) -> bool:
        """Whether there is a newcomer's seat for a tenant with nothing running."""
        if not lane.newcomers or tenant in lane.busy:
            return False
        return lane.executing < lane.most + lane.newcomers

    def _next(self, lane: _Lane, now_ms: int, decided: list[QueuedRequest]) -> None:
        entry = lane.queue.pop()
        self.waiting -= 1
        lane.tally.waited += 1
        self._begin(lane, entry, now_ms)
        decided.append(entry)

    def _begin(self, lane: _Lane, entry: QueuedRequest, now_ms: int) -> None:
        entry.state, entry.began_ms = RequestState.BEGUN, now_ms
        if not lane.executing:
            lane.moved_ms = now_ms
        lane.executing += 1
        if lane.newcomers:
            lane.busy[entry.tenant] = lane.busy.get(entry.tenant, 0) + 1
        if entry.flow.request_class is not RequestClass.LIFELINE:
            self._executing += 1
        if self.sibling is not None:
            self.sibling.charge(entry.flow, entry.cost)
        lane.tally.begun += 1
        lane.lately_begun += 1
        tally = lane.tenants.get(entry.tenant) or lane.count(entry.tenant)
        tally.begun += 1

    def _expire(self, now_ms: int, decided: list[QueuedRequest], *, is_turn_over: bool) -> None:
        """Refuse requests that waited too long; before seats are given out, only those far too
        late.
        """
        late_ms = now_ms if is_turn_over else now_ms - OWNER_LATE_MAX_MS
        for lane in self._lanes:
            for line in lane.lines:
                while line and (
                    line[0].state is not RequestState.WAITING or line[0].until_ms <= late_ms
                ):
                    entry = line.popleft()
                    if entry.state is RequestState.WAITING:
                        lane.queue.remove(entry)
                        self.waiting -= 1
                        self._refuse(lane, entry, RejectionReason.WAITED_TOO_LONG, now_ms)
                        decided.append(entry)

    def _refuse(self, lane: _Lane, entry: QueuedRequest, why: RejectionReason, now_ms: int) -> None:
        entry.state = RequestState.REFUSED
        lane.hasty_until_ms = now_ms + CALM_AFTER_MS
        self._count_refusal(lane, entry.flow, why)
        entry.error = overload_error(entry.flow, why, self._retry_after_s(lane, now_ms))

    def _count_refusal(self, lane: _Lane, flow: Flow, why: RejectionReason) -> None:
        lane.tally.refused += 1
        lane.lately_refused += 1
        lane.count(flow.tenant).refused += 1
        lane.refused[why] = lane.refused.get(why, 0) + 1

    def _retry_after_s(self, lane: _Lane, now_ms: int) -> int:
        stalled_s = (now_ms - lane.moved_ms) // 1_000 if lane.executing else 0
        spread_s = RETRY_SPREAD_S * lane.crowding(now_ms) + stalled_s
        return 1 + int(self._rng.random() * min(RETRY_SPREAD_MAX_S, spread_s))

    # What is counted -----------------------------------------------------------------------------

    def class_loads(self, now_ms: int) -> dict[RequestClass, ClassLoad]:
        """The load of each class, for monitoring."""
        return {it: self._class_load(self._lanes[it], now_ms) for it in RequestClass}

    def _class_load(self, lane: _Lane, now_ms: int) -> ClassLoad:
        oldest_ms = now_ms
        for line in lane.lines:
            first = next((it for it in line if it.state is RequestState.WAITING), None)
            oldest_ms = min(oldest_ms, first.since_ms) if first is not None else oldest_ms
        return ClassLoad(
            lane.executing,
            len(lane.queue),
            now_ms - oldest_ms,
            lane.tally,
            lane.refused,
        )

    @property
    def tenants(self) -> dict[tuple[RequestClass, str], RequestCounts]:
        """The request counts of each tenant, by class."""
        return {
            (it, tenant): tally
            for it in RequestClass
            for tenant, tally in self._lanes[it].tenants.items()
        }
