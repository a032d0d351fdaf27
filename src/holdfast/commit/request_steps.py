"""What a handler declares of the request that it decides: a row of the authority table.

The row stands beside its handler. `authority_table.py` collects all of them, `dispatch.py` finds
the handler there, a test holds each request to the records that its row names, and
docs/authority.md is printed from it. The other half, who may send the request and what it changes,
is declared with its type (`model/requests.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model.meta import Object, Operation
from holdfast.model.observation_age import is_too_old
from holdfast.model.refusal import Reason, Refusal

R = TypeVar("R")


class ActionGuard(StrEnum):
    """How an action is guarded against what its actor did not see."""

    # On the actor's own knowledge: an error costs only the actor.
    ALONE = "alone"
    # After a linearizable read made for this action.
    FRESH_READ = "fresh read"
    # Inside a transaction that compares everything it depends on.
    SERIALISED = "serialised"


class ComparedRecord(StrEnum):
    """The types of records that a request compares."""

    REPLICA = "replica"
    NODE_LEDGER = "node ledger"
    QUOTA_LEDGER = "quota ledger"
    DISRUPTION_LEDGER = "disruption ledger"
    OBJECTS_LEDGER = "objects ledger"
    PLACES_LEDGER = "places ledger"
    TENANT = "tenant"
    QUOTA = "quota"
    EPOCH = "epoch"
    RESERVATION = "reservation"
    WORKLOAD = "workload"
    NODE = "node"
    LEASE = "lease"
    OVERRIDE = "override"
    OBJECT = "object"
    OPERATION = "operation"
    QUARANTINE = "quarantine"
    FORMAT = "format"


PLACE = (
    ComparedRecord.REPLICA,
    ComparedRecord.NODE_LEDGER,
    ComparedRecord.TENANT,
    ComparedRecord.QUOTA,
    ComparedRecord.QUOTA_LEDGER,
    ComparedRecord.EPOCH,
)


class Written(msgspec.Struct, frozen=True):
    """The object to be written, with its warnings."""

    object: Object
    warnings: tuple[str, ...] = ()
    created: bool = False


class Replayed(msgspec.Struct, frozen=True):
    """This operation was accepted before."""

    operation: Operation


# What a handler returns when it does not refuse: what was written, or that it was done before.
Outcome = Object | tuple[Object, ...] | Written | Replayed | None


class PlacementStep(msgspec.Struct, Generic[R], frozen=True):
    """One step of a placement. `is_aged` says that its observation may have the greatest age of the
    plane's settings; `age_max_ms` is a smaller one of the step's own. A step that is serialised has
    a request, with its handler and the records that this must compare.
    """

    name: str
    actor: str
    observes: str
    between: str
    decides: str
    guard: ActionGuard = ActionGuard.SERIALISED
    is_aged: bool = False
    age_max_ms: int | None = None
    request: type[R] | None = None
    handler: Callable[[Draft, Context, R], Outcome | Refusal] | None = None
    compares: tuple[ComparedRecord, ...] = ()


def age_refusal(context: Context, age_ms: int, own_max_ms: int | None = None) -> Refusal | None:
    """Refuse a request whose observation is older than the plane, or its step, allows."""
    most = context.settings.observation_age_max_ms
    most = most if own_max_ms is None else min(own_max_ms, most)
    if not is_too_old(age_ms, most):
        return None
    return Refusal(
        Reason.TOO_OLD,
        f"the observation of the proposal is {age_ms} ms old; at most {most} ms is allowed",
        {"ageMs": str(age_ms), "ageMaxMs": str(most)},
    )
