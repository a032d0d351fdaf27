"""What Quotas say of their use, filled in from the ledgers whenever they are read.

Every bind changes what a tenant uses. Were that a part of the stored object, each bind would write
one object more and wake all who follow it; a controller that copied it now and then would be behind
what decides. So a read shows what the ledger says at that moment. It is no change of the object:
watches do not tell of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from holdfast.commit.charges import alone
from holdfast.commit.records import readable as record_value
from holdfast.model import keys
from holdfast.model.kinds.quota import Quota, QuotaStatus
from holdfast.model.ledger import Amounts, QuotaLedger, TenantUse
from holdfast.model.quantity import render
from holdfast.model.wire import encode, readable
from holdfast.store.contract import Page, Store

LEDGERS = f"{keys.LEDGERS}quota/"
PAGE = 500
# So many ledgers are read one by one.
FEW = 8


async def filled(store: Store, quotas: Sequence[bytes]) -> list[bytes]:
    """These Quotas, each with what its tenant uses now."""
    decoded = [readable(Quota, data) for data in quotas]
    uses = await _uses(store, {_ledger_of(quota) for quota in decoded if quota is not None})
    return [_with_use(data, quota, uses) for data, quota in zip(quotas, decoded, strict=True)]


def _ledger_of(quota: Quota) -> str:
    return keys.quota_ledger(quota.spec.cohort or alone(quota.namespace))


async def _uses(store: Store, wanted: set[str]) -> dict[str, TenantUse]:
    """What tenants use by these ledgers. Few are read one by one, many with all others."""
    if len(wanted) > FEW:
        pages = [page async for page in _pages(store, LEDGERS, keys.after_prefix(LEDGERS))]
    else:
        pages = [await store.range(key, f"{key}\0", limit=1) for key in sorted(wanted)]
    uses: dict[str, TenantUse] = {}
    for ledger in (record_value(record) for page in pages for record in page.records):
        if isinstance(ledger, QuotaLedger):
            uses |= ledger.used
    return uses


async def _pages(store: Store, start: str | None, end: str) -> AsyncIterator[Page]:
    while start is not None:
        page = await store.range(start, end, limit=PAGE)
        yield page
        start = page.more_from


def _with_use(data: bytes, quota: Quota | None, uses: dict[str, TenantUse]) -> bytes:
    use = uses.get(quota.namespace) if quota is not None else None
    if quota is None or use is None:
        return data
    used = {"hard": _rendered(use.hard), "reclaimable": _rendered(use.reclaimable)}
    stated = {name: sums for name, sums in used.items() if sums}
    status: QuotaStatus = msgspec.structs.replace(quota.status, used=stated)
    return encode(msgspec.structs.replace(quota, status=status))


def _rendered(amounts: Amounts) -> dict[str, str]:
    return {resource: render(resource, units) for resource, units in amounts.items()}
