"""Replica creation: what a replica needs to become Pending.

Its workload is read, and so compared: a replica is never created for a workload that is deleted or
being deleted. Its name follows from workload, ordinal and incarnation, and each incarnation follows
the one before it: that one exists and has vacated the ordinal, or it is the last one that the
places ledger records as gone. So one ordinal has one replica, and none is created twice, however
late a request arrives.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.ledgers.charges import cohort_of
from holdfast.model import keys
from holdfast.model.kinds.replica import (
    Displaced,
    Replica,
    ReplicaSpec,
    ReplicaStatus,
    TransitionRecord,
)
from holdfast.model.kinds.tenant import PriorityClass, Quota
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.meta import API_VERSION, WORKLOAD_LABEL, OwnerReference
from holdfast.model.placement.vacancy import first_place, home_of, next_place, vacates
from holdfast.model.quantity import Resource
from holdfast.model.quota.charging import QUOTA_NAME, budget_of
from holdfast.model.quota.ledger import (
    DisruptionLedger,
    ObjectsLedger,
    PlacesLedger,
    QuotaLedger,
    TenantUse,
    places_page,
)
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of
from holdfast.model.validation.replica import replica_name
from holdfast.model.workload.indexes import parse
from holdfast.model.workload.jobs import completions, finished_condition, is_open
from holdfast.model.workload.rollouts import is_misplaced, target_of

# The number of consecutive ordinals that are tried for one node; more than a few collisions never
# happen.
HOMES_MAX = 64


def birth_refusal(draft: Draft, replica: Replica) -> Refusal | None:
    """Refuse a replica that may not be created."""
    spec = replica.spec
    workload = draft.object(Workload, replica.namespace, spec.workload)
    if workload is None or workload.metadata.uid != spec.workload_uid:
        return Refusal(
            Reason.MISSING,
            f"workload {replica.namespace}/{spec.workload} of uid {spec.workload_uid} is gone",
        )
    if workload.metadata.deletion_timestamp is not None:
        return Refusal(Reason.TERMINATING, f"workload {workload.name} is being deleted")
    return (
        _done_refusal(workload, spec.ordinal)
        or _revision_refusal(workload, replica)
        or _place_refusal(draft, replica)
        or _home_refusal(draft, workload, replica)
        or _pending_refusal(draft, replica)
    )


def places_key(replica: Replica) -> str:
    """The page of its workload's places ledger that holds its ordinal."""
    return _page_key(replica, replica.spec.ordinal)


def _page_key(replica: Replica, place: int) -> str:
    return keys.places_ledger(replica.namespace, replica.spec.workload, places_page(place))


def predecessor(spec: ReplicaSpec) -> str:
    """The name of the incarnation before this one."""
    return replica_name(spec.workload, spec.ordinal, spec.incarnation - 1)


def _place_refusal(draft: Draft, replica: Replica) -> Refusal | None:
    """Refuse an incarnation that is not the next one at its ordinal, or comes too early.

    `reached` in the details is the last incarnation that is gone, for a caller that does not know
    it.
    """
    spec = replica.spec
    page = draft.ledger(PlacesLedger, places_key(replica)) or PlacesLedger()
    gone, before = page.at(spec.ordinal), spec.incarnation - 1
    place = f"place {spec.ordinal} of workload {spec.workload}"
    details = {"workload": spec.workload, "place": str(spec.ordinal), "reached": str(gone)}
    if spec.incarnation <= gone:
        had = f"{place} already had incarnation {gone}; {spec.incarnation} cannot follow it"
        return Refusal(Reason.STALE_PLACE, had, details)
    if before == gone:
        return None
    last = draft.object(Replica, replica.namespace, predecessor(spec))
    if last is None or last.spec.workload_uid != spec.workload_uid:
        never = f"{place} never had incarnation {before}, which {spec.incarnation} would follow"
        return Refusal(Reason.STALE_PLACE, never, details)
    if not vacates(last):
        taken = f"{place} is taken: replica {last.name} is {last.status.state.value}"
        return Refusal(Reason.STALE_PLACE, taken, {"replica": last.name})
    return None


