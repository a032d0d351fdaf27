"""What the object that a request changes shows about the request.

A lost answer settles nothing: the sender reads the subject that the request declares
(`model/requests.py`), and the operations that the subject remembers say whether the request took
effect. Schedulers, controllers and clients all ask here (`observe/operation.py`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import assert_never

from holdfast.model.kinds.replica import Replica
from holdfast.model.meta import Object
from holdfast.model.read_requests import Get
from holdfast.model.requests import (
    BindTogether,
    Create,
    ForgetOperations,
    HoldCapacity,
    JudgeNode,
    LeaseRequest,
    Patch,
    QuarantineRecord,
    RaiseFormat,
    RegisterNode,
    Remove,
    RepairRecord,
    ReplicaRequest,
    Request,
    ReservationRequest,
    RetireLease,
    Update,
)


def settling_read(request: Request) -> Get | None:
    """The read of the object that remembers a request, for when its answer was lost.

    None where no object remembers it: such a request states a precondition that its own success
    changes, so a copy of it takes effect at most once. None also where the server chooses the name,
    which the sender does not know yet.
    """
    read = request.subject()
    return read if read is not None and read.name else None


def operation_id(request: Request) -> str:
    """The sender's own id of the operation, the same for every copy; empty if it has none."""
    if isinstance(request, BindTogether):
        # Each member remembers its own.
        return request.binds[0].operation if request.binds else ""
    return request.operation


def remembers(obj: Object, operation: str) -> bool:
    """Whether an object remembers that this operation was accepted on it."""
    return any(past.id == operation for past in obj.metadata.operations)


class Evidence(Enum):
    """What the subject of a request shows about it."""

    # It took effect.
    DONE = auto()
    # It has not taken effect, and nothing that it states as a precondition has changed. A copy may
    # still be on its way.
    ABSENT = auto()
    # The object has changed without it, so no copy of it can take effect any more.
    OVERTAKEN = auto()


def evidence_in(request: Request, found: Object | None) -> Evidence:
    """What a subject shows, as it was read or as a snapshot has it; None means that it is gone.

    From a snapshot only DONE and OVERTAKEN count: it may be older than the request.
    """
    uid, number = _stated(request)
    if found is None or (uid and found.metadata.uid != uid):
        if isinstance(request, Remove):
            # Perhaps another client deleted it; the sender has what it wanted either way.
            return Evidence.DONE
        return Evidence.OVERTAKEN if uid else Evidence.ABSENT
    if remembers(found, operation_id(request)):
        return Evidence.DONE
    if number is not None and isinstance(found, Replica):
        is_same = found.status.transition_number == number
        return Evidence.ABSENT if is_same else Evidence.OVERTAKEN
    return Evidence.ABSENT


def _stated(request: Request) -> tuple[str, int | None]:
    """The uid and the transition number that the request states as its preconditions."""
    match request:
        case ReplicaRequest(target=target):
            return target.uid, target.number
        case BindTogether(binds=binds):
            return _stated(binds[0]) if binds else ("", None)
        case JudgeNode(uid=uid) | Remove(uid=uid) | ReservationRequest(uid=uid):
            return uid, None
        case RegisterNode(node=obj) | Update(object=obj):
            return obj.metadata.uid, None
        case (
            # These make an object, or change whichever has the name.
            Create()
            | Patch()
            | HoldCapacity()
            | LeaseRequest()
            | RetireLease()
            # No object remembers these.
            | ForgetOperations()
            | QuarantineRecord()
            | RepairRecord()
            | RaiseFormat()
        ):
            return "", None
        case _:
            assert_never(request)
