"""The authority table: for every step of a placement, how old its information may be, what can go
wrong between seeing and acting, who decides when two disagree, and how the action is guarded.

It is data. `bind`, `reserve` and preemption take their maximum ages from here, a test walks every
row and holds each request to the records that it must compare, and docs/authority.md is printed
from it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from holdfast.model import requests as ask
from holdfast.model.refusal import Reason, Refusal


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
    OBJECT = "object"
    OPERATION = "operation"
    QUARANTINE = "quarantine"
    FORMAT = "format"


class PlacementStep(msgspec.Struct, frozen=True):
    """One step. `age_max_ms` is None where the step does not act on an observation at all."""

    name: str
    actor: str
    guard: ActionGuard
    observes: str
    between: str
    decides: str
    age_max_ms: int | None = None
    request: type[Any] | None = None
    compares: tuple[ComparedRecord, ...] = ()


_PLACE = (
    ComparedRecord.REPLICA,
    ComparedRecord.NODE_LEDGER,
    ComparedRecord.TENANT,
    ComparedRecord.QUOTA,
    ComparedRecord.QUOTA_LEDGER,
    ComparedRecord.EPOCH,
)

STEPS: tuple[PlacementStep, ...] = (
    PlacementStep(
        "propose a place",
        "scheduler",
        ActionGuard.ALONE,
        "a snapshot of nodes and quota",
        "anything may change; a wrong proposal costs one refused commit",
        "the bind",
        age_max_ms=30_000,
    ),
    PlacementStep(
        "create an object",
        "user, controller:workload",
        ActionGuard.SERIALISED,
        "what the caller believes to be missing; a controller, under its epoch",
        "another client creates it, its owner is deleted, it existed and is gone, or its "
        "purpose is already fulfilled: a job's index, a scheduled time of a cron job",
        "the first commit; the other gets AlreadyExists. The owner records what was "
        "done, the places ledger which incarnations existed, and both are compared",
        request=ask.Create,
        compares=(
            ComparedRecord.OBJECT,
            ComparedRecord.TENANT,
            ComparedRecord.OBJECTS_LEDGER,
            ComparedRecord.PLACES_LEDGER,
            ComparedRecord.EPOCH,
        ),
    ),
    PlacementStep(
        "update an object",
        "its writers",
        ActionGuard.SERIALISED,
        "the object at a resourceVersion",
        "another client writes it",
        "the first commit; the other gets StaleObject",
        request=ask.Update,
        compares=(ComparedRecord.OBJECT,),
    ),
    PlacementStep(
        "patch or apply an object",
        "its writers",
        ActionGuard.SERIALISED,
        "nothing: the patch is computed on the current object",
        "another manager owns the field",
        "field ownership; a conflict names the owner",
        request=ask.Patch,
        compares=(ComparedRecord.OBJECT,),
    ),
    PlacementStep(
        "delete an object",
        "its writers, controller:garbage",
        ActionGuard.SERIALISED,
        "the object; for garbage: that its owners are gone",
        "it is held by a finalizer, or its owner lives",
        "finalizers and ledgers in the transaction",
        request=ask.Remove,
        compares=(ComparedRecord.OBJECT,),
    ),
    PlacementStep(
        "reserve a place",
        "scheduler",
        ActionGuard.SERIALISED,
        "the proposal's snapshot",
        "the place, the quota or the device goes to other work; a drain begins",
        "the commit; the loser proposes again",
        age_max_ms=30_000,
        request=ask.Reserve,
        compares=(*_PLACE, ComparedRecord.RESERVATION),
    ),
    PlacementStep(
        "give a reserved place back",
        "scheduler; controller:repair past the deadline",
        ActionGuard.SERIALISED,
        "the reservation",
        "it is bound meanwhile",
        "the replica's transition number",
        request=ask.Unreserve,
        compares=(ComparedRecord.REPLICA, ComparedRecord.RESERVATION, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "hold capacity for an owner",
        "scheduler, controller:repair, controller:workload, controller:reserves",
        ActionGuard.SERIALISED,
        "a snapshot of nodes",
        "the capacity goes to other work",
        "the commit",
        request=ask.HoldCapacity,
        compares=(
            ComparedRecord.RESERVATION,
            ComparedRecord.NODE_LEDGER,
            ComparedRecord.QUOTA,
            ComparedRecord.EPOCH,
        ),
    ),
    PlacementStep(
        "commit a gang",
        "scheduler",
        ActionGuard.SERIALISED,
        "all members' claims",
        "the deadline passes",
        "one write of the reservation",
        request=ask.CommitGang,
        compares=(ComparedRecord.RESERVATION, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "release a reservation",
        "its creator; controller:repair, controller:garbage",
        ActionGuard.SERIALISED,
        "deadline, or that the owner is gone",
        "it is consumed meanwhile",
        "the reservation's phase in the transaction",
        request=ask.DropReservation,
        compares=(ComparedRecord.RESERVATION, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "bind",
        "scheduler",
        ActionGuard.SERIALISED,
        "the proposal's snapshot",
        "node full, device taken, quota used up, drain, another bind, a lost lease",
        "the commit; the refusal names the reason and both revisions",
        age_max_ms=30_000,
        request=ask.Bind,
        compares=_PLACE,
    ),
    PlacementStep(
        "bind several or none",
        "scheduler",
        ActionGuard.SERIALISED,
        "the proposal's snapshot",
        "as for one bind, for any of them",
        "the commit; all or none",
        age_max_ms=30_000,
        request=ask.BindTogether,
        compares=_PLACE,
    ),
    PlacementStep(
        "stop victims and promise their place",
        "scheduler",
        ActionGuard.SERIALISED,
        "a snapshot with the victims on it",
        "a victim ends, a budget is used up, the quota would not allow the bind",
        "the commit; no victim is stopped in vain",
        age_max_ms=5_000,
        request=ask.StopAndReserve,
        compares=(*_PLACE, ComparedRecord.DISRUPTION_LEDGER),
    ),
    PlacementStep(
        "start bound work",
        "agent",
        ActionGuard.ALONE,
        "its binding, and its own deadline",
        "the agent is paused; the deadline passes before the start",
        "the shim, which checks the deadline before it starts anything",
    ),
    PlacementStep(
        "acknowledge a renewal",
        "server",
        ActionGuard.FRESH_READ,
        "that the node has no mark, read after the acknowledgement window began",
        "the node is marked meanwhile",
        "the fence, which waits longer than any acknowledged renewal lasts",
        age_max_ms=2_000,
    ),
    PlacementStep(
        "stop work at its own deadline",
        "shim",
        ActionGuard.ALONE,
        "its own monotonic clock",
        "the servers come back",
        "the deadline: it only moves later, and never once it has passed",
    ),
    PlacementStep(
        "move along the lifecycle",
        "the owner of the transition",
        ActionGuard.SERIALISED,
        "the replica at a transition number",
        "another actor moves it first",
        "the transition number; the loser gets StaleReplica",
        request=ask.Move,
        compares=(ComparedRecord.REPLICA,),
    ),
    PlacementStep(
        "report progress",
        "agent, scheduler, controller:endpoints",
        ActionGuard.SERIALISED,
        "the work itself",
        "it is moved meanwhile",
        "the transition number",
        request=ask.ReportStage,
        compares=(ComparedRecord.REPLICA, ComparedRecord.DISRUPTION_LEDGER),
    ),
    PlacementStep(
        "say why it waits",
        "scheduler",
        ActionGuard.SERIALISED,
        "the last proposal",
        "it is bound meanwhile",
        "the transition number",
        request=ask.ReportPending,
        compares=(ComparedRecord.REPLICA,),
    ),
    PlacementStep(
        "evict",
        "the owner of the cause",
        ActionGuard.SERIALISED,
        "the replica and its budget",
        "another eviction uses up the budget",
        "the disruption ledger in the transaction",
        request=ask.Evict,
        compares=(ComparedRecord.REPLICA, ComparedRecord.DISRUPTION_LEDGER),
    ),
    PlacementStep(
        "register a node",
        "its agent",
        ActionGuard.SERIALISED,
        "its own machine, and the node at a resourceVersion",
        "the node is fenced, or a later registration comes first",
        "the node's version in the transaction; a fenced node begins a new incarnation",
        request=ask.RegisterNode,
        compares=(ComparedRecord.NODE, ComparedRecord.NODE_LEDGER),
    ),
    PlacementStep(
        "suspect, mark, clear, fence a node",
        "controller:nodes",
        ActionGuard.SERIALISED,
        "renewals, on its own monotonic clock, and the node at a resourceVersion",
        "the node comes back; another controller takes over",
        "the node's version, the very mark, and the epoch, in the transaction",
        request=ask.JudgeNode,
        compares=(ComparedRecord.NODE, ComparedRecord.NODE_LEDGER, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "forget operations",
        "server, controller:garbage",
        ActionGuard.SERIALISED,
        "operations whose time is over",
        "nothing: an operation is written once and never again",
        "the age of the record's revision, in the transaction",
        request=ask.ForgetOperations,
        compares=(ComparedRecord.OPERATION, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "put a record into quarantine",
        "server",
        ActionGuard.SERIALISED,
        "records that a decision could not use, confirmed by its transaction",
        "the record is written, or was put there already",
        "the record's revision in the transaction",
        request=ask.QuarantineRecord,
        compares=(ComparedRecord.QUARANTINE, ComparedRecord.NODE_LEDGER),
    ),
    PlacementStep(
        "repair a record",
        "operator",
        ActionGuard.SERIALISED,
        "the record and what it should be, at one revision",
        "the record is written: then what was counted may have changed too",
        "the record's revision in the transaction",
        request=ask.RepairRecord,
        compares=(ComparedRecord.QUARANTINE, ComparedRecord.NODE_LEDGER),
    ),
    PlacementStep(
        "raise the format",
        "operator",
        ActionGuard.SERIALISED,
        "the format of the plane, and that no part of an older version lives",
        "another operator does the same, or an older part comes back: it writes nothing then",
        "the format in the transaction, which each transaction compares",
        request=ask.RaiseFormat,
        compares=(ComparedRecord.FORMAT,),
    ),
    PlacementStep(
        "take a lease",
        "server, scheduler, controller",
        ActionGuard.SERIALISED,
        "epoch and renewals, unchanged for the duration on its own clock",
        "the holder renews, or another candidate is faster",
        "epoch and renewals in the transaction",
        request=ask.AcquireLease,
        compares=(ComparedRecord.LEASE, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "renew a lease",
        "its holder",
        ActionGuard.SERIALISED,
        "its own epoch",
        "another holder took over",
        "the epoch in the transaction",
        request=ask.RenewLease,
        compares=(ComparedRecord.LEASE, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "give a lease back",
        "its holder",
        ActionGuard.SERIALISED,
        "its own epoch",
        "another holder took over",
        "the epoch in the transaction",
        request=ask.ReleaseLease,
        compares=(ComparedRecord.LEASE, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "forget a lease",
        "server",
        ActionGuard.SERIALISED,
        "epoch and renewals, unchanged for a day",
        "its holder comes back",
        "epoch and renewals in the transaction; the floor keeps its epoch from coming again",
        request=ask.RetireLease,
        compares=(ComparedRecord.LEASE, ComparedRecord.EPOCH),
    ),
)

_AGE_MAX_MS = {
    step.request: step.age_max_ms for step in STEPS if step.request and step.age_max_ms is not None
}


def age_refusal(request: Any, age_ms: int) -> Refusal | None:
    """Refuse a request whose observation is older than its step allows."""
    most = _AGE_MAX_MS[type(request)]
    if age_ms <= most:
        return None
    return Refusal(
        Reason.TOO_OLD,
        f"the observation of the proposal is {age_ms} ms old; at most {most} ms is allowed",
        {"ageMs": str(age_ms), "ageMaxMs": str(most)},
    )