def _home_refusal(draft: Draft, workload: Workload, replica: Replica) -> Refusal | None:
    """Refuse a replica whose node has one at another ordinal, or for whose node this ordinal is
    wrong.
    """
    spec, home = replica.spec, home_of(replica)
    if workload.spec.type is not WorkloadType.PER_NODE or not home:
        return None
    place, is_reached = first_place(home), False
    for _ in range(HOMES_MAX):
        is_own = place == spec.ordinal
        is_reached = is_reached or is_own
        last = None if is_own else _last_at(draft, replica, place)
        if last is not None and home_of(last) == home and not vacates(last):
            return Refusal(
                Reason.STALE_PLACE,
                f"node {home} already has replica {last.name} of workload {spec.workload}",
                {"replica": last.name},
            )
        page = draft.ledger(PlacesLedger, _page_key(replica, place)) or PlacesLedger()
        is_used = spec.incarnation > 0 if is_own else last is not None
        if not is_used and page.at(place) < 0:
            break
        place = next_place(place)
    if is_reached:
        return None
    return Refusal(
        Reason.STALE_PLACE,
        f"place {spec.ordinal} of workload {spec.workload} is not one of node {home}: the next one "
        f"is {place}",
        {"workload": spec.workload, "place": str(spec.ordinal), "next": str(place)},
    )


def _last_at(draft: Draft, replica: Replica, place: int) -> Replica | None:
    """The latest replica at another ordinal of the same workload, if there is one."""
    spec, key = replica.spec, _page_key(replica, place)
    draft.suppose_absent(key)
    incarnation = (draft.ledger(PlacesLedger, key) or PlacesLedger()).at(place)
    last: Replica | None = None
    while True:
        incarnation += 1
        name = replica_name(spec.workload, place, incarnation)
        draft.suppose_absent(keys.object_key(kind_of(replica), replica.namespace, name))
        found = draft.object(Replica, replica.namespace, name)
        if found is None:
            return last
        last = found


def leave_place(draft: Draft, replica: Replica, ledger: DisruptionLedger) -> DisruptionLedger:
    """Record the incarnation of a replica that is deleted, unless no replica could follow it."""
    spec = replica.spec
    workload = draft.object(Workload, replica.namespace, spec.workload)
    if workload is None or workload.metadata.uid != spec.workload_uid:
        return ledger
    if workload.metadata.deletion_timestamp is not None:
        return ledger
    is_complete = spec.ordinal in parse(workload.status.job.completed_indexes)
    if workload.spec.type is WorkloadType.JOB and (
        is_complete or finished_condition(workload) is not None
    ):
        return ledger
    key = places_key(replica)
    page = draft.ledger(PlacesLedger, key) or PlacesLedger()
    if spec.incarnation <= page.at(spec.ordinal):
        return ledger
    draft.write(key, PlacesLedger(reached={**page.reached, spec.ordinal: spec.incarnation}))
    number = places_page(spec.ordinal)
    if number in ledger.pages:
        return ledger
    return msgspec.structs.replace(ledger, pages=(*ledger.pages, number))


def _revision_refusal(workload: Workload, replica: Replica) -> Refusal | None:
    """Refuse a revision that its ordinal does not take, or any while a rollout holds creations
    back.

    The targets are on the workload, which this creation compares: a stale controller creates
    nothing where a canary has not come yet, nor where a rollout has turned back.
    """
    what = ""
    if workload.status.rollout.held:
        what = "no replica is created before those of its last revision are gone"
    elif is_misplaced(workload, replica):
        target = target_of(workload, replica.spec.ordinal)
        what = f"place {replica.spec.ordinal} takes revision {target}"
    if not what:
        return None
    return Refusal(Reason.WRONG_STATE, f"workload {workload.name}: {what}")


def _done_refusal(workload: Workload, ordinal: int) -> Refusal | None:
    """Refuse a replica at an ordinal where nothing is left to do.

    A completed index never runs again, whatever a controller still believes: the account is on the
    workload, which this creation compares.
    """
    if workload.spec.type is WorkloadType.CRON:
        return Refusal(
            Reason.NOT_ALLOWED,
            f"cron job {workload.name} has runs, and cannot have replicas of its own",
        )
    if workload.spec.type is not WorkloadType.JOB:
        return None
    over = finished_condition(workload)
    what = ""
    if over is not None:
        what = f"job {workload.name} has ended: {over.type}"
    elif ordinal >= completions(workload.spec):
        what = f"job {workload.name} has no index {ordinal}"
    elif ordinal in parse(workload.status.job.completed_indexes):
        what = f"index {ordinal} of job {workload.name} is complete"
    return Refusal(Reason.WRONG_STATE, what, {"index": str(ordinal)}) if what else None


