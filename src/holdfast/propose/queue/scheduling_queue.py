"""The scheduling queue: which replica is next, which ones back off, and what the others wait for.

Urgent work goes first, then higher priority. Among equals the tenant with the smallest weighted
dominant share is next (`fair_shares.py`), and each tenant's replicas keep the order in which they
came. A tenant whose work is tiny or short has a small share however many turns it gets, so one turn
in ROTATION_EVERY rotates over the tenants. The successors of work that was stopped for other work
go before all of their lane: they had a place. So that no replica waits for
ever behind more important ones, one turn in AGING_EVERY goes to the one that is queued longest,
whatever its lane. A refused
replica backs off, longer each time and with jitter. A replica without a feasible node is parked,
grouped by its class, with the events that could help, and woken by those or by the resync. The
queue is in memory only: what is pending is in the store, and a scheduler that starts finds it
there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import islice
from typing import TypeVar

import msgspec
import numpy as np

from holdfast.model.errors import invariant
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.machine import Rng
from holdfast.model.pulse import (
    AGES_MAX,
    OTHERS,
    ROOMS_MAX,
    WAITS_MAX,
    Backlog,
    FreeCapacity,
    PendingCount,
)
from holdfast.model.quota.charging import budget_of
from holdfast.model.quota.fairness import OrderKey
from holdfast.model.time import Instant, wall_ms
from holdfast.observe.cache import Key
from holdfast.observe.node_columns import Bools, NodeColumns, gate_number
from holdfast.observe.snapshot import Objects
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import WakeEvent
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.queue.fair_shares import FairShares

BACKOFF_MIN_MS = 200
BACKOFF_MAX_MS = 30_000
# How many doublings lead from the shortest pause to the longest.
_DOUBLINGS_MAX = 8
# One turn in this many goes to the replica that is queued longest.
AGING_EVERY = 16
# One turn in this many goes to the tenant of the lane whose last turn of this kind is longest ago.
ROTATION_EVERY = 8
_GOLDEN, _WHOLE = 0x9E3779B1, 0xFFFFFFFF
# Of this many tenants; after a turn a tenant goes to the end of its lane.
ROTATION_LOOKED_AT = 32
# How often the order of tenants is computed again: what they remember fades with time.
REORDER_MS = 1_000
# A tenant with more than this many pending replicas gets no more queued: the resync tries again.
PENDING_PER_TENANT_MAX = 50_000

# Urgent or not, then priority.
Lane = tuple[bool, int]
# A tenant, and the class key of its replicas.
GroupKey = tuple[str, Hashable]


class QueuePlace(Enum):
    """Where an entry is."""

    READY = auto()
    TAKEN = auto()
    PAUSING = auto()
    PARKED = auto()


class QueueEntry(msgspec.Struct, gc=False):
    """One replica in the queue.

    `turns` counts how often it was tried, `failures` the pauses in a row, `conflicts` the refusals
    since the last of them.
    """

    key: Key
    uid: str
    number: int
    lane: Lane
    place: QueuePlace = QueuePlace.READY
    ticket: int = 0
    turns: int = 0
    failures: int = 0
    conflicts: int = 0
    wake_events: tuple[WakeEvent, ...] = ()
    due_ms: int = 0
    # Whether it made way for other work, and goes before all others of its lane.
    goes_first: bool = False
    # The key of its equivalence class, once that is known.
    class_key: Hashable = None
    workload: str = ""

    @property
    def tenant(self) -> str:
        return self.key[0]


class _LaneQueue:
    """The ready entries of one lane, by tenant.

    `tenants` has their tickets; after a turn a tenant is the last of them. `requeued` has those
    that go before all tenants' lines, as they made way for other work. A ticket that is not its
    entry's current one is void. The heap has the same tenants by share; a key that is not the
    tenant's current one is found out when it comes to the front.
    """

    def __init__(self, shares: FairShares | None) -> None:
        self._shares = shares
        self.tenants: dict[str, deque[tuple[int, Key]]] = {}
        self.requeued: deque[tuple[int, Key]] = deque()
        self._heap: list[tuple[OrderKey, int, str]] = []
        self._pushes = 0
        self._ordered_at_ms: int | None = None

    @property
    def oldest(self) -> int:
        """The ticket of the entry that is queued longest."""
        lines = [*self.tenants.values(), *([self.requeued] if self.requeued else [])]
        return min(line[0][0] for line in lines)

    def line(self, tenant: str) -> deque[tuple[int, Key]]:
        """The line of a tenant, a new one if it has none."""
        found = self.tenants.get(tenant)
        if found is None:
            found = self.tenants[tenant] = deque()
            self.push(tenant)
        return found

    def push(self, tenant: str) -> None:
        """Order a tenant by its current share."""
        if self._shares is not None and self._ordered_at_ms is not None:
            self._pushes += 1
            heapq.heappush(self._heap, (self._shares.key(tenant), self._pushes, tenant))

    def turn_of(self, now_ms: int, *, is_rotation: bool) -> str:
        """The tenant whose turn it is."""
        if len(self.tenants) == 1 or self._shares is None:
            return next(iter(self.tenants))
        if is_rotation:
            return self._shares.next_in_rotation(islice(self.tenants, ROTATION_LOOKED_AT))
        too_old = self._ordered_at_ms is None or now_ms - self._ordered_at_ms >= REORDER_MS
        if too_old or len(self._heap) > 4 * len(self.tenants) + 64:
            self._order(now_ms)
        while self._heap:
            key, _, tenant = heapq.heappop(self._heap)
            if tenant not in self.tenants:
                continue
            if self._shares.key(tenant) > key:
                self.push(tenant)
                continue
            return tenant
        return next(iter(self.tenants))

    def _order(self, now_ms: int) -> None:
        self._ordered_at_ms = now_ms
        self._heap.clear()
        for tenant in self.tenants:
            self.push(tenant)


class SchedulingQueue:
    """See the module's docstring. It holds no more than what is pending in the cache.

    Without `shares` tenants take turns.
    """

    def __init__(self, rng: Rng, shares: FairShares | None = None) -> None:
        self._rng, self._shares = rng, shares
        self._entries: dict[Key, QueueEntry] = {}
        self._ready: dict[Lane, _LaneQueue] = {}
        self._pauses: list[tuple[int, int, Key]] = []
        self._parked: dict[Key, QueueEntry] = {}
        # The parked entries that wait for an event, by tenant and class.
        self._waiting_for: dict[WakeEvent, dict[GroupKey, dict[Key, QueueEntry]]] = {
            wake_event: {} for wake_event in WakeEvent
        }
        self._per_tenant: dict[str, int] = {}
        self._per_workload: dict[tuple[str, str], int] = {}
        # Workloads of which some replicas were not queued, and those that have room again.
        self._capped: dict[tuple[str, str], int] = {}
        self.reopened: dict[tuple[str, str], None] = {}
        self._tickets = 0
        self._ready_count = 0
        self._turns = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> QueueEntry | None:
        return self._entries.get(key)

    @property
    def has_ready(self) -> bool:
        return self._ready_count > 0

    @property
    def has_urgent(self) -> bool:
        """Whether an urgent replica is ready."""
        return any(is_urgent for is_urgent, _ in self._ready)

    @property
    def next_ms(self) -> int | None:
        """When the next pause ends, if an entry pauses."""
        while self._pauses and not self._is_current(self._pauses[0]):
            heapq.heappop(self._pauses)
        return self._pauses[0][0] if self._pauses else None

    # Adding and removing -------------------------------------------------------------------------

    def add(
        self,
        key: Key,
        uid: str,
        number: int,
        lane: Lane,
        workload: str = "",
        workload_max: int | None = None,
        *,
        first: bool = False,
    ) -> QueueEntry | None:
        """Add a replica that needs a node; the same one as before keeps its position.

        `first` means before all others of its lane: it had a place, and made way. None
        means that its tenant, or its workload, already has too many waiting.
        """
        entry = self._entries.get(key)
        if entry is not None:
            if (entry.uid, entry.number, entry.lane) == (uid, number, lane):
                return entry
            self.forget(key)
        whose = key[0], workload
        waiting = self._per_tenant.get(key[0], 0)
        if waiting >= PENDING_PER_TENANT_MAX:
            return None
        if workload_max is not None and self._per_workload.get(whose, 0) >= workload_max:
            self._capped[whose] = workload_max
            return None
        self._per_tenant[key[0]] = waiting + 1
        self._per_workload[whose] = self._per_workload.get(whose, 0) + 1
        entry = QueueEntry(key, uid, number, lane, goes_first=first, workload=workload)
        self._entries[key] = entry
        self._line_up(entry)
        return entry

    def is_capped(self, tenant: str, workload: str) -> bool:
        """Whether replicas of this workload were not queued because of its own limit."""
        return (tenant, workload) in self._capped

    def forget(self, key: Key) -> None:
        """Remove a replica that needs no node any more."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._leave(entry)
        whose = key[0], entry.workload
        _less(self._per_tenant, key[0])
        _less(self._per_workload, whose)
        most = self._capped.get(whose)
        if most is not None and 2 * self._per_workload.get(whose, 0) <= most:
            # Finding the others costs a look at all replicas, so it waits until half are gone.
            del self._capped[whose]
            self.reopened[whose] = None

    def take(self, now_ms: int) -> QueueEntry | None:
        """The next entry whose turn it is. It stays taken until one of the calls below."""
        self._end_pauses(now_ms)
        if not self._ready_count:
            return None
        self._turns += 1
        self._advance()
        lanes = sorted(self._ready, reverse=True)
        if len(lanes) > 1 and self._turns % AGING_EVERY == 0:
            lanes.sort(key=self._oldest)
        for lane in lanes:
            entry = self._next_of(lane, now_ms)
            if entry is not None:
                entry.place = QueuePlace.TAKEN
                entry.turns += 1
                self._ready_count -= 1
                return entry
        return None

    def _oldest(self, lane: Lane) -> int:
        """The ticket of the entry that is queued longest in a lane."""
        return self._ready[lane].oldest

    def _advance(self) -> None:
        """Order again the tenants that came nearer to the front."""
        if self._shares is None or not self._shares.advanced:
            return
        for tenant in self._shares.advanced:
            for lane in self._ready.values():
                if tenant in lane.tenants:
                    lane.push(tenant)
        self._shares.advanced.clear()

    # Returning an entry --------------------------------------------------------------------------

    def again(self, entry: QueueEntry) -> None:
        """Try the next node at once after a refusal, before others of its tenant."""
        entry.conflicts += 1
        self._leave(entry)
        self._line_up(entry, first=True)

    def put_back(self, entry: QueueEntry) -> None:
        """Give back a taken entry about which nothing was decided. It keeps its age, and is first
        of its tenant again.
        """
        entry.turns -= 1
        self._line_up(entry, first=True, ticket=entry.ticket)

    def failed(self, entry: QueueEntry, now_ms: int) -> int:
        """Back off, longer each time. Returns until when. Events do not shorten a pause."""
        self._leave(entry)
        pause_ms = min(BACKOFF_MAX_MS, BACKOFF_MIN_MS << min(entry.failures, _DOUBLINGS_MAX))
        entry.failures += 1
        entry.conflicts = 0
        entry.place = QueuePlace.PAUSING
        entry.due_ms = now_ms + int(pause_ms * (0.5 + self._rng.random() / 2))
        entry.ticket = self._ticket()
        heapq.heappush(self._pauses, (entry.due_ms, entry.ticket, entry.key))
        return entry.due_ms

    def park(self, entry: QueueEntry, wake_events: Iterable[WakeEvent]) -> None:
        """Wait for one of these events, or the resync. With none: for a change of the replica."""
        self._leave(entry)
        entry.place, entry.wake_events = QueuePlace.PARKED, tuple(wake_events)
        entry.failures = entry.conflicts = 0
        self._parked[entry.key] = entry
        for wake_event in entry.wake_events:
            self._waiting_for[wake_event].setdefault((entry.tenant, entry.class_key), {})[
                entry.key
            ] = entry

    # Waking --------------------------------------------------------------------------------------

    def waiting_for(self, wake_event: WakeEvent) -> list[tuple[GroupKey, Mapping[Key, QueueEntry]]]:
        """The parked entries that this kind of event could help, by tenant and class, in order."""
        return list(self._waiting_for[wake_event].items())

    def wake_some(self, group: Mapping[Key, QueueEntry], most: int) -> int:
        """Wake the first `most` of these. Returns how many were woken."""
        chosen = list(islice(group.values(), most))
        for entry in chosen:
            self.wake(entry)
        return len(chosen)

    def wake_waiting_for(self, wake_event: WakeEvent) -> None:
        """Wake all entries that wait for this kind of event."""
        for _, group in self.waiting_for(wake_event):
            self.wake_some(group, len(group))

    def wake(self, entry: QueueEntry) -> None:
        """Wake an entry if it is parked."""
        if entry.place is QueuePlace.PARKED:
            self._leave(entry)
            self._line_up(entry)

    def wake_all(self) -> None:
        """The resync: wake every parked entry, whatever events were missed."""
        for entry in list(self._parked.values()):
            self.wake(entry)

    # Inside --------------------------------------------------------------------------------------

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _line_up(self, entry: QueueEntry, *, first: bool = False, ticket: int = 0) -> None:
        entry.place, entry.wake_events = QueuePlace.READY, ()
        entry.ticket = ticket or self._ticket()
        lane = self._ready.get(entry.lane)
        if lane is None:
            lane = self._ready[entry.lane] = _LaneQueue(self._shares)
        line = lane.requeued if entry.goes_first else lane.line(entry.tenant)
        if first:
            line.appendleft((entry.ticket, entry.key))
        else:
            line.append((entry.ticket, entry.key))
        self._ready_count += 1

    def _leave(self, entry: QueueEntry) -> None:
        """Remove the entry from where it is."""
        if entry.place is QueuePlace.READY:
            self._ready_count -= 1
        elif entry.place is QueuePlace.PARKED:
            del self._parked[entry.key]
            for wake_event in entry.wake_events:
                self._stop_waiting_for(wake_event, entry)
        # A line or heap that still has its ticket finds it void.
        entry.ticket = 0
        entry.place = QueuePlace.TAKEN

    def _stop_waiting_for(self, wake_event: WakeEvent, entry: QueueEntry) -> None:
        group_key = entry.tenant, entry.class_key
        group = self._waiting_for[wake_event][group_key]
        del group[entry.key]
        if not group:
            del self._waiting_for[wake_event][group_key]

    def _next_of(self, lane: Lane, now_ms: int) -> QueueEntry | None:
        """The first entry that made way for other work, or of the tenant whose turn it is."""
        found = self._ready[lane]
        tenants = found.tenants
        entry = self._first(found.requeued)
        if entry is not None:
            if not tenants and not found.requeued:
                del self._ready[lane]
            return entry
        is_rotation = _is_rotation(self._turns)
        while tenants:
            tenant = found.turn_of(now_ms, is_rotation=is_rotation)
            line = tenants.pop(tenant)
            entry = self._first(line)
            if line:
                tenants[tenant] = line
                found.push(tenant)
            if entry is not None:
                if not tenants:
                    # An empty lane has no oldest entry.
                    del self._ready[lane]
                return entry
        del self._ready[lane]
        return None

    def _first(self, line: deque[tuple[int, Key]]) -> QueueEntry | None:
        while line:
            ticket, key = line.popleft()
            entry = self._entries.get(key)
            if entry is not None and entry.ticket == ticket:
                invariant(entry.place is QueuePlace.READY, f"{key} is queued but {entry.place}")
                return entry
        return None

    def _end_pauses(self, now_ms: int) -> None:
        while self._pauses and self._pauses[0][0] <= now_ms:
            pause = heapq.heappop(self._pauses)
            if self._is_current(pause):
                self._line_up(self._entries[pause[2]])

    def _is_current(self, pause: tuple[int, int, Key]) -> bool:
        entry = self._entries.get(pause[2])
        return entry is not None and entry.ticket == pause[1]

    def __iter__(self) -> Iterator[QueueEntry]:
        return iter(self._entries.values())


