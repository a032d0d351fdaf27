"""Rates of each tenant at this server, from its quota: requests (`spec.requestsPerSecond`) and
bytes written (`spec.writeBytesPerSecond`).

The size of a write is known when it is done, since a patch of a few bytes writes the whole object.
So it is charged afterwards, and a tenant that is too far ahead waits before its next write.
Deleting is free.

`admission` asks here for requests of people; `commit/flow/rates` counts. A changed quota applies
once the hub has received it.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.flow.rates import RATE, ExhaustedBudgets, Rate, Rates
from holdfast.model.kinds.tenant import Quota
from holdfast.model.quota.charging import QUOTA_NAME
from holdfast.model.registry import kind_of_struct
from holdfast.observe.entries import ObjectEntry
from holdfast.observe.watch_hub import WatchHub

_QUOTA = kind_of_struct(Quota)
_QUOTAS_MAX = 10_000
# Bytes are counted in these, since a rate has no finer grain than a millionth of a second.
_KIB = 1 << 10
# What a tenant without a rate of its own may write: more than any controller needs, and little
# enough that the history, which is compacted by size, never fills a store of the usual size.
WRITE_KIB_PER_S = 4 << 10
WRITE_BURST_S = 30
_WRITES = Rate(WRITE_KIB_PER_S, WRITE_BURST_S)


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    requests_per_second: int | None = None
    write_bytes_per_second: int | None = None


class _Limited(msgspec.Struct, frozen=True, gc=False):
    """The part of a quota that is needed here."""

    spec: _Spec = _Spec()


_LIMITED = msgspec.json.Decoder(_Limited)


class _Both(msgspec.Struct, frozen=True, gc=False):
    requests: Rate = Rate()
    writes: Rate = _WRITES


_DEFAULT = _Both()


class TenantRates:
    """See the module's docstring."""

    def __init__(self, hub: WatchHub) -> None:
        self._hub = hub
        self._rates, self._written = Rates(), Rates()
        # The rates of each tenant, and the version of the quota that they come from.
        self._known: dict[str, tuple[ObjectEntry, _Both]] = {}
        self.refused = 0
        self.exhausted = ExhaustedBudgets()

    def take(self, tenant: str, now_ms: int) -> int:
        """Count one request: 0 if it may run, else the milliseconds after which it may."""
        wait_ms = self._rates.take(tenant, self._of(tenant).requests, now_ms)
        if wait_ms:
            self.refused += 1
            self.exhausted.add(tenant, RATE)
        return wait_ms

    def charge(self, tenant: str, cost: int, now_ms: int) -> None:
        """Charge a request that counts as this many."""
        self._rates.charge(tenant, self._of(tenant).requests, cost, now_ms)

    def write_wait_ms(self, tenant: str, now_ms: int) -> int:
        """The milliseconds after which the tenant may write again; 0 if it may now."""
        wait_ms = self._written.wait_ms(tenant, self._of(tenant).writes, now_ms)
        if wait_ms:
            self.refused += 1
            self.exhausted.add(tenant, RATE)
        return wait_ms

    def charge_written(self, tenant: str, size: int, now_ms: int) -> None:
        """Charge the tenant for bytes written."""
        rate = self._of(tenant).writes
        self._written.charge(tenant, rate, -(-size // _KIB), now_ms)

    def _of(self, tenant: str) -> _Both:
        seen = self._hub.get(_QUOTA, tenant, QUOTA_NAME)
        if seen is None:
            return _DEFAULT
        known = self._known.get(tenant)
        if known is None or known[0] is not seen:
            if len(self._known) >= _QUOTAS_MAX:
                self._known.clear()
            try:
                both = _rates_of(_LIMITED.decode(seen.data).spec)
            except msgspec.DecodeError:
                both = _DEFAULT
            known = self._known[tenant] = (seen, both)
        return known[1]


def _rates_of(spec: _Spec) -> _Both:
    writes, stated = _WRITES, spec.write_bytes_per_second
    if stated is not None:
        writes = Rate(max(1, stated // _KIB), WRITE_BURST_S)
    return _Both(Rate(spec.requests_per_second or 0), writes)
