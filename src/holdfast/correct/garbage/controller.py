"""controller:garbage: removes what is no longer used, and nothing else.

It owns none of the objects that it removes; `commit/ledgers/leaks.py` proves each leak in the
transaction. Owners, finalizers and deadlines tell leaks from useful objects, never age alone:

    all owners gone               -> removed, also runs of a cron job that is gone
    foreground deletion           -> dependents removed, then the owner's finalizer
    orphan deletion               -> owner references removed, then the owner's finalizer
    reservation past its deadline,
    or without its owner          -> released; an ended one is removed after its deadline
    token expired or used up      -> removed
    tenant in deletion            -> contents removed, workloads first; then its finalizer
    events                        -> kept for an hour, with a maximum per tenant

controller:workload stops and removes the replicas of its workloads; controller:repair releases the
reservations of Reserved replicas. Other finalizers are left to their owners.

The keys are objects, `PLURAL/NAME` in their namespace; the events of a namespace are one key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_WORKLOAD,
    Controller,
    ReconcilePlan,
    operation,
)
from holdfast.correct.events.event_recorder import EventRecorder, event_of
from holdfast.correct.garbage.event_retention import EVENTS, EventsByAge
from holdfast.correct.garbage.ownership import (
    FOLLOWED,
    OWNED,
    TenantContents,
    blocks,
    has_replicas,
    is_dying,
    is_there,
    owned_by,
    owners_of,
)
from holdfast.correct.pacing import MonotonicWaits, RateLimiter, held_left_ms
from holdfast.correct.remembered import Notes, uids_of
from holdfast.model.kinds.access import TOKEN_RETENTION, Token
from holdfast.model.kinds.event import Event
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.lifecycle import Actor, State
from holdfast.model.machine import Question, Reply
from holdfast.model.meta import FOREGROUND_FINALIZER, ORPHAN_FINALIZER, Object
from holdfast.model.placement.gang import runs
from holdfast.model.quota.charging import is_active
from holdfast.model.registry import kind_of
from holdfast.model.requests import Accepted, DropReservation, Remove, Request, Term, Update
from holdfast.model.time import Instant, sooner, timestamp, wall_ms
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.snapshot import Snapshot

# Deadlines are on the authority's wall clock, which acts two seconds late itself. controller:repair
# acts earlier, since it can also name the replica that loses its reservation.
LATE_MS = 6_000
UNTOLD_PAUSE_MS = 1_000
PACED_PAUSE_MS = 1_000
DEPENDENTS_PER_PLAN_MAX = 64
ACTS_PER_S, ACTS_BURST = 20, 50

TELLER = "controller:garbage"
TOLD: Key = ("", "told")
# The kinds that are removed by age.
_TIMED = ("events", "reservations", "tokens")


def key_for(obj: Object) -> Key:
    """The key of an object of any kind."""
    return obj.namespace, f"{kind_of(obj).plural}/{obj.name}"


class GarbageController(Controller):
    """See the module's docstring."""

    actor = Actor.GARBAGE
    follows = FOLLOWED
    indexes = (BY_WORKLOAD, *OWNED, *EventsByAge.indexes)

    def __init__(self) -> None:
        self._pace = RateLimiter(ACTS_PER_S, ACTS_BURST)
        self._waits = MonotonicWaits(uids_of(*_TIMED))
        self._events = EventsByAge(self._waits)
        self._contents = TenantContents(self.identity)
        self._recorder = EventRecorder(self.identity)
        # Requested removals by uid, with reason and message of the event to record after each: an
        # answer need not contain the removed object.
        self._asked: Notes[str, tuple[Object, str, str]] = Notes()
        self.remembers = (
            self._pace,
            self._waits,
            self._events.rests_ms,
            self._recorder,
            self._asked,
        )

    # Keys ----------------------------------------------------------------------------------------

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """A removed object concerns its dependents and the owners that wait for it; any other
        change concerns the object itself."""
        obj: Any = change.object
        if isinstance(obj, Replica) and change.after is not None:
            return ()
        tenant: Tenant | None = view.get("tenants", "", obj.namespace) if obj.namespace else None
        keys = [key_for(tenant)] if tenant is not None and is_dying(tenant) else []
        if isinstance(obj, Event):
            return [*keys, (obj.namespace, EVENTS)] if _comes_or_goes(change) else ()
        if change.after is None:
            keys += [key_for(it) for it in owned_by(view, obj)]
        # Also an owner whose reference was just removed.
        owned: Any = change.before if change.before is not None else obj
        keys += [key_for(it) for it in owners_of(view, owned) if is_dying(it)]
        return [*keys, key_for(obj)] if _may_concern(obj) or change.after is None else keys

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        """All objects that may be a leak, also replicas whose workload is gone."""
        keys = [TOLD] if self._recorder.is_left else []
        for plural in self.follows:
            for obj in view.all(plural):
                if isinstance(obj, Event):
                    keys.append((obj.namespace, EVENTS))
                elif isinstance(obj, Replica):
                    if view.get("workloads", obj.namespace, obj.spec.workload) is None:
                        keys.append(key_for(obj))
                elif _may_concern(obj):
                    keys.append(key_for(obj))
        return dict.fromkeys(keys)

    def answered(
        self, request: Question, to: str, answer: Reply, sent_ms: int, now: Instant
    ) -> Iterable[Key]:
        """Record an event for each removal, once it is accepted."""
        self._recorder.answered(request, answer)
        if not isinstance(request, Remove | DropReservation):
            return ()
        asked = self._asked.pop(request.uid, None)
        if asked is None or not isinstance(answer, Accepted):
            return ()
        obj, reason, message = asked
        at = timestamp(now.wall_ms)
        self._recorder.add(event_of(obj, TELLER, reason, message, at, warns=False))
        return (TOLD,)

    # Decisions -----------------------------------------------------------------------------------

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        namespace, rest = key
        if key == TOLD:
            return ReconcilePlan(tuple(self._recorder.requests()))
        if rest == EVENTS:
            return self._events.reconcile(view, namespace, now)
        plural, _, name = rest.partition("/")
        obj: Any = view.get(plural, namespace, name)
        if obj is None:
            return ReconcilePlan()
        if isinstance(obj, Tenant):
            return self._contents.reconcile(view, obj)
        if is_dying(obj):
            return self._finalize(view, obj)
        if not view.knows_all_of(obj):
            return ReconcilePlan(wake_after_ms=UNTOLD_PAUSE_MS)
        owners = obj.metadata.owner_references
        is_ownerless = bool(owners) and not any(is_there(view, obj, it) for it in owners)
        if isinstance(obj, Reservation) and not is_ownerless and _is_record(obj):
            return ReconcilePlan()
        wait_ms = 0 if is_ownerless else _over_in_ms(obj, self._waits, now)
        if wait_ms is None or wait_ms > 0:
            return ReconcilePlan(wake_after_ms=wait_ms)
        if isinstance(obj, Reservation) and is_active(obj) and _is_waited_for(view, obj):
            return ReconcilePlan(wake_after_ms=UNTOLD_PAUSE_MS)
        if not self._pace.takes(now):
            return ReconcilePlan(wake_after_ms=PACED_PAUSE_MS)
        return ReconcilePlan((self._collect(obj, is_ownerless, term),))

    def _collect(self, obj: Object, is_ownerless: bool, term: Term) -> Request:
        """Remove an object. An ended reservation or token needs no event."""
        uid = obj.metadata.uid
        if isinstance(obj, Reservation) and is_active(obj):
            reason = "Ownerless" if is_ownerless else "Expired"
            owner = f"{obj.spec.owner.kind} {obj.spec.owner.name}"
            self._asked[uid] = obj, reason, f"released; it was held for {owner} ({obj.spec.intent})"
            done = operation(self.identity, uid, "drop", reason)
            return DropReservation(obj.namespace, obj.name, uid, reason, term, done)
        if is_ownerless:
            owners = ", ".join(f"{it.kind} {it.name}" for it in obj.metadata.owner_references)
            self._asked[uid] = obj, "Collected", f"its owner is gone: {owners}"
        return _removal(obj)

    def _finalize(self, view: Snapshot, obj: Object) -> ReconcilePlan:
        """Remove or orphan the dependents of an object in deletion, then remove its finalizer."""
        finalizers = obj.metadata.finalizers
        if FOREGROUND_FINALIZER in finalizers:
            own = list(owned_by(view, obj))
            left = [it for it in own if not is_dying(it)][:DEPENDENTS_PER_PLAN_MAX]
            waits = any(blocks(it, obj) for it in own) or has_replicas(view, obj)
            done = () if waits else (self._without(obj, FOREGROUND_FINALIZER),)
            return ReconcilePlan((*(_removal(it) for it in left), *done))
        if ORPHAN_FINALIZER in finalizers:
            own = list(owned_by(view, obj))
            orphans = tuple(self._orphan(it, obj) for it in own[:DEPENDENTS_PER_PLAN_MAX])
            return ReconcilePlan(orphans or (self._without(obj, ORPHAN_FINALIZER),))
        return ReconcilePlan()

    def _without(self, obj: Object, finalizer: str) -> Update:
        rest = tuple(it for it in obj.metadata.finalizers if it != finalizer)
        return self._changed(obj, "let-go", finalizers=rest)

    def _orphan(self, obj: Object, owner: Object) -> Update:
        uid = owner.metadata.uid
        rest = tuple(it for it in obj.metadata.owner_references if it.uid != uid)
        return self._changed(obj, f"disown-{uid}", owner_references=rest)

    def _changed(self, obj: Object, intent: str, **changes: Any) -> Update:
        metadata = obj.metadata
        done = operation(self.identity, metadata.uid, metadata.resource_version, intent)
        after = msgspec.structs.replace(metadata, **changes)
        return Update(msgspec.structs.replace(obj, metadata=after), operation=done)