def is_success_uncounted(draft: Draft, replica: Replica) -> bool:
    """Whether only the replica itself records its success, so that it must not be deleted yet.

    Without it, and before its job's account contains the success, its index would run again.
    """
    steps, spec = replica.status.transitions, replica.spec
    if not any(step.to is State.SUCCEEDED for step in steps):
        return False
    job = draft.object(Workload, replica.namespace, spec.workload)
    if job is None or job.metadata.uid != spec.workload_uid:
        return False
    is_job = job.spec.type is WorkloadType.JOB
    return is_job and is_open(job) and spec.ordinal not in parse(job.status.job.completed_indexes)


def _pending_refusal(draft: Draft, replica: Replica) -> Refusal | None:
    """Apply the cap on waiting replicas of a tenant; the rest waits in the workloads themselves.

    A placed replica is charged, so the uncharged ones are waiting. A released one counts as waiting
    until its object is deleted, which is soon.
    """
    tenant = replica.namespace
    quota = draft.object(Quota, tenant, QUOTA_NAME)
    cap = quota.spec.objects.pending if quota is not None else None
    if cap is None:
        return None
    objects = draft.ledger(ObjectsLedger, keys.objects_ledger(tenant)) or ObjectsLedger()
    ledger = draft.ledger(QuotaLedger, keys.quota_ledger(cohort_of(draft, tenant))) or QuotaLedger()
    use = ledger.used.get(tenant, TenantUse())
    placed = sum(sums.get(Resource.REPLICAS, 0) for sums in (use.hard, use.reclaimable))
    if objects.counts.get(kind_of(replica).plural, 0) - placed < cap:
        return None
    return Refusal(
        Reason.OBJECT_CAP,
        f"tenant {tenant} has reached its cap of {cap} waiting replicas",
        {
            "tenant": tenant,
            "resource": "pending",
            "limit": str(cap),
            "field": "metadata.namespace",
            "policy": "object-cap",
            "scope": f"Tenant {tenant}",
        },
    )


def new_replica(draft: Draft, context: Context, replica: Replica) -> Replica:
    """The new replica: Pending, owned by its workload, with its priority and gang resolved."""
    spec = _of_gang(draft, replica, _prioritised(draft, replica.spec))
    owner = OwnerReference(
        api_version=API_VERSION,
        kind="Workload",
        name=spec.workload,
        uid=spec.workload_uid,
        controller=True,
        block_owner_deletion=True,
    )
    labels = {
        **spec.template.metadata.labels,
        **replica.metadata.labels,
        WORKLOAD_LABEL: spec.workload,
    }
    metadata = msgspec.structs.replace(replica.metadata, owner_references=(owner,), labels=labels)
    record = TransitionRecord(
        to=State.PENDING,
        by=context.identity.name,
        at=context.at,
        reason="Created",
        evidence=f"workload {spec.workload}, revision {spec.revision or '(none)'}",
    )
    status = ReplicaStatus(displaced=_displaced(draft, replica), transitions=(record,))
    return msgspec.structs.replace(replica, metadata=metadata, spec=spec, status=status)


def _displaced(draft: Draft, replica: Replica) -> Displaced | None:
    """What the incarnation before it was stopped for: its successor goes first in its class, and
    does not stop that work in turn.
    """
    spec = replica.spec
    page = draft.ledger(PlacesLedger, places_key(replica)) or PlacesLedger()
    if not spec.incarnation or page.at(spec.ordinal) >= spec.incarnation - 1:
        return None
    last = draft.object(Replica, replica.namespace, predecessor(spec))
    return last.status.displaced if last is not None else None


def _prioritised(draft: Draft, spec: ReplicaSpec) -> ReplicaSpec:
    found = draft.object(PriorityClass, "", budget_of(spec.template.priority_class))
    value = found.spec.value if found is not None else 0
    return spec if spec.priority == value else msgspec.structs.replace(spec, priority=value)


def _of_gang(draft: Draft, replica: Replica, spec: ReplicaSpec) -> ReplicaSpec:
    """The spec with the gang that its workload states: a member without it could be bound alone."""
    workload = draft.object(Workload, replica.namespace, spec.workload)
    gang = spec.workload if workload is not None and workload.spec.gang is not None else ""
    return spec if spec.gang == gang else msgspec.structs.replace(spec, gang=gang)