def _is_rotation(turn: int) -> bool:
    """Whether a turn rotates.

    A free place wakes one replica of each tenant, and only the first gets it. If every eighth turn
    rotated, with four tenants either all of these or none would get a place. Multiples of the
    golden ratio fall evenly on any such pattern.
    """
    return (turn * _GOLDEN & _WHOLE) * ROTATION_EVERY < _WHOLE


Counted = TypeVar("Counted")


def _less(counts: dict[Counted, int], key: Counted) -> None:
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]


# The backlog: the pending work and the free capacity, as numbers for operators.
#
# The shell of a scheduler asks this for each pulse, every few seconds (`host/component/build.py`);
# servers show it (`host/server/component_pulses.py`). No decision depends on it. Everything counted
# here has a bound, so that a backlog of any size costs a pulse a few milliseconds.

# How many entries are examined for one pulse; the rest is counted without a reason.
LOOKED_AT_MAX = 20_000
# The shapes of work that are compared with all nodes: those that were used last.
SHAPES_MAX = 64
# The reason of an entry that was not examined: not by its scheduler yet, or not for this pulse.
UNTRIED, UNCOUNTED = "Untried", "Uncounted"
_OPEN = gate_number(NodePhase.READY, draining=False, cordoned=False)


def backlog(
    queue: SchedulingQueue,
    objects: Objects,
    fleet: Fleet,
    verdict_cache: VerdictCache,
    now: Instant,
) -> Backlog:
    """See the comment above."""
    counts: dict[tuple[str, str], int] = {}
    ages: dict[str, int] = {}
    for looked_at, entry in enumerate(queue):
        if looked_at >= LOOKED_AT_MAX:
            _add(counts, (entry.tenant, UNCOUNTED))
            continue
        replica: Replica | None = objects.get("replicas", *entry.key)
        if replica is None:
            continue
        for reason in _reasons(entry, replica):
            _add(counts, (entry.tenant, reason))
        born = replica.metadata.creation_timestamp
        age_ms = max(0, now.wall_ms - wall_ms(born)) if born is not None else 0
        name = budget_of(replica.spec.template.priority_class)
        if name in ages or len(ages) < AGES_MAX:
            ages[name] = max(age_ms, ages.get(name, 0))
    return Backlog(
        _waits(counts), ages, tuple(islice(_rooms(fleet.columns, verdict_cache), ROOMS_MAX))
    )


