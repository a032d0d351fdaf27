"""What an object counts towards its tenant's caps: its bytes, and the replicas that it requests.

Its labels, annotations and everything but metadata and status count: what users and controllers
request. The records that servers and components keep on the object do not count: they are bounded
for each object and change with every transition, and the tenant's ledger must not be written then.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.workload.jobs import completions

_STATUS = "status"
# Components change a reservation with every charge. It is small, so it counts the same whatever it
# holds.
RESERVATION_BYTES = 512
_ENCODER = msgspec.json.Encoder()


def weight(obj: Object) -> int:
    """The bytes that an object counts."""
    if isinstance(obj, Reservation):
        return RESERVATION_BYTES
    metadata = ObjectMeta(
        name=obj.metadata.name,
        labels=obj.metadata.labels,
        annotations=obj.metadata.annotations,
    )
    bare = msgspec.structs.replace(obj, metadata=metadata)
    if hasattr(bare, _STATUS):
        bare = msgspec.structs.replace(bare, status=type(bare.status)())  # type: ignore[attr-defined]
    return len(_ENCODER.encode(bare))


def replicas_wanted(obj: Object) -> int:
    """How many replicas an object requests at once, as far as its own spec states.

    PerNode work depends on the number of nodes, and a cron job counts by its jobs.
    """
    if not isinstance(obj, Workload):
        return 0
    spec = obj.spec
    if spec.type is WorkloadType.SERVICE:
        return spec.replicas
    if spec.type is WorkloadType.JOB:
        parallel = spec.job.parallelism
        return completions(spec) if parallel is None else min(parallel, completions(spec))
    return 0


def weighs_the_same(old: Object, new: Object) -> bool:
    """Whether nothing that counts has changed; cheaper than computing both weights."""
    if isinstance(new, Reservation):
        return True
    if old.metadata.labels != new.metadata.labels:
        return False
    if old.metadata.annotations != new.metadata.annotations:
        return False
    fields = [it for it in type(new).__struct_fields__ if it not in ("metadata", _STATUS)]
    return all(getattr(old, field) == getattr(new, field) for field in fields)
