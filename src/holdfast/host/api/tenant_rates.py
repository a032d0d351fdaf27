"""How often each tenant may ask this server, as its quota says: `spec.requestsPerSecond`.

`turns` asks here for people; `commit/rates` counts. A quota that changes counts from when the hub
has heard of it.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.exhausted import RATE, Exhausted
from holdfast.commit.rates import Rate, Rates
from holdfast.model.kinds.quota import Quota
from holdfast.model.registry import kind_of_struct
from holdfast.model.validation.budgets import QUOTA_NAME
from holdfast.observe.entries import Entry
from holdfast.observe.hub import Hub

_QUOTA = kind_of_struct(Quota)
_QUOTAS_MAX = 10_000
_ANY_RATE = Rate()


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    requests_per_second: int | None = None


class _Limited(msgspec.Struct, frozen=True, gc=False):
    """As much of a quota as is asked for here."""

    spec: _Spec = _Spec()


_LIMITED = msgspec.json.Decoder(_Limited)


class TenantRates:
    """See the module's docstring."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._rates = Rates()
        # What each quota says, and the very quota that said it.
        self._known: dict[str, tuple[Entry, Rate]] = {}
        self.refused = 0
        self.exhausted = Exhausted()

    def take(self, tenant: str, now_ms: int) -> int:
        """One more request: 0 if it may be made, else after how many milliseconds it may."""
        wait_ms = self._rates.take(tenant, self._of(tenant), now_ms)
        if wait_ms:
            self.refused += 1
            self.exhausted.add(tenant, RATE)
        return wait_ms

    def charge(self, tenant: str, cost: int, now_ms: int) -> None:
        """A request has turned out to be so many."""
        self._rates.charge(tenant, self._of(tenant), cost, now_ms)

    def _of(self, tenant: str) -> Rate:
        seen = self._hub.get(_QUOTA, tenant, QUOTA_NAME)
        if seen is None:
            return _ANY_RATE
        known = self._known.get(tenant)
        if known is None or known[0] is not seen:
            if len(self._known) >= _QUOTAS_MAX:
                self._known.clear()
            rate = Rate(_LIMITED.decode(seen.data).spec.requests_per_second or 0)
            known = self._known[tenant] = (seen, rate)
        return known[1]
