"""The kinds of objects that a plane has, and the parts that all of them share."""

from __future__ import annotations

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
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus, Object, ObjectMeta

__all__ = [
    "AdmissionPolicy",
    "Commitment",
    "Condition",
    "ConditionStatus",
    "Decision",
    "Endpoints",
    "Event",
    "Grant",
    "Lease",
    "Node",
    "Object",
    "ObjectMeta",
    "Override",
    "PriorityClass",
    "Quota",
    "Region",
    "Replica",
    "Reservation",
    "Revocation",
    "Role",
    "RoleBinding",
    "SchedulerPolicy",
    "Secret",
    "State",
    "Tenant",
    "Token",
    "Workload",
    "WorkloadRevision",
]
