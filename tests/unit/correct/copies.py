"""A controller that reads another plane and writes there."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.correct.controller import Controller, ReconcilePlan, RequestAbroad, key_of
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import Create, Term
from holdfast.model.time import Instant
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.snapshot import Snapshot

GLOBE, THERE = "globe", "globe/servers"


class Copies(Controller):
    """Creates each tenant of its own plane in another one."""

    actor = Actor.WORKLOAD
    follows = ("tenants",)
    abroad = ((GLOBE, "tenants"),)

    def __init__(self) -> None:
        self.changes: list[ObjectChange] = []

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        self.changes.append(change)
        return (key_of(change.object),)

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        return [key_of(it) for it in view.all("tenants")]

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        there = view.of(GLOBE)
        if view.get("tenants", *key) is None or there is None or there.get("tenants", *key):
            return ReconcilePlan()
        wanted = Create(Tenant(ObjectMeta(name=key[1])))
        return ReconcilePlan(abroad=(RequestAbroad(GLOBE, wanted),))


class OnlyHere(Copies):
    """Follows tenants of its own plane alone."""

    actor = Actor.REPAIR
    abroad = ()

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        return ReconcilePlan()
