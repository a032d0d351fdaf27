"""How many bytes of requests that are still arriving may be held: of a tenant, and of all people.

`host/api/turns` asks here before it reads a body that does not come in one piece. Bodies are read
before a request has its turn, so that whoever sends slowly keeps nobody from theirs; what is read
must not fill the memory.
"""

from __future__ import annotations

from holdfast.commit.classes import Flow, RequestClass
from holdfast.model.errors import invariant

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
        """Hold so many more; whether there is room."""
        of_tenant = self._tenants.get(flow.tenant, 0) + size
        # What people send never takes the room of a renewal.
        is_full = self.all + size > self._all_max and flow.request_class > RequestClass.SYSTEM
        if is_full or of_tenant > self._tenant_max:
            self.refused += 1
            return False
        self._tenants[flow.tenant] = of_tenant
        self.all += size
        return True

    def give_back(self, flow: Flow, size: int) -> None:
        """What was taken is not held any more."""
        left = self._tenants.get(flow.tenant, 0) - size
        invariant(left >= 0, f"{flow.tenant} gives back more than it took")
        self.all -= size
        if left:
            self._tenants[flow.tenant] = left
        else:
            del self._tenants[flow.tenant]
