"""A queue in which every tenant has its turn, and inside a tenant every user.

`commit/flow/flow_control` has one for each request class. Whoever has had least is next, counted by
the cost of what it was given since it began to wait (start-time fair queueing, on two levels): a
tenant with a thousand requests in line delays another's first by one request, not by a thousand. By
staying away nobody saves up more than a few turns: so many that whoever asks now and then for what
is his share has it, and one that always waits does not live on the pauses of the others.

Lengths are bounded, for all together, for each tenant and for each user. When all places are taken
and a tenant with less than its share comes, the tenant with the longest line gives one up.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from holdfast.model.errors import invariant

# Who was charged and waits no more is remembered, up to so many: its debt is paid when it is back.
DEBTORS_MAX = 4_096
# What somebody may catch up on after a pause, in units of cost.
CREDIT = 8
# So many that were taken out, and one for each that waits, may lie in a line.
_GONE_MAX = 64


class QueueBounds(msgspec.Struct, frozen=True, gc=False):
    """How many may wait: in all, of one tenant, of one user."""

    all_max: int
    tenant_max: int
    user_max: int


class QueueItem:
    """Something in line. `TenantFairQueue` marks it when it leaves; owners subclass it."""

    __slots__ = ("cost", "is_in_line", "tenant", "user")

    def __init__(self, tenant: str, user: str, cost: int) -> None:
        self.tenant, self.user, self.cost = tenant, user, cost
        self.is_in_line = False


W = TypeVar("W", bound=QueueItem)
K = TypeVar("K", bound=Hashable)


class _Party:
    """Somebody who takes turns. `due` is when the next one is, in units of cost."""

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
    """Whose turn it is among those who wait: who has had least, and of equals who came first."""

    __slots__ = ("_clock", "_heap", "_number", "parties")

    def __init__(self) -> None:
        self.parties: dict[str, P] = {}
        self._heap: list[tuple[int, int, P]] = []
        self._clock = 0
        self._number = 0

    def join(self, party: P) -> None:
        """It begins to wait, or waits on."""
        if party.is_in_turn:
            return
        party.is_in_turn = True
        # Turns that it did not want while nobody of it waited are gone, but for a few.
        party.due = max(party.due, self._clock - CREDIT)
        self._push(party)

    def _push(self, party: P) -> None:
        self._number += 1
        heapq.heappush(self._heap, (party.due, self._number, party))

    def __len__(self) -> int:
        """About how many take turns."""
        return len(self._heap)

    def next(self) -> P:
        """Whose turn it is; somebody waits."""
        while True:
            invariant(self._heap, "somebody waits, and it is nobody's turn")
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
        """Its turn is used. `party` is what `next` returned."""
        heapq.heappop(self._heap)
        self._clock = party.due
        party.due += cost
        if party.waiting:
            self._push(party)
        else:
            party.is_in_turn = False

    def forget(self) -> None:
        """Drop whoever neither waits nor owes anything; of debtors the oldest beyond the bound."""
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
    """Who was let in and does not stand in line yet: a door that forgot them would let in a crowd
    that comes at once as if nobody stood there."""

    __slots__ = ("all", "tenants", "users")

    def __init__(self) -> None:
        self.all = 0
        self.tenants: dict[str, int] = {}
        self.users: dict[tuple[str, str], int] = {}

    def more(self, tenant: str, user: str, by: int) -> None:
        """So many more of a user, or so many fewer."""
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
        """How many of a tenant wait."""
        found = self._turns.parties.get(tenant)
        return found.waiting if found is not None else 0

    def is_crowded(self, tenant: str, user: str, enough: int, coming: ArrivingRequests) -> bool:
        """Whether enough wait or are coming, and of this tenant, and of this user of it, no less
        than a share."""
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
        """How many of each tenant wait, of those of whom any do."""
        return {it.name: it.waiting for it in self._turns.parties.values() if it.waiting}

    @property
    def next_tenant(self) -> str:
        """Whose turn it is; somebody waits."""
        return self._turns.next().name

    def push(self, item: W) -> tuple[bool, W | None]:
        """Put something into line: whether there was room, and who had to give up a place."""
        tenant = self._turns.parties.get(item.tenant)
        if tenant is None:
            tenant = self._turns.parties[item.tenant] = _Tenant(item.tenant)
        user = tenant.turns.parties.get(item.user)
        if user is None:
            user = tenant.turns.parties[item.user] = _User(item.user)
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
        """The next in turn; somebody waits."""
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
        """Take something out of line that is in it."""
        invariant(item.is_in_line, "what is not in line cannot be taken out of it")
        tenant = self._turns.parties[item.tenant]
        user = tenant.turns.parties[item.user]
        self._left(item, tenant, user)
        # What leaves is mostly the oldest; others are skipped later, unless they become many.
        while user.line and not user.line[0].is_in_line:
            user.line.popleft()
        if len(user.line) > 2 * user.waiting + _GONE_MAX:
            user.line = deque([it for it in user.line if it.is_in_line])

    def charge(self, tenant: str, user: str, cost: int) -> None:
        """Something that was let through has turned out to cost so much more."""
        found = self._turns.parties.get(tenant)
        if found is None:
            return
        found.due += cost
        inside = found.turns.parties.get(user)
        if inside is not None:
            inside.due += cost

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
        """The youngest of the longest line, if that is longer than the newcomer's will be."""
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
        """Keep what is remembered in proportion to what waits."""
        if len(tenant.turns.parties) > 2 * tenant.waiting + DEBTORS_MAX:
            tenant.turns.forget()
        if len(self._turns.parties) > 2 * self._waiting + DEBTORS_MAX:
            self._turns.forget()
