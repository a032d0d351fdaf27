"""One writer per field: who may change what through the ordinary create, update, patch and delete.

Replica, Reservation, Lease and the judged parts of a Node are not writable here at all: they change
by requests of their own, each with its proof. The table is data, so that the authorization matrix,
the documentation and the checkers read the same rows. It is about identity, and the `force` of
server-side apply does not affect it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.commit.context import Context
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
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import AnyObject, Condition, Object
from holdfast.model.refusal import Reason, Refusal

_SYSTEM = tuple(actor for actor in Actor if actor not in (Actor.USER, Actor.OPERATOR, Actor.AGENT))
_PEOPLE = (Actor.USER,)
_OPERATORS = (Actor.OPERATOR,)


class Writers(msgspec.Struct, frozen=True):
    """The writers of a kind.

    `spec` may create it and change all but its status. `makers` may only create it, under rules of
    their own. `status` maps each part of the status to its one writer, and `conditions` each type
    of condition. `removers` may delete it besides the writers of its spec.
    """

    spec: tuple[Actor, ...]
    status: dict[str, Actor] = {}
    conditions: dict[str, Actor] = {}
    removers: tuple[Actor, ...] = (Actor.GARBAGE,)
    makers: tuple[Actor, ...] = ()


WRITERS: dict[type[Object], Writers] = {
    Workload: Writers(
        spec=_PEOPLE,
        status={
            "observed_generation": Actor.STATUS,
            "progress": Actor.STATUS,
            "rollout": Actor.ROLLOUT,
            "autoscale": Actor.AUTOSCALE,
            "job": Actor.WORKLOAD,
            "cron": Actor.WORKLOAD,
        },
        conditions={
            "Available": Actor.STATUS,
            "Bound": Actor.STATUS,
            "SchedulingRetrying": Actor.STATUS,
            "Complete": Actor.WORKLOAD,
            "Failed": Actor.WORKLOAD,
            "Progressing": Actor.ROLLOUT,
            "RollbackObserved": Actor.ROLLOUT,
            "Recovered": Actor.REPAIR,
            "RepairComplete": Actor.REPAIR,
            "RecoveryReserved": Actor.RESERVES,
            "ScalingLimited": Actor.AUTOSCALE,
            "SchedulerOverrideObserved": Actor.SCHEDULER,
        },
        removers=(Actor.WORKLOAD, Actor.GARBAGE),
        # `job_times.py`: a run of a cron job.
        makers=(Actor.WORKLOAD,),
    ),
    Replica: Writers(
        spec=(Actor.WORKLOAD,),
        conditions={
            "Bound": Actor.SCHEDULER,
            "SchedulingRetrying": Actor.SCHEDULER,
            "Ready": Actor.AGENT,
            "Serving": Actor.ENDPOINTS,
            "Repairing": Actor.REPAIR,
        },
        removers=(Actor.WORKLOAD, Actor.GARBAGE, Actor.USER),
    ),
    Node: Writers(
        spec=_OPERATORS,
        conditions={"Ready": Actor.NODES, "Pressure": Actor.AGENT, "Drained": Actor.DRAIN},
    ),
    Reservation: Writers(spec=(), removers=(Actor.REPAIR, Actor.GARBAGE)),
    # What is used of it is filled in when it is read, and never stored.
    Quota: Writers(spec=_OPERATORS, conditions={"Exhausted": Actor.QUOTA}),
    Tenant: Writers(
        spec=_OPERATORS, status={"phase": Actor.GARBAGE}, conditions={"Emptied": Actor.GARBAGE}
    ),
    PriorityClass: Writers(spec=_OPERATORS),
    AdmissionPolicy: Writers(spec=_OPERATORS),
    Region: Writers(
        spec=_OPERATORS, status={"phase": Actor.NODES}, conditions={"Healthy": Actor.NODES}
    ),
    SchedulerPolicy: Writers(
        spec=_OPERATORS,
        status={"observed_generation": Actor.POLICY, "stage": Actor.POLICY},
        conditions={"Observed": Actor.POLICY},
    ),
    Grant: Writers(
        spec=_OPERATORS,
        status={"accepted_serial": Actor.QUOTA, "spent": Actor.QUOTA},
        conditions={"Accepted": Actor.QUOTA},
    ),
    Override: Writers(
        spec=_PEOPLE,
        status={
            "observed_generation": Actor.POLICY,
            "phase": Actor.POLICY,
            "affected": Actor.POLICY,
        },
        conditions={"Active": Actor.POLICY, "PostconditionsMet": Actor.POLICY},
    ),
    # An operator removes a server that is gone: `ledgers/leaks.py`.
    Lease: Writers(spec=(), removers=(Actor.GARBAGE, Actor.OPERATOR)),
    Commitment: Writers(
        spec=_PEOPLE,
        status={
            "observed_generation": Actor.REVIEW,
            "state": Actor.REVIEW,
            "evidence": Actor.REVIEW,
            "proven_at": Actor.REVIEW,
            "at_revision": Actor.REVIEW,
        },
        conditions={"Proven": Actor.REVIEW},
    ),
    Event: Writers(spec=(*_SYSTEM, Actor.OPERATOR)),
    Decision: Writers(spec=(Actor.SCHEDULER,)),
    # Servers write the objects that show what is built in.
    Role: Writers(spec=(*_OPERATORS, Actor.AUTHORITY)),
    RoleBinding: Writers(spec=(*_OPERATORS, Actor.AUTHORITY)),
    Token: Writers(
        spec=_OPERATORS,
        status={
            "used_at": Actor.AUTHORITY,
            "used_by": Actor.AUTHORITY,
            "key": Actor.AUTHORITY,
        },
    ),
    # Servers remove it once every credential that it ended has expired: `ledgers/leaks.py`.
    Revocation: Writers(spec=_OPERATORS, removers=(Actor.AUTHORITY,)),
    Secret: Writers(spec=_PEOPLE),
    WorkloadRevision: Writers(spec=(Actor.ROLLOUT,)),
    Endpoints: Writers(spec=(Actor.ENDPOINTS,)),
}


# Parts of a status that servers fill in when they answer. A client that writes a status it has
# read sends them back; they are not stored.
COMPUTED: dict[type[Object], tuple[str, ...]] = {
    Quota: ("used", "used_revision", "used_at"),
    Node: ("last_heartbeat",),
}


def without_computed(old: Object, new: AnyObject) -> AnyObject:
    """A new status with the computed parts as they are stored, which is not at all."""
    names = COMPUTED.get(type(new))
    if names is None:
        return new
    before: Any = old
    after: Any = new
    stored = {name: getattr(before.status, name) for name in names}
    status = msgspec.structs.replace(after.status, **stored)
    return msgspec.structs.replace(new, status=status)


def _not_owner(context: Context, obj: Object, what: str, owners: tuple[Actor, ...]) -> Refusal:
    named = ", ".join(owners) if owners else "none: it changes by requests of its own"
    return Refusal(
        Reason.NOT_OWNER,
        f"{context.identity.name} may not change {what} of {type(obj).__name__} {obj.name}; "
        f"its owner is {named}",
        {"field": what, "owners": ",".join(owners)},
    )


def shared_with_people(struct: type[Object]) -> bool:
    """Whether people write objects of this kind, with several clients and managers each."""
    return any(actor in (Actor.USER, Actor.OPERATOR) for actor in WRITERS[struct].spec)


def spec_refusal(context: Context, obj: Object) -> Refusal | None:
    """Refuse a caller that may not write the object's spec."""
    owners = WRITERS[type(obj)].spec
    return None if context.is_actor(*owners) else _not_owner(context, obj, "spec", owners)


