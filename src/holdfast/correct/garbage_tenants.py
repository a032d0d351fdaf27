"""Emptying a tenant that goes: all that is in its namespace goes first, workloads before the rest.

Part of controller:garbage. Workloads take their replicas with them, in their own time and within
their grace; what still holds the tenant is named in its condition Emptied, by kinds and not by
numbers, so that it is written when something has changed for whoever waits. That nothing is left
is proven by the ledger in the transaction that lets it go.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.correct.controller import Plan, View, operation
from holdfast.model.kinds.tenant import CONTENTS, Tenant, TenantPhase
from holdfast.model.meta import Condition, ConditionStatus, Object, with_condition
from holdfast.model.registry import kind_of
from holdfast.model.requests import Remove, Update

CONTENTS_FINALIZER = "holdfast.dev/contents"
REMOVALS_PER_PLAN_MAX = 64


class Emptying:
    """See the module's docstring."""

    def __init__(self, identity: str) -> None:
        self._identity = identity

    def emptied(self, view: View, tenant: Tenant) -> Plan:
        """The next step towards the end of a tenant."""
        if tenant.metadata.deletion_timestamp is None:
            return Plan()
        left: dict[str, list[Object]] = {}
        for plural in ("replicas", *CONTENTS):
            found = [it for it in view.all(plural) if it.namespace == tenant.name]
            if found:
                left[plural] = found
        requests: list[Any] = list(self._said(tenant, left))
        if not left and CONTENTS_FINALIZER in tenant.metadata.finalizers:
            # Both would rest on the same version, and the finalizer is what people wait for.
            return Plan((self._let_go(tenant),))
        for plural in CONTENTS:
            if plural == "quotas" and any(it in left for it in ("workloads", "replicas")):
                # Charges are given back to the cohort that a quota names.
                continue
            going = [it for it in left.get(plural, ()) if it.metadata.deletion_timestamp is None]
            requests += [_removal(it) for it in going]
        return Plan(tuple(requests[:REMOVALS_PER_PLAN_MAX]))

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
