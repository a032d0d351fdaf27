"""Records in quarantine over HTTP: what is wrong, and an operator's repairs.

`holdfast repair` asks. These are not Kubernetes resources and do not appear in discovery. This
module computes what a repair writes, from the store at one revision; `commit/quarantine_repair`
decides whether it may be written, and compares the record with the one that was read here.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from holdfast.commit.flow.request_classes import RequestPurpose, classify
from holdfast.commit.ledgers.ledger_sums import StoreContents
from holdfast.commit.ledgers.rebuild import rebuild_ledger
from holdfast.commit.ledgers.recount import recount
from holdfast.commit.record_encoding import EpochFloor, decode_or_none
from holdfast.host.api.call import Call, Route, reply
from holdfast.host.api.objects.bodies import demand_json
from holdfast.host.client.paths import GROUP
from holdfast.model import keys
from holdfast.model.access.identity import OPERATORS
from holdfast.model.access.rights import Permission
from holdfast.model.encoding.problems import describe_error, malformed_error
from holdfast.model.errors import Expired, Forbidden, Invalid, Missing
from holdfast.model.kinds.replica import Replica
from holdfast.model.plane_format import FORMAT, format_refusal
from holdfast.model.quarantine import SHOW, Quarantine, Quarantined, Repair, Repaired
from holdfast.model.quota.ledger import PlacesLedger, places_page
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import RepairAction, RepairRecord
from holdfast.model.transaction import ABSENT, Record
from holdfast.store.contract import Store

PAGE = 500
# At most this many are listed; a plane with more of them has one cause for all.
RECORDS_MAX = 1_000
# How many earlier versions of a record are read before a restore gives up.
STEPS_BACK_MAX = 32
DISAGREEMENTS_MAX = 20
# More epochs than can be lost between two versions of their floor.
FLOOR_RAISE = 1_000_000
_ENCODER = msgspec.json.Encoder()
_REPAIR = msgspec.json.Decoder(Repair)


def _demand(call: Call, verb: str) -> None:
    call.demand_authenticated()
    if not call.services.rights.may(call.identity, Permission(verb, "quarantine")):
        raise Forbidden(
            f'quarantine is forbidden: User "{call.identity.name}" cannot {verb} quarantine; '
            f"members of the group {OPERATORS} can",
            code=Reason.NOT_ALLOWED,
        )


async def show(call: Call) -> web.StreamResponse:
    """Everything in quarantine, and the records that this server's watch could not decode."""
    _demand(call, "get")
    found = await quarantined_records(call.services.store)
    unreadable = dict(list(call.services.hub.unreadable.items())[:RECORDS_MAX])
    plane = await _record(call.services.store, keys.plane_format(), None)
    why = format_refusal(plane.value) if plane is not None else ""
    if why:
        unreadable[keys.plane_format()] = why
    return reply(200, _ENCODER.encode(Quarantine(found, unreadable)))


async def quarantined_records(store: Store) -> tuple[Quarantined, ...]:
    """All records in quarantine."""
    end = keys.after_prefix(keys.QUARANTINE)
    page = await store.range(keys.QUARANTINE, end, limit=RECORDS_MAX)
    return tuple(it for it in map(decode_or_none, page.records) if isinstance(it, Quarantined))


async def repair(call: Call) -> web.StreamResponse:
    """Compute what a record should be, and write it unless this is a dry run."""
    _demand(call, "update")
    demand_json(call)
    try:
        wanted = _REPAIR.decode(await call.body())
        if wanted.action == SHOW:
            return reply(200, _ENCODER.encode(await _inspect(call.services.store, wanted)))
        action = RepairAction(wanted.action)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_error(f"is not a repair: {describe_error(error)}") from None
    except ValueError:
        allowed = ", ".join((SHOW, *(it.value for it in RepairAction)))
        raise Invalid(f"action: {wanted.action[:40]!r} must be one of {allowed}") from None
    async with call.services.explaining.of(classify(call.identity, RequestPurpose.READ)):
        found = await find_repair(call.services.store, wanted, action)
    request = RepairRecord(
        wanted.key,
        action,
        wanted.seen or found.seen,
        wanted.word or ("a dry run" if wanted.dry_run else ""),
        found.after if action is not RepairAction.RELEASE else None,
        dry_run=wanted.dry_run,
    )
    verdict = await call.ask(request)
    if isinstance(verdict, Refusal):
        return call.refusal_response(verdict)
    return reply(200, _ENCODER.encode(msgspec.structs.replace(found, done=not wanted.dry_run)))


async def _inspect(store: Store, wanted: Repair) -> Repaired:
    """The contents of a record in quarantine. Raises Missing for any other record."""
    if not any(it.key == wanted.key for it in await quarantined_records(store)):
        raise Missing(f"{wanted.key[:200]} is not in quarantine")
    return await find_repair(store, wanted, RepairAction.RELEASE)


