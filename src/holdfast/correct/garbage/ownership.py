"""Who owns what, as the picture shows it: the owners of an object, and all that it owns.

Part of controller:garbage. Kinds that are not followed, and those of somebody else, cannot be
looked up: their objects are taken to be there, so that nothing goes for want of knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.correct.controller import BY_WORKLOAD, Index, ReconcilePlan, View, operation
from holdfast.model.errors import Missing
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import CONTENTS, Tenant, TenantPhase
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import Condition, ConditionStatus, Object, OwnerReference, with_condition
from holdfast.model.registry import Kind, kind_named, kind_of
from holdfast.model.requests import Remove, Update

FOLLOWED = ("tenants", "replicas", *CONTENTS)


def _uids_of(obj: Object) -> Iterable[str]:
    return [it.uid for it in obj.metadata.owner_references]


# Replicas are found by their workload, which cannot go before them.
OWNED = tuple(Index(plural, "owners", _uids_of) for plural in CONTENTS if plural != "events")


def is_dying(obj: Object) -> bool:
    return obj.metadata.deletion_timestamp is not None


def _kind_of(owner: OwnerReference) -> Kind | None:
    """The kind of an owner, if it is one that can be looked up here."""
    try:
        kind = kind_named(owner.kind)
    except Missing:
        return None
    return kind if kind.plural in FOLLOWED else None


def _owner(view: View, obj: Object, owner: OwnerReference) -> Object | None:
    """An owner as the picture shows it."""
    kind = _kind_of(owner)
    if kind is None:
        return None
    where = obj.namespace if kind.namespaced else ""
    found: Object | None = view.get(kind.plural, where, owner.name)
    return found if found is not None and found.metadata.uid == owner.uid else None


def is_there(view: View, obj: Object, owner: OwnerReference) -> bool:
    """Whether an owner lives, as far as can be told; of other kinds nothing can be."""
    return _kind_of(owner) is None or _owner(view, obj, owner) is not None


def owners_of(view: View, obj: Object) -> Iterable[Object]:
    found = (_owner(view, obj, it) for it in obj.metadata.owner_references)
    return [it for it in found if it is not None]


def owned_by(view: View, obj: Object) -> Iterable[Object]:
    """Everything that names it as its owner, but for replicas.

    An owner with a namespace is looked for in that of its dependent. So what names its uid from
    another namespace is none of its own, and neither holds up its deletion nor goes with it.
    """
    for index in OWNED:
        if isinstance(obj, Replica) and index.plural != "reservations":
            continue
        for found in view.found(index, obj.metadata.uid):
            if not obj.namespace or found.namespace == obj.namespace:
                yield found


def has_replicas(view: View, obj: Object) -> bool:
    if not isinstance(obj, Workload):
        return False
    uid, named = obj.metadata.uid, f"{obj.namespace}/{obj.name}"
    return view.has(BY_WORKLOAD, named, lambda it: it.spec.workload_uid == uid)


def blocks(obj: Object, owner: Object) -> bool:
    uid = owner.metadata.uid
    return any(it.uid == uid and it.block_owner_deletion for it in obj.metadata.owner_references)


# Emptying a tenant that goes: all that is in its namespace goes first, workloads before the rest.
#
# Part of controller:garbage. Workloads take their replicas with them, in their own time and within
# their grace; what still holds the tenant is named in its condition Emptied, by kinds and not by
# numbers, so that it is written when something has changed for whoever waits. That nothing is left
# is proven by the ledger in the transaction that lets it go.

CONTENTS_FINALIZER = "holdfast.dev/contents"
REMOVALS_PER_PLAN_MAX = 64


class Emptying:
    """See the module's docstring."""

    def __init__(self, identity: str) -> None:
        self._identity = identity

    def emptied(self, view: View, tenant: Tenant) -> ReconcilePlan:
        """The next step towards the end of a tenant."""
        if tenant.metadata.deletion_timestamp is None:
            return ReconcilePlan()
        left: dict[str, list[Object]] = {}
        for plural in ("replicas", *CONTENTS):
            found = [it for it in view.all(plural) if it.namespace == tenant.name]
            if found:
                left[plural] = found
        requests: list[Any] = list(self._said(tenant, left))
        if not left and CONTENTS_FINALIZER in tenant.metadata.finalizers:
            # Both would rest on the same version, and the finalizer is what people wait for.
            return ReconcilePlan((self._let_go(tenant),))
        for plural in CONTENTS:
            if plural == "quotas" and any(it in left for it in ("workloads", "replicas")):
                # Charges are given back to the cohort that a quota names.
                continue
            going = [it for it in left.get(plural, ()) if it.metadata.deletion_timestamp is None]
            requests += [_removal(it) for it in going]
        return ReconcilePlan(tuple(requests[:REMOVALS_PER_PLAN_MAX]))

    def _said(self, tenant: Tenant, left: dict[str, list[Object]]) -> list[Update]:
        """The phase and the condition of a tenant, where they differ."""
        condition = Condition(
            "Emptied",
            ConditionStatus.FALSE if left else ConditionStatus.TRUE,
            tenant.metadata.generation,
            reason="ContentsLeft" if left else "Empty",
            message=f"waits for {', '.join(left)}" if left else "",
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

    def _let_go(self, tenant: Tenant) -> Update:
        rest = tuple(it for it in tenant.metadata.finalizers if it != CONTENTS_FINALIZER)
        metadata = msgspec.structs.replace(tenant.metadata, finalizers=rest)
        after = msgspec.structs.replace(tenant, metadata=metadata)
        return Update(after, operation=self._operation(tenant, "let-go"))

    def _operation(self, obj: Object, intent: str) -> str:
        return operation(self._identity, obj.metadata.uid, obj.metadata.resource_version, intent)


def _removal(obj: Object) -> Remove:
    """What takes away this very object. A second one finds nothing, so it needs no name."""
    return Remove(kind_of(obj).plural, obj.namespace, obj.name, obj.metadata.uid)
