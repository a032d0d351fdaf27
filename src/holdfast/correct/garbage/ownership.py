"""Ownership in the cache: the owners of an object, and its dependents.

Part of controller:garbage. Owners of other kinds than the cached ones cannot be looked up: they
count as existing, so that nothing is removed for lack of knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.correct.controller import (
    BY_WORKLOAD,
    ReconcilePlan,
    operation,
)
from holdfast.model.errors import Missing
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Tenant, TenantPhase
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import (
    CONTENTS_FINALIZER,
    Condition,
    ConditionStatus,
    Object,
    OwnerReference,
    with_condition,
)
from holdfast.model.registry import CONTENTS, kind_named, kind_of
from holdfast.model.requests import Remove, Request, Update
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

FOLLOWED = ("tenants", "replicas", *CONTENTS)


def _uids_of(obj: Object) -> Iterable[str]:
    return [it.uid for it in obj.metadata.owner_references]


# Replicas are found by their workload, which cannot be removed before them.
OWNED = tuple(Index(plural, "owners", _uids_of) for plural in CONTENTS if plural != "events")


def is_dying(obj: Object) -> bool:
    return obj.metadata.deletion_timestamp is not None


def _kind_of(owner: OwnerReference) -> Kind | None:
    """The kind of an owner, if it is cached."""
    try:
        kind = kind_named(owner.kind)
    except Missing:
        return None
    return kind if kind.plural in FOLLOWED else None


def _owner(view: Snapshot, obj: Object, owner: OwnerReference) -> Object | None:
    """An owner in the cache."""
    kind = _kind_of(owner)
    if kind is None:
        return None
    where = obj.namespace if kind.namespaced else ""
    found: Object | None = view.get(kind.plural, where, owner.name)
    return found if found is not None and found.metadata.uid == owner.uid else None


def is_there(view: Snapshot, obj: Object, owner: OwnerReference) -> bool:
    """Whether an owner exists; owners of kinds that are not cached count as existing."""
    return _kind_of(owner) is None or _owner(view, obj, owner) is not None


def owners_of(view: Snapshot, obj: Object) -> Iterable[Object]:
    found = (_owner(view, obj, it) for it in obj.metadata.owner_references)
    return [it for it in found if it is not None]


def owned_by(view: Snapshot, obj: Object) -> Iterable[Object]:
    """All objects with an owner reference to it, except replicas.

    The owner of a namespaced object is in the same namespace. An object in another namespace that
    names its uid is not a dependent: it neither delays its deletion nor is removed with it.
    """
    for index in OWNED:
        if isinstance(obj, Replica) and index.plural != "reservations":
            continue
        for found in view.found(index, obj.metadata.uid):
            if not obj.namespace or found.namespace == obj.namespace:
                yield found


def has_replicas(view: Snapshot, obj: Object) -> bool:
    if not isinstance(obj, Workload):
        return False
    uid, named = obj.metadata.uid, f"{obj.namespace}/{obj.name}"
    return view.has(BY_WORKLOAD, named, lambda it: it.spec.workload_uid == uid)


def blocks(obj: Object, owner: Object) -> bool:
    uid = owner.metadata.uid
    return any(it.uid == uid and it.block_owner_deletion for it in obj.metadata.owner_references)


# The deletion of a tenant: the contents of its namespace are removed first, workloads before the
# rest.
#
# Workloads stop and remove their replicas within their grace. The tenant's condition Emptied names
# the kinds that are left, not their numbers, so that it changes only when that matters to a user
# who waits. The ledger proves, in the transaction that removes the finalizer, that nothing is left.

REMOVALS_PER_PLAN_MAX = 64


class TenantContents:
    """Removes the contents of tenants in deletion; see the comment above."""

    def __init__(self, identity: str) -> None:
        self._identity = identity

    def reconcile(self, view: Snapshot, tenant: Tenant) -> ReconcilePlan:
        """The next step of the deletion of a tenant."""
        if tenant.metadata.deletion_timestamp is None:
            return ReconcilePlan()
        left: dict[str, list[Object]] = {}
        for plural in ("replicas", *CONTENTS):
            found = [it for it in view.all(plural) if it.namespace == tenant.name]
            if found:
                left[plural] = found
        requests: list[Request] = list(self._status_updates(tenant, left))
        if not left and CONTENTS_FINALIZER in tenant.metadata.finalizers:
            # Both would rest on the same version, and users wait for the finalizer.
            return ReconcilePlan((self._without_finalizer(tenant),))
        for plural in CONTENTS:
            if plural == "quotas" and any(it in left for it in ("workloads", "replicas")):
                # Charges are returned to the cohort that a quota names.
                continue
            going = [it for it in left.get(plural, ()) if it.metadata.deletion_timestamp is None]
            requests += [_removal(it) for it in going]
        return ReconcilePlan(tuple(requests[:REMOVALS_PER_PLAN_MAX]))

    def _status_updates(self, tenant: Tenant, left: dict[str, list[Object]]) -> list[Update]:
        """The phase and the condition of a tenant, where they differ."""
        condition = Condition(
            "Emptied",
            ConditionStatus.FALSE if left else ConditionStatus.TRUE,
            tenant.metadata.generation,
            reason="ContentsLeft" if left else "Empty",
            message=f"waits for the removal of {', '.join(left)}" if left else "",
        )
        since = tenant.metadata.deletion_timestamp
        if since is None:
            return []
        status = tenant.status
        conditions = with_condition(status.conditions, condition, since)
        if status.phase is TenantPhase.TERMINATING and conditions is status.conditions:
            return []
        after = msgspec.structs.replace(
            status, phase=TenantPhase.TERMINATING, conditions=conditions
        )
        return [
            Update(
                msgspec.structs.replace(tenant, status=after),
                "status",
                operation=self._operation(tenant, "emptied"),
            )
        ]

    def _without_finalizer(self, tenant: Tenant) -> Update:
        rest = tuple(it for it in tenant.metadata.finalizers if it != CONTENTS_FINALIZER)
        metadata = msgspec.structs.replace(tenant.metadata, finalizers=rest)
        after = msgspec.structs.replace(tenant, metadata=metadata)
        return Update(after, operation=self._operation(tenant, "let-go"))

    def _operation(self, obj: Object, intent: str) -> str:
        return operation(self._identity, obj.metadata.uid, obj.metadata.resource_version, intent)


def _removal(obj: Object) -> Remove:
    """Remove this object. A second removal finds nothing, so it needs no operation id."""
    return Remove(kind_of(obj).plural, obj.namespace, obj.name, obj.metadata.uid)
