"""Caps on open watches and connections: per user, per tenant, and for all people.

`host/api` has one for each of the two. Watches and connections last, so they are limited by number
and not by queueing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import msgspec

from holdfast.commit.flow.request_classes import Flow, RequestClass
from holdfast.model.errors import invariant

K = TypeVar("K", bound=Hashable)


class Cap(msgspec.Struct, frozen=True, gc=False):
    """The cap of one user, and of one tenant."""

    user_max: int
    tenant_max: int


_ANY = 100_000
# A component opens a few for each kind; an agent's pool is bounded by its client.
COMPONENTS = Cap(1_000, _ANY)
OPERATORS = Cap(4_000, 8_000)
TENANTS = Cap(1_000, 2_000)
ANONYMOUS_CALLERS = Cap(200, 200)
DEFAULT_CAPS: Mapping[RequestClass, Cap] = {
    RequestClass.LIFELINE: COMPONENTS,
    RequestClass.SYSTEM: COMPONENTS,
    RequestClass.OPERATOR: OPERATORS,
    RequestClass.TENANT: TENANTS,
    RequestClass.BACKGROUND: ANONYMOUS_CALLERS,
}


class Caps:
    """See the module's docstring."""

    def __init__(self, caps: Mapping[RequestClass, Cap] = DEFAULT_CAPS, all_max: int = 20_000):
        self._caps, self._all_max = caps, all_max
        self._users: dict[tuple[str, str], int] = {}
        self._tenants: dict[str, int] = {}
        self._all = 0
        self.refused = 0

    def __len__(self) -> int:
        return self._all

    @property
    def tenants(self) -> Mapping[str, int]:
        """The number that each tenant has open."""
        return self._tenants

    def take(self, flow: Flow) -> bool:
        """Open one more. Returns whether that is allowed."""
        cap, user = self._caps[flow.request_class], (flow.tenant, flow.user)
        of_user, of_tenant = self._users.get(user, 0), self._tenants.get(flow.tenant, 0)
        # Components are admitted however many people connect: running work depends on them.
        is_full = self._all >= self._all_max and flow.request_class > RequestClass.SYSTEM
        if is_full or of_user >= cap.user_max or of_tenant >= cap.tenant_max:
            self.refused += 1
            return False
        self._users[user] = of_user + 1
        self._tenants[flow.tenant] = of_tenant + 1
        self._all += 1
        return True

    def give_back(self, flow: Flow) -> None:
        """Close one that was opened."""
        invariant(self._all > 0, f"{flow.user} gives back what it never took")
        self._all -= 1
        _less(self._users, (flow.tenant, flow.user))
        _less(self._tenants, flow.tenant)


def _less(counts: dict[K, int], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


# The bytes of partly received requests that may be held: of a tenant, and of all people.
#
# `host/api/flow/request_admission` asks here before it reads a body that does not arrive in one
# piece. Bodies are read before a request is queued, so that a slow sender holds no seat; the bytes
# read must not fill the memory.

ALL_MAX = 256 << 20
TENANT_MAX = 64 << 20


class BytesHeld:
    """See the module's docstring."""

    def __init__(self, all_max: int = ALL_MAX, tenant_max: int = TENANT_MAX) -> None:
        self._all_max, self._tenant_max = all_max, tenant_max
        self._tenants: dict[str, int] = {}
        self.all = 0
        self.refused = 0

    def take(self, flow: Flow, size: int) -> bool:
        """Hold this many more bytes. Returns whether there is room."""
        of_tenant = self._tenants.get(flow.tenant, 0) + size
        # Requests of people never take the room of a renewal.
        is_full = self.all + size > self._all_max and flow.request_class > RequestClass.SYSTEM
        if is_full or of_tenant > self._tenant_max:
            self.refused += 1
            return False
        self._tenants[flow.tenant] = of_tenant
        self.all += size
        return True

    def give_back(self, flow: Flow, size: int) -> None:
        """Release bytes that were held."""
        left = self._tenants.get(flow.tenant, 0) - size
        invariant(left >= 0, f"{flow.tenant} gives back more than it took")
        self.all -= size
        if left:
            self._tenants[flow.tenant] = left
        else:
            del self._tenants[flow.tenant]