def _add(counts: dict[tuple[str, str], int], what: tuple[str, str]) -> None:
    counts[what] = counts.get(what, 0) + 1


def _reasons(entry: QueueEntry, replica: Replica) -> Iterable[str]:
    pending = replica.status.pending
    return pending.reasons if pending is not None and pending.reasons else (UNTRIED,)


def _waits(counts: dict[tuple[str, str], int]) -> tuple[PendingCount, ...]:
    """The largest counts each, and those beyond the bound together, by reason."""
    ordered = sorted(counts.items(), key=lambda it: (-it[1], it[0]))
    named, rest = ordered[:WAITS_MAX], ordered[WAITS_MAX:]
    others: dict[str, int] = {}
    for (_, reason), number in rest:
        others[reason] = others.get(reason, 0) + number
    found = [PendingCount(tenant, reason, number) for (tenant, reason), number in named]
    return (*found, *(PendingCount(OTHERS, reason, number) for reason, number in others.items()))


def _rooms(columns: NodeColumns, verdict_cache: VerdictCache) -> Iterable[FreeCapacity]:
    """What is free on nodes that take work, and how much of it is in fragments too small to use."""
    rows = columns.all
    is_open: Bools = columns.live[rows] & (columns.gate[rows] == _OPEN)
    shapes = verdict_cache.shapes(SHAPES_MAX)
    is_fragment: Bools = is_open if shapes else np.zeros_like(is_open)
    for shape in shapes:
        fits = is_open.copy()
        for resource, units in shape:
            fits &= columns.free[resource, rows] >= units
        is_fragment = is_fragment & ~fits
    places = columns.place[rows]
    for number, place in enumerate(columns.places.values):
        here: Bools = is_open & (places == number)
        if not here.any():
            continue
        for resource, name in enumerate(columns.resources.values):
            if not columns.total[resource, rows][here].any():
                continue
            free = np.maximum(columns.free[resource, rows], 0)
            yield FreeCapacity(
                *place, name, int(free[here].sum()), int(free[here & is_fragment].sum())
            )