def _removal(obj: Object) -> Remove:
    """Remove this object. A second removal finds nothing, so it needs no operation id."""
    return Remove(kind_of(obj).plural, obj.namespace, obj.name, obj.metadata.uid)


def _comes_or_goes(change: ObjectChange) -> bool:
    return change.before is None or change.after is None


def _may_concern(obj: Object) -> bool:
    """Whether this controller may ever have to remove the object as it is."""
    if isinstance(obj, Reservation | Token) or obj.metadata.owner_references:
        return True
    return is_dying(obj)


def _is_record(held: Reservation) -> bool:
    """Whether it is the record of a gang that runs, and holds nothing any more by itself."""
    return not is_active(held) and runs(held, held.spec.owner.uid)


def _is_waited_for(view: Snapshot, held: Reservation) -> bool:
    """Whether a replica is Reserved by it: then controller:repair releases it."""
    named = (view.get("replicas", held.namespace, it.replica) for it in held.status.claims)
    return any(
        it is not None and it.status.state is State.RESERVED and it.status.reservation == held.name
        for it in named
    )


def _over_in_ms(obj: Object, waits: MonotonicWaits, now: Instant) -> int | None:
    """The time until an object expires by its own deadline, if it has one."""
    match obj:
        case Reservation():
            return held_left_ms(obj, waits, LATE_MS, now)
        case Token():
            expires, used = obj.spec.expires, obj.status.used_at
            left_ms = wall_ms(expires) + LATE_MS - now.wall_ms if expires is not None else None
            if obj.spec.single_use and used is not None:
                kept_ms, uid = TOKEN_RETENTION.kept_ms + LATE_MS, obj.metadata.uid
                used_ms = waits.left_ms(uid, "used", used, kept_ms, now, credit=True)
                left_ms = sooner(left_ms, used_ms)
            return max(0, left_ms) if left_ms is not None else None
    return None