def is_maker(context: Context, obj: Object) -> bool:
    """Whether the caller may create such an object without being a writer of its spec."""
    writers = WRITERS[type(obj)]
    return context.is_actor(*writers.makers) and not context.is_actor(*writers.spec)


def claim_refusal(context: Context, obj: Object, *, status: bool) -> Refusal | None:
    """Refuse a caller that may not own fields that it leaves unchanged.

    An apply that states what already holds changes only the ownership, and every owner of a field
    can conflict with its writers.
    """
    writers = WRITERS[type(obj)]
    if not status:
        return spec_refusal(context, obj)
    owners = tuple(dict.fromkeys((*writers.status.values(), *writers.conditions.values())))
    return None if context.is_actor(*owners) else _not_owner(context, obj, "status", owners)


def removal_refusal(context: Context, obj: Object) -> Refusal | None:
    """Refuse a caller that may not delete the object."""
    owners = (*WRITERS[type(obj)].spec, *WRITERS[type(obj)].removers)
    return None if context.is_actor(*owners) else _not_owner(context, obj, "the life", owners)


def status_refusal(context: Context, old: Object, new: Object) -> Refusal | None:
    """Refuse a change of a status part that does not belong to the caller."""
    before, after = getattr(old, "status", None), getattr(new, "status", None)
    if before == after or before is None or after is None:
        return None
    owners = WRITERS[type(new)]
    for field in type(after).__struct_fields__:
        if getattr(before, field) == getattr(after, field):
            continue
        if field == "conditions":
            refusal = _conditions_refusal(context, old, before.conditions, after.conditions)
            if refusal is not None:
                return refusal
            continue
        owner = owners.status.get(field)
        if owner is None or not context.is_actor(owner):
            return _not_owner(context, new, f"status.{field}", (owner,) if owner else ())
    return None


def _conditions_refusal(
    context: Context, obj: Object, before: tuple[Condition, ...], after: tuple[Condition, ...]
) -> Refusal | None:
    owners = WRITERS[type(obj)].conditions
    old = {condition.type: condition for condition in before}
    new = {condition.type: condition for condition in after}
    for kind in dict.fromkeys((*old, *new)):
        if old.get(kind) == new.get(kind):
            continue
        owner = owners.get(kind)
        if owner is None or not context.is_actor(owner) or not _of_own_node(context, owner, obj):
            what = f"status.conditions[{kind}]"
            return _not_owner(context, obj, what, (owner,) if owner else ())
    return None


def _of_own_node(context: Context, owner: Actor, obj: Object) -> bool:
    """Whether an agent reports on its own node or on what is bound to it."""
    if owner is not Actor.AGENT:
        return True
    if isinstance(obj, Replica):
        binding = obj.status.binding
        return binding is not None and context.identity.node == binding.node
    return context.identity.node == obj.name
