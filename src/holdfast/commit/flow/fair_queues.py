"""A fair queue: tenants take turns, and inside a tenant its users.

`commit/flow/flow_control` has one for each request class. The one with the least service is next,
counted by the cost of what it was given while others waited, from the queue or past it (start-time
fair queueing, on two levels): a tenant with a thousand queued requests delays another's first by
one request, not by a thousand. An idle tenant saves up only some turns: enough that occasional
requests within its share are served at once, and that a tenant that always waits does not live on
the pauses of the others.

Lengths are bounded: in total, per tenant and per user. When all places are taken and a tenant with
less than its share arrives, the tenant with the longest queue gives one up.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from holdfast.model.errors import invariant

# The number of remembered parties that owe cost and do not wait; they pay when they return.
DEBTORS_MAX = 4_096
# The cost that a party may catch up on after a pause.
CREDIT = 16
# A queue may contain this many removed items, and one for each that waits.
_GONE_MAX = 64


class QueueBounds(msgspec.Struct, frozen=True, gc=False):
    """The maximum number of waiting items: in total, per tenant, per user."""

    all_max: int
    tenant_max: int
    user_max: int


class QueueItem:
    """A queued item. `TenantFairQueue` marks it when it leaves; owners subclass it."""

    __slots__ = ("cost", "is_in_line", "tenant", "user")

    def __init__(self, tenant: str, user: str, cost: int) -> None:
        self.tenant, self.user, self.cost = tenant, user, cost
        self.is_in_line = False


W = TypeVar("W", bound=QueueItem)
K = TypeVar("K", bound=Hashable)


class _Party:
    """A party that takes turns. `due` is its next turn, in units of cost."""

    __slots__ = ("due", "is_in_turn", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.due = 0
        self.waiting = 0
        self.is_in_turn = False


class _User(_Party, Generic[W]):
    __slots__ = ("line",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.line: deque[W] = deque()


P = TypeVar("P", bound=_Party)


class _Turns(Generic[P]):
    """The turns of those who wait: the least served first, and among equals the first to arrive."""

    __slots__ = ("_clock", "_heap", "_number", "parties")

    def __init__(self) -> None:
        self.parties: dict[str, P] = {}
        self._heap: list[tuple[int, int, P]] = []
        self._clock = 0
        self._number = 0

    def join(self, party: P) -> None:
        """Add a party that begins or continues to wait."""
        if party.is_in_turn:
            return
        party.is_in_turn = True
        # Turns that it did not use while it had nothing waiting are lost, except for a few.
        party.due = max(party.due, self._clock - CREDIT)
        self._push(party)

    def _push(self, party: P) -> None:
        self._number += 1
        heapq.heappush(self._heap, (party.due, self._number, party))

    def __len__(self) -> int:
        """The approximate number of parties."""
        return len(self._heap)

    def next(self) -> P:
        """The next in turn; something must wait."""
        while True:
            invariant(self._heap, "items wait, and no party has a turn")
            due, number, party = self._heap[0]
            if not party.waiting:
                heapq.heappop(self._heap)
                party.is_in_turn = False
            elif due < party.due:
                # It was charged since, for more than was known then.
                heapq.heapreplace(self._heap, (party.due, number, party))
            else:
                return party

    def serve(self, party: P, cost: int) -> None:
        """Use up a turn. `party` is what `next` returned."""
        heapq.heappop(self._heap)
        self._clock = party.due
        party.due += cost
        if party.waiting:
            self._push(party)
        else:
            party.is_in_turn = False

    def charge(self, party: P, cost: int, *, is_waited_for: bool) -> None:
        """Charge a party for service past the queue, so that its next turn comes later.

        What it takes while others wait is a debt to them. What no other waits for is none, so the
        clock moves along: otherwise a tenant that was busy on a quiet day would pay for it in the
        next overload.
        """
        start = max(party.due, self._clock - CREDIT)
        party.due = start + cost
        if not is_waited_for:
            self._clock = max(self._clock, start)

    def is_ahead(self, name: str) -> bool:
        """Whether a party has been served more than the next in turn; something must wait."""
        party = self.parties.get(name)
        return party is not None and max(party.due, self._clock - CREDIT) > self.next().due

    def forget(self) -> None:
        """Drop parties that neither wait nor owe anything, and the oldest debtors beyond the
        bound.
        """
        idle = [it for it in self.parties.values() if not it.is_in_turn]
        owing = [it.name for it in idle if it.due > self._clock - CREDIT]
        kept = frozenset(owing[-DEBTORS_MAX // 2 :])
        for party in idle:
            if party.name not in kept:
                del self.parties[party.name]


class _Tenant(_Party, Generic[W]):
    __slots__ = ("turns",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.turns: _Turns[_User[W]] = _Turns()


class ArrivingRequests:
    """Requests that were admitted and are not queued yet. Without them a burst that arrives at once
    would be admitted as if nothing were waiting.
    """

    __slots__ = ("all", "tenants", "users")

    def __init__(self) -> None:
        self.all = 0
        self.tenants: dict[str, int] = {}
        self.users: dict[tuple[str, str], int] = {}

    def more(self, tenant: str, user: str, by: int) -> None:
        """Add to the count of a user; `by` may be negative."""
        self.all += by
        _count(self.tenants, tenant, by)
        _count(self.users, (tenant, user), by)


def _count(counts: dict[K, int], key: K, by: int) -> None:
    left = counts.get(key, 0) + by
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)


class TenantFairQueue(Generic[W]):
    """See the module's docstring."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._turns: _Turns[_Tenant[W]] = _Turns()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def waiting_of(self, tenant: str) -> int:
        """The number of a tenant's waiting items."""
        found = self._turns.parties.get(tenant)
        return found.waiting if found is not None else 0

    def is_crowded(self, tenant: str, user: str, enough: int, coming: ArrivingRequests) -> bool:
        """Whether enough wait or arrive, and this tenant, and this user of it, have at least their
        share.
        """
        total = self._waiting + coming.all
        if total < enough:
            return False
        found = self._turns.parties.get(tenant)
        of_tenant = coming.tenants.get(tenant, 0) + (found.waiting if found is not None else 0)
        if of_tenant * max(len(self._turns), len(coming.tenants)) < total:
            return False
        inside = found.turns.parties.get(user) if found is not None else None
        of_user = coming.users.get((tenant, user), 0) + (inside.waiting if inside else 0)
        users = max(1, len(found.turns)) if found is not None else 1
        return of_user * users >= of_tenant > 0

    @property
    def tenants(self) -> dict[str, int]:
        """The number of waiting items of each tenant that has any."""
        return {it.name: it.waiting for it in self._turns.parties.values() if it.waiting}

    @property
    def remembered_parties(self) -> int:
        """The number of tenants and users in memory, waiting or not."""
        return sum(1 + len(it.turns.parties) for it in self._turns.parties.values())

    @property
    def next_tenant(self) -> str:
        """The next in turn; something must wait."""
        return self._turns.next().name

    def is_ahead(self, tenant: str) -> bool:
        """Whether something waits, and this tenant has been served more than the next in turn."""
        return self._waiting > 0 and self._turns.is_ahead(tenant)

    def push(self, item: W) -> tuple[bool, W | None]:
        """Queue an item. Returns whether there was room, and the item that lost its place."""
        tenant, user = self._parties(item.tenant, item.user)
        bounds = self._bounds
        evicted: W | None = None
        has_room = tenant.waiting < bounds.tenant_max and user.waiting < bounds.user_max
        if has_room and self._waiting >= bounds.all_max:
            evicted = self._evict(tenant)
            has_room = evicted is not None
        if has_room:
            user.line.append(item)
            item.is_in_line = True
            user.waiting += 1
            tenant.waiting += 1
            self._waiting += 1
            tenant.turns.join(user)
            self._turns.join(tenant)
        self._tidy(tenant)
        return has_room, evicted

    def pop(self) -> W:
        """Take the next item; the queue must not be empty."""
        tenant = self._turns.next()
        user = tenant.turns.next()
        item = self._first(user)
        user.line.popleft()
        self._left(item, tenant, user)
        tenant.turns.serve(user, item.cost)
        self._turns.serve(tenant, item.cost)
        self._tidy(tenant)
        return item

    def remove(self, item: W) -> None:
        """Remove an item that is in the queue."""
        invariant(item.is_in_line, "an item that is not queued cannot be removed")
        tenant = self._turns.parties[item.tenant]
        user = tenant.turns.parties[item.user]
        self._left(item, tenant, user)
        # The item is mostly the oldest; others are skipped later, unless they become many.
        while user.line and not user.line[0].is_in_line:
            user.line.popleft()
        if len(user.line) > 2 * user.waiting + _GONE_MAX:
            user.line = deque([it for it in user.line if it.is_in_line])

    def charge(self, tenant: str, user: str, cost: int) -> None:
        """Charge a party for an item that passed the queue, or that cost more than was known."""
        party, inside = self._parties(tenant, user)
        self._turns.charge(party, cost, is_waited_for=bool(self._waiting))
        party.turns.charge(inside, cost, is_waited_for=bool(party.waiting))
        self._tidy(party)

    def _parties(self, tenant: str, user: str) -> tuple[_Tenant[W], _User[W]]:
        party = self._turns.parties.get(tenant)
        if party is None:
            party = self._turns.parties[tenant] = _Tenant(tenant)
        inside = party.turns.parties.get(user)
        if inside is None:
            inside = party.turns.parties[user] = _User(user)
        return party, inside

    def _left(self, item: W, tenant: _Tenant[W], user: _User[W]) -> None:
        item.is_in_line = False
        user.waiting -= 1
        tenant.waiting -= 1
        self._waiting -= 1

    def _first(self, user: _User[W]) -> W:
        while not user.line[0].is_in_line:
            user.line.popleft()
        return user.line[0]

    def _evict(self, newcomer: _Tenant[W]) -> W | None:
        """The youngest item of the longest queue, if that is longer than the newcomer's will be."""
        longest = max(self._turns.parties.values(), key=lambda it: it.waiting)
        if longest.waiting <= newcomer.waiting + 1:
            return None
        user = max(longest.turns.parties.values(), key=lambda it: it.waiting)
        while not user.line[-1].is_in_line:
            user.line.pop()
        item = user.line.pop()
        self._left(item, longest, user)
        return item

    def _tidy(self, tenant: _Tenant[W]) -> None:
        """Keep the remembered parties in proportion to the waiting items."""
        if len(tenant.turns.parties) > 2 * tenant.waiting + DEBTORS_MAX:
            tenant.turns.forget()
        if len(self._turns.parties) > 2 * self._waiting + DEBTORS_MAX:
            self._turns.forget()
