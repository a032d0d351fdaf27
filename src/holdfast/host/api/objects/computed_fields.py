"""Fields of a status that are not stored: the server fills them in when it answers.

`used` of a Quota comes from the ledger, `lastHeartbeat` of a Node from what servers have heard.
Every bind changes the first and every heartbeat the second. If they were parts of the stored
object, each would write one object more and wake all its watchers; a controller that copied them
now and then would lag behind. So gets, lists, tables, the events of a watch and the answers to
writes show what holds at that moment. It is no change of the object: it makes no event by itself.

Components decide by neither field, and follow all nodes and quotas: they get what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from holdfast.commit.ledgers.charges import single_tenant_cohort
from holdfast.commit.record_encoding import decode_or_none as record_value
from holdfast.host.api.call import Call
from holdfast.host.api.objects import presentation
from holdfast.host.api.objects.negotiation import PARTIAL
from holdfast.host.process import clock
from holdfast.model import keys
from holdfast.model.access.identity import acts_as
from holdfast.model.encoding.wire import encode, readable
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.tenant import Quota, QuotaStatus
from holdfast.model.ledger import Amounts, QuotaLedger, TenantUse
from holdfast.model.lifecycle import Actor
from holdfast.model.quantity import render
from holdfast.model.time import timestamp
from holdfast.observe.recent_changes import ADDED, DELETED, MODIFIED, line
from holdfast.store.contract import Page, Store

LEDGERS = f"{keys.LEDGERS}quota/"
PAGE = 500
# Up to this many ledgers are read one by one.
FEW = 8
_PRESENT = (ADDED, MODIFIED)
_PEOPLE = (Actor.USER, Actor.OPERATOR)


def are_computed(call: Call) -> bool:
    """Whether the answer to this call has fields that are not stored."""
    if call.kind.struct not in (Quota, Node) or call.shape == PARTIAL:
        return False
    return any(actor in _PEOPLE for actor in acts_as(call.identity))


async def with_computed_fields(call: Call, objects: Sequence[bytes]) -> Sequence[bytes]:
    """The objects as they are shown; the very same ones where nothing is computed."""
    if not are_computed(call) or not objects:
        return objects
    if call.kind.struct is Quota:
        return await with_quota_use(call.services.store, objects)
    times_ms = await call.services.heartbeat_times.times_ms(call.services.renewals)
    return await _with_heartbeats(call, objects, times_ms)


async def with_computed_fields_if_known(call: Call, objects: Sequence[bytes]) -> Sequence[bytes]:
    """The same for what is answered in any case: as stored, if the store cannot be read now."""
    try:
        return await with_computed_fields(call, objects)
    except HoldfastError:
        return objects


# Nodes -------------------------------------------------------------------------------------------


async def _with_heartbeats(
    call: Call, nodes: Sequence[bytes], times_ms: dict[str, int]
) -> list[bytes]:
    share = call.services.loop_share
    found = []
    for data in nodes:
        if share.is_over:
            await share.rest()
        node = readable(Node, data)
        at_ms = times_ms.get(node.name) if node is not None else None
        if node is not None and at_ms is not None:
            status = msgspec.structs.replace(node.status, last_heartbeat=timestamp(at_ms))
            data = encode(msgspec.structs.replace(node, status=status))
        found.append(data)
    return found


# Quotas ------------------------------------------------------------------------------------------


class _Use(msgspec.Struct, frozen=True):
    """What a tenant uses, and the revision of the store at which its ledger was read."""

    use: TenantUse
    revision: int


async def with_quota_use(store: Store, quotas: Sequence[bytes]) -> list[bytes]:
    """These Quotas, each with what its tenant uses now."""
    decoded = [readable(Quota, data) for data in quotas]
    uses = await _uses(store, {_ledger_of(quota) for quota in decoded if quota is not None})
    now_ms = clock.now().wall_ms
    pairs = zip(quotas, decoded, strict=True)
    return [_with_use(data, quota, uses, now_ms) for data, quota in pairs]


def _ledger_of(quota: Quota) -> str:
    return keys.quota_ledger(quota.spec.cohort or single_tenant_cohort(quota.namespace))


async def _uses(store: Store, wanted: set[str]) -> dict[str, _Use]:
    """What tenants use by these ledgers. Few ledgers are read one by one, else all of them."""
    if len(wanted) > FEW:
        pages = [page async for page in _pages(store, LEDGERS, keys.after_prefix(LEDGERS))]
    else:
        pages = [await store.range(key, f"{key}\0", limit=1) for key in sorted(wanted)]
    uses: dict[str, _Use] = {}
    for page in pages:
        for ledger in map(record_value, page.records):
            if isinstance(ledger, QuotaLedger):
                uses |= {it: _Use(use, page.revision) for it, use in ledger.used.items()}
    return uses


async def _pages(store: Store, start: str | None, end: str) -> AsyncIterator[Page]:
    while start is not None:
        page = await store.range(start, end, limit=PAGE)
        yield page
        start = page.more_from


def _with_use(data: bytes, quota: Quota | None, uses: dict[str, _Use], now_ms: int) -> bytes:
    found = uses.get(quota.namespace) if quota is not None else None
    if quota is None or found is None:
        return data
    use = found.use
    used = {"hard": _rendered(use.hard), "reclaimable": _rendered(use.reclaimable)}
    status: QuotaStatus = msgspec.structs.replace(
        quota.status,
        used={name: sums for name, sums in used.items() if sums},
        used_revision=found.revision,
        used_at=timestamp(now_ms),
    )
    return encode(msgspec.structs.replace(quota, status=status))


def _rendered(amounts: Amounts) -> dict[str, str]:
    return {resource: render(resource, units) for resource, units in amounts.items()}


# Events of a watch -------------------------------------------------------------------------------


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_EVENTS = msgspec.json.Decoder(_Event)


async def with_computed_events(call: Call, piece: bytes) -> bytes:
    """A piece of a watch that was opened with `presentation.stored_form_of`, as it is shown.

    An object that is gone keeps what was stored of it last.
    """
    events = [_EVENTS.decode(text) for text in piece.split(b"\n") if text]
    stored = [bytes(it.object) for it in events if it.type in _PRESENT]
    filled = iter(await with_computed_fields_if_known(call, stored))
    lines = []
    for event in events:
        data = next(filled) if event.type in _PRESENT else bytes(event.object)
        if event.type in (*_PRESENT, DELETED):
            data = presentation.one(call.route.facade, call.shape, call.kind, data)
        lines.append(line(event.type, data))
    return b"".join(lines)
