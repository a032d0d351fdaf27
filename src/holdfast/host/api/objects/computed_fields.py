"""Fields of a status that are not stored: the server fills them in when it answers.

`used` of a Quota comes from the ledger, `lastHeartbeat` of a Node from what servers have heard, and
`fairness` of a Tenant from the pulses of schedulers. Every bind changes the first and the last, and
every heartbeat the second. If they were parts of the stored object, each would write one object
more and wake all its watchers; a controller that copied them now and then would lag behind. So
gets, lists, tables, the events of a watch and the answers to writes show what holds at that moment.
It is no change of the object: it makes no event by itself.

Components decide by none of them, and follow all nodes and quotas: they get what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from holdfast.commit.record_encoding import decode_or_none as record_value
from holdfast.host.api.call import Call
from holdfast.host.api.objects import presentation
from holdfast.host.api.objects.negotiation import PARTIAL
from holdfast.host.process import clock
from holdfast.host.server.heartbeat_times import NodeSigns, replica_use
from holdfast.model import keys
from holdfast.model.access.identity import acts_as
from holdfast.model.encoding.wire import encode, readable
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Quota, QuotaStatus, Tenant, TenantFairness
from holdfast.model.lifecycle import CHARGED, Actor
from holdfast.model.nodes.heartbeat import ReplicaUse, SeenUse
from holdfast.model.pulse import TenantStanding
from holdfast.model.quantity import Resource, render
from holdfast.model.quota.charging import quota_cohort
from holdfast.model.quota.ledger import Amounts, QuotaLedger, TenantUse
from holdfast.model.time import timestamp
from holdfast.model.transaction import Page
from holdfast.observe.recent_changes import ADDED, DELETED, MODIFIED, line
from holdfast.store.contract import Store

LEDGERS = f"{keys.LEDGERS}quota/"
PAGE = 500
# Up to this many ledgers are read one by one.
FEW = 8
_PRESENT = (ADDED, MODIFIED)
_PEOPLE = (Actor.USER, Actor.OPERATOR)


def are_computed(call: Call) -> bool:
    """Whether the answer to this call has fields that are not stored."""
    if call.kind.struct not in (Quota, Node, Replica, Tenant) or call.shape == PARTIAL:
        return False
    if call.kind.struct is Replica and (not call.name or call.part):
        # A list of all replicas is not decoded for this.
        return False
    return any(actor in _PEOPLE for actor in acts_as(call.identity))


async def with_computed_fields(call: Call, objects: Sequence[bytes]) -> Sequence[bytes]:
    """The objects as they are shown; the very same ones where nothing is computed."""
    if not are_computed(call) or not objects:
        return objects
    if call.kind.struct is Quota:
        return await with_quota_use(call.services.store, objects)
    if call.kind.struct is Tenant:
        return _with_fairness(call, objects)
    if call.kind.struct is Replica:
        return [await _with_replica_use(call, data) for data in objects]
    signs = await call.services.heartbeat_times.signs(call.services.renewals)
    return await _with_signs(call, objects, signs)


async def with_computed_fields_if_known(call: Call, objects: Sequence[bytes]) -> Sequence[bytes]:
    """The same for what is answered in any case: as stored, if the store cannot be read now."""
    try:
        return await with_computed_fields(call, objects)
    except HoldfastError:
        return objects


# Nodes -------------------------------------------------------------------------------------------


async def _with_signs(
    call: Call, nodes: Sequence[bytes], signs: dict[str, NodeSigns]
) -> list[bytes]:
    share = call.services.loop_share
    found = []
    for data in nodes:
        if share.is_over:
            await share.rest()
        node = readable(Node, data)
        sign = signs.get(node.name) if node is not None else None
        if node is not None and sign is not None:
            status = msgspec.structs.replace(node.status, last_heartbeat=timestamp(sign.heard_ms))
            if sign.use is not None:
                used = _amounts(sign.use)
                at = timestamp(sign.used_ms)
                status = msgspec.structs.replace(status, used=used, used_at=at)
            data = encode(msgspec.structs.replace(node, status=status))
        found.append(data)
    return found


def _amounts(use: SeenUse | ReplicaUse) -> dict[str, str]:
    return {
        Resource.CPU.value: render(Resource.CPU, use.cpu_milli),
        Resource.MEMORY.value: render(Resource.MEMORY, use.memory_bytes),
    }


async def _with_replica_use(call: Call, data: bytes) -> bytes:
    replica = readable(Replica, data)
    binding = replica.status.binding if replica is not None else None
    if replica is None or binding is None or replica.status.state not in CHARGED:
        return data
    uid = replica.metadata.uid
    use = await replica_use(call.services.renewals, binding.node, uid)
    if use is None:
        return data
    status = msgspec.structs.replace(replica.status, used=_amounts(use))
    return encode(msgspec.structs.replace(replica, status=status))


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
    return keys.quota_ledger(quota_cohort(quota, quota.namespace))


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


# Tenants -----------------------------------------------------------------------------------------


def _with_fairness(call: Call, tenants: Sequence[bytes]) -> list[bytes]:
    pulses = call.services.pulses
    standings = pulses.standings() if pulses is not None else {}
    return [_with_standing(data, standings) for data in tenants]


def _with_standing(data: bytes, standings: dict[str, TenantStanding]) -> bytes:
    tenant = readable(Tenant, data) if standings else None
    found = standings.get(tenant.name) if tenant is not None else None
    if tenant is None or found is None:
        return data
    figures = TenantFairness(
        share=_percent(found.share),
        entitlement=_percent(found.entitlement),
        debt=_percent(found.entitlement - found.share),
        remembered=_percent(found.remembered),
        settle_by=timestamp(found.settle_by_ms) if found.settle_by_ms else None,
    )
    status = msgspec.structs.replace(tenant.status, fairness=figures)
    return encode(msgspec.structs.replace(tenant, status=status))


def _percent(part: float) -> str:
    # Without a minus before a zero.
    return f"{round(100 * part, 2) + 0.0:.2f}%"


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
