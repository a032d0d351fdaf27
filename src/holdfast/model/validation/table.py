"""The validation rules of every kind. A test fails if a kind of the registry is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model.errors import FieldError, invariant
from holdfast.model.kinds.access import Revocation, Role, RoleBinding, Token
from holdfast.model.kinds.admissionpolicy import AdmissionPolicy
from holdfast.model.kinds.commitment import Commitment
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.event import Event
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.override import Override
from holdfast.model.kinds.region import Grant, Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import PriorityClass, Quota, Tenant
from holdfast.model.kinds.workload import Workload, WorkloadRevision
from holdfast.model.meta import Object
from holdfast.model.registry import kind_of
from holdfast.model.validation import (
    access,
    admission_policy,
    budgets,
    lease,
    node,
    override,
    policy,
    records,
    replica,
    reservation,
    tenancy,
    workload,
)
from holdfast.model.validation.findings import FieldPath, Findings
from holdfast.model.validation.metadata import (
    conditions,
    immutable_fields,
    metadata,
    metadata_update,
)

# The argument is an object of the row's kind, which the type of the table cannot express.
Check = Callable[[Any, FieldPath], None]
Compare = Callable[[Any, Any, FieldPath], None]


class KindRules(msgspec.Struct, frozen=True):
    """The rules of one kind: for the spec, for the status, and for an update."""

    wanted: Check
    observed: Check | None = None
    update: Compare | None = None


RULES: dict[type[Object], KindRules] = {
    Workload: KindRules(workload.workload, workload.workload_status, workload.workload_update),
    Replica: KindRules(replica.replica, replica.replica_status, replica.replica_update),
    Node: KindRules(node.node, node.node_status, node.node_update),
    Reservation: KindRules(
        reservation.reservation, reservation.reservation_status, reservation.reservation_update
    ),
    Quota: KindRules(budgets.quota),
    Tenant: KindRules(tenancy.tenant),
    PriorityClass: KindRules(tenancy.priority_class),
    Region: KindRules(tenancy.region),
    SchedulerPolicy: KindRules(policy.scheduler_policy),
    Grant: KindRules(budgets.grant, budgets.grant_status, budgets.grant_update),
    Override: KindRules(override.override),
    Lease: KindRules(lease.lease, update=lease.lease_update),
    Commitment: KindRules(policy.commitment),
    Event: KindRules(records.event, update=records.event_update),
    Decision: KindRules(records.decision),
    Role: KindRules(access.role),
    RoleBinding: KindRules(access.role_binding),
    Token: KindRules(access.token, update=access.token_update),
    Revocation: KindRules(access.revocation, update=access.revocation_update),
    AdmissionPolicy: KindRules(admission_policy.admission_policy),
    Secret: KindRules(access.secret),
    WorkloadRevision: KindRules(replica.workload_revision),
    Endpoints: KindRules(records.endpoints),
}


def validate(obj: Object) -> tuple[FieldError, ...]:
    """All errors of an object by itself; empty if it is valid.

    The decoder checks types and ranges. Admission checks what depends on other objects, such as
    whether a region exists.
    """
    findings = Findings()
    at = FieldPath(findings)
    metadata(at["metadata"], kind_of(obj), obj.metadata)
    RULES[type(obj)].wanted(obj, at)
    _observed(obj, at)
    return findings.errors()


def validate_status(obj: Object) -> tuple[FieldError, ...]:
    """All errors of an object's status, for writes that change nothing else.

    Status is written far more often than specs, and a replica's spec is a whole template.
    """
    findings = Findings()
    _observed(obj, FieldPath(findings))
    return findings.errors()


def _observed(obj: Object, at: FieldPath) -> None:
    found = getattr(getattr(obj, "status", None), "conditions", ())
    if found:
        conditions(at["status"]["conditions"], found)
    observed = RULES[type(obj)].observed
    if observed is not None:
        observed(obj, at)


def validate_update(old: Object, new: Object) -> tuple[FieldError, ...]:
    """All errors of an update; `validate` checks the new version by itself.

    Ownership of fields is not checked here, only changes that are never allowed.
    """
    invariant(type(old) is type(new), "an update changes the kind of an object")
    findings = Findings()
    at = FieldPath(findings)
    metadata_update(old.metadata, new.metadata, at["metadata"])
    immutable_fields(kind_of(new), old, new, at)
    update = RULES[type(new)].update
    if update is not None:
        update(old, new, at)
    return findings.errors()
