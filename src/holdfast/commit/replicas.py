"""The birth of a replica: what it takes to become Pending.

Its workload is read, and so compared: a replica can never be born for a workload that is gone or
going. Its name follows from workload, place and incarnation, so a controller that repeats itself
makes nothing twice.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.charges import PRIORITY_NAME, QUOTA_NAME, cohort_of
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model import keys
from holdfast.model.indexes import parse
from holdfast.model.jobs import completions, finished
from holdfast.model.kinds.priorityclass import PriorityClass
from holdfast.model.kinds.quota import Quota
from holdfast.model.kinds.replica import Replica, ReplicaSpec, ReplicaStatus, TransitionRecord
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.ledger import ObjectsLedger, QuotaLedger, TenantUse
from holdfast.model.lifecycle import State
from holdfast.model.meta import API_VERSION, WORKLOAD_LABEL, OwnerReference
from holdfast.model.quantity import Resource
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of
from holdfast.model.rollouts import is_misplaced, target_of


def birth_refusal(draft: Draft, replica: Replica) -> Refusal | None:
    """Whether this replica may come into being."""
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
        or _pending_refusal(draft, replica)
    )


def _revision_refusal(workload: Workload, replica: Replica) -> Refusal | None:
    """Whether its place takes another revision, or none while a rollout holds births back.

    The targets are on the workload, which this birth compares: a controller that is behind puts
    nothing where a canary has not come yet, nor where a rollout has turned back.
    """
    what = ""
    if workload.status.rollout.held:
        what = "nothing of it is born before its last revision is gone"
    elif is_misplaced(workload, replica):
        target = target_of(workload, replica.spec.ordinal)
        what = f"place {replica.spec.ordinal} takes revision {target}"
    if not what:
        return None
    return Refusal(Reason.WRONG_STATE, f"workload {workload.name}: {what}")


def _done_refusal(workload: Workload, ordinal: int) -> Refusal | None:
    """Whether there is nothing left to do at this place.

    What is complete never runs again, whoever still believes that it has to: the account is on the
    workload, which this birth compares.
    """
    if workload.spec.type is WorkloadType.CRON:
        return Refusal(
            Reason.NOT_ALLOWED, f"cron job {workload.name} has runs, and no replicas of its own"
        )
    if workload.spec.type is not WorkloadType.JOB:
        return None
    over = finished(workload)
    what = ""
    if over is not None:
        what = f"job {workload.name} has ended: {over.type}"
    elif ordinal >= completions(workload.spec):
        what = f"job {workload.name} has no index {ordinal}"
    elif ordinal in parse(workload.status.job.completed_indexes):
        what = f"index {ordinal} of job {workload.name} is complete"
    return Refusal(Reason.WRONG_STATE, what, {"index": str(ordinal)}) if what else None


def uncounted(draft: Draft, replica: Replica) -> bool:
    """Whether a replica's success is known by the replica alone, so that it must not go yet.

    Without it, and before the account of its job says so, its index would be run again.
    """
    steps, spec = replica.status.transitions, replica.spec
    if not any(step.to is State.SUCCEEDED for step in steps):
        return False
    job = draft.object(Workload, replica.namespace, spec.workload)
    if job is None or job.metadata.uid != spec.workload_uid:
        return False
    is_open = job.metadata.deletion_timestamp is None and finished(job) is None
    is_job = job.spec.type is WorkloadType.JOB
    return is_job and is_open and spec.ordinal not in parse(job.status.job.completed_indexes)


def _pending_refusal(draft: Draft, replica: Replica) -> Refusal | None:
    """The cap on waiting replicas of a tenant; the rest of them waits in the workloads themselves.

    Who has a place is charged one replica, so those that wait are the others. One that is released
    counts as waiting until its object is gone, which is soon.
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
        f"tenant {tenant} has reached its cap of {cap} replicas in waiting",
        {
            "tenant": tenant,
            "resource": "pending",
            "limit": str(cap),
            "field": "metadata.namespace",
            "policy": "object-cap",
            "scope": f"Tenant {tenant}",
        },
    )


def born(draft: Draft, context: Context, replica: Replica) -> Replica:
    """The replica as it comes into being: Pending, owned by its workload,
    with its priority resolved.
    """
    spec = _prioritised(draft, replica.spec)
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
    return msgspec.structs.replace(
        replica, metadata=metadata, spec=spec, status=ReplicaStatus(transitions=(record,))
    )


def _prioritised(draft: Draft, spec: ReplicaSpec) -> ReplicaSpec:
    found = draft.object(PriorityClass, "", spec.template.priority_class or PRIORITY_NAME)
    value = found.spec.value if found is not None else 0
    return spec if spec.priority == value else msgspec.structs.replace(spec, priority=value)
