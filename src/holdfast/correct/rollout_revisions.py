"""The history of a workload's templates: one WorkloadRevision for each that it has had.

Part of controller:rollout. A revision is recorded before anything is made from it, so that there is
always a way back; the same template is the same revision, however often it comes.
"""

from __future__ import annotations

import msgspec

from holdfast.correct.controller import Index, operation
from holdfast.model.identity import controller
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import RolloutStatus, Workload
from holdfast.model.kinds.workloadrevision import WorkloadRevision, WorkloadRevisionSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import API_VERSION, ObjectMeta, OwnerReference
from holdfast.model.requests import Create, Remove
from holdfast.model.rollouts import revision_name

IDENTITY = controller("rollout").name
BY_OWNER = Index("workloadrevisions", "owner", lambda it: (f"{it.namespace}/{it.spec.workload}",))


def belongs(revision: WorkloadRevision, workload: Workload) -> bool:
    """Whether it is of this very workload, and not of an earlier one of its name."""
    return any(it.uid == workload.metadata.uid for it in revision.metadata.owner_references)


def sound(workload: Workload, known: list[WorkloadRevision]) -> Workload:
    """The workload without a stable revision whose template nobody has any more.

    There is no way back to that; what it leaves goes to the current one.
    """
    rollout = workload.status.rollout
    if rollout.stable in ("", *(it.spec.digest for it in known)):
        return workload
    status = msgspec.structs.replace(
        workload.status, rollout=msgspec.structs.replace(rollout, stable="")
    )
    return msgspec.structs.replace(workload, status=status)


def numbered(status: RolloutStatus, known: list[WorkloadRevision]) -> RolloutStatus:
    """The status with the highest number that a revision has had, so that none comes again."""
    highest = max((it.spec.number for it in known), default=0)
    return msgspec.structs.replace(status, revisions=max(status.revisions, highest))


def recorded(workload: Workload, revision: str, known: list[WorkloadRevision]) -> Create:
    """The revision of the template as it is stated."""
    numbers = (it.spec.number for it in known)
    number = max((*numbers, workload.status.rollout.revisions)) + 1
    uid = workload.metadata.uid
    owner = OwnerReference(API_VERSION, "Workload", workload.name, uid, controller=True)
    metadata = ObjectMeta(
        name=revision_name(workload.name, revision),
        namespace=workload.namespace,
        owner_references=(owner,),
    )
    spec = WorkloadRevisionSpec(workload.name, number, revision, workload.spec.template)
    made = WorkloadRevision(metadata=metadata, spec=spec)
    return Create(made, operation=operation(IDENTITY, uid, number, f"record-{revision}"))


def removal(revision: WorkloadRevision) -> Remove:
    """Clear a revision away."""
    uid = revision.metadata.uid
    return Remove(
        "workloadrevisions",
        revision.namespace,
        revision.name,
        uid,
        operation=operation(IDENTITY, uid, 0, "remove"),
    )


def excess(
    workload: Workload, known: list[WorkloadRevision], mine: list[Replica]
) -> list[WorkloadRevision]:
    """The oldest revisions beyond what its owner wants to keep; none that is in use."""
    rollout = workload.status.rollout
    old = [it for it in known if it.spec.digest not in (rollout.current, rollout.stable)]
    count = len(old) - workload.spec.rollout.history
    if count <= 0:
        return []
    used = {it.spec.revision for it in mine if it.status.state is not State.RELEASED}
    old.sort(key=lambda it: it.spec.number)
    return [it for it in old[:count] if it.spec.digest not in used]