async def find_repair(store: Store, wanted: Repair, action: RepairAction) -> Repaired:
    """What the record is, and what it would be after this action. Writes nothing."""
    record = await _record(store, wanted.key, None)
    seen = record.modified if record is not None else ABSENT
    before = _shown(record.value) if record is not None else None
    found = Repaired(wanted.key, seen, done=False, before=before, after=before)
    if action is RepairAction.RELEASE:
        return found
    if wanted.key == keys.plane_format():
        # The newest format that this version knows: one that is too high keeps older servers from
        # writing, one that is too low would let them write what they misunderstand.
        return msgspec.structs.replace(found, after={"format": FORMAT}, source=seen)
    if action is RepairAction.RESTORE:
        earlier, lost = await _earlier(store, wanted.key, record)
        value = await _with_raised_floors(store, earlier, lost)
        return msgspec.structs.replace(found, after=value, source=earlier.modified)
    records, revision = await _everything(store)
    value = rebuild_ledger(StoreContents(records), wanted.key)
    after = [it for it in records if it.key != wanted.key]
    after.append(Record(wanted.key, _ENCODER.encode(value), seen, seen))
    return msgspec.structs.replace(
        found,
        after=msgspec.to_builtins(value),
        source=revision,
        disagreements=tuple(recount(after)[:DISAGREEMENTS_MAX]),
    )


async def _record(store: Store, key: str, at: int | None) -> Record | None:
    page = await store.range(key, key + "\0", limit=1, at=at)
    return page.records[0] if page.records else None


async def _earlier(store: Store, key: str, record: Record | None) -> tuple[Record, list[int]]:
    """The last version of a record that can be decoded, and the revisions of the later ones.

    Raises Missing.
    """
    at = record.modified if record is not None else await store.revision() + 1
    lost = [at] if record is not None else []
    for _ in range(STEPS_BACK_MAX):
        if at <= 1:
            break
        try:
            earlier = await _record(store, key, at - 1)
        except Expired:
            break
        if earlier is None:
            break
        if decode_or_none(earlier) is not None:
            return earlier, lost
        at = earlier.modified
        lost.append(at)
    raise Missing(f"the history has no readable version of {key}; restore it from a backup")


async def _with_raised_floors(store: Store, earlier: Record, lost: list[int]) -> Any:
    """An earlier version of a record, with what must never decrease brought up to date.

    A floor of epochs is raised beyond all that were lost since. A page of places gets the replicas
    that its lost versions recorded as gone: the same transactions deleted those replicas.
    """
    value = decode_or_none(earlier)
    if isinstance(value, EpochFloor):
        return msgspec.to_builtins(EpochFloor(value.epoch + FLOOR_RAISE))
    if not isinstance(value, PlacesLedger):
        return _shown(earlier.value)
    namespace, workload, page = earlier.key.removeprefix(f"{keys.LEDGERS}places/").split("/")
    reached = dict(value.reached)
    for at in lost:
        for gone in await _gone(store, namespace, workload, at):
            place = gone.spec.ordinal
            if places_page(place) == int(page):
                reached[place] = max(reached.get(place, -1), gone.spec.incarnation)
    return msgspec.to_builtins(PlacesLedger(reached), str_keys=True)


async def _gone(store: Store, namespace: str, workload: str, at: int) -> list[Replica]:
    """The replicas of a workload that one revision deleted."""
    prefix = f"{keys.kind_prefix(kind_of_struct(Replica), namespace)}{workload}-"
    try:
        before, _ = await _all_under(store, prefix, at - 1)
        after, _ = await _all_under(store, prefix, at)
    except Expired:
        raise Missing(f"the history does not go back to revision {at - 1}") from None
    left = {it.key for it in after}
    return [
        replica
        for replica in (decode_or_none(it) for it in before if it.key not in left)
        if isinstance(replica, Replica) and replica.spec.workload == workload
    ]


async def _everything(store: Store) -> tuple[list[Record], int]:
    """All objects and ledgers as of one revision."""
    found: list[Record] = []
    at: int | None = None
    for prefix in (keys.OBJECTS, keys.LEDGERS, keys.EPOCHS):
        records, at = await _all_under(store, prefix, at)
        found += records
    return found, at or 0


async def _all_under(store: Store, prefix: str, at: int | None) -> tuple[list[Record], int | None]:
    """All records below a prefix as of one revision, and that revision."""
    found: list[Record] = []
    start: str | None = prefix
    while start is not None:
        page = await store.range(start, keys.after_prefix(prefix), limit=PAGE, at=at)
        at = page.revision if at is None else at
        found += page.records
        start = page.more_from
    return found, at


def _shown(value: bytes) -> Any:
    """A record for people: decoded if it is JSON, else as text."""
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return value.decode(errors="replace")


ROUTES = (
    Route(f"{GROUP}/quarantine", "GET", "get", show),
    Route(f"{GROUP}/quarantine/repairs", "POST", "repair", repair),
)
