"""Dispatch: which function decides which request, and how its result becomes an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.commit import leases, operations, quarantine_repair
from holdfast.commit.access.authorize import request_refusal
from holdfast.commit.access.visibility import visibility_refusal
from holdfast.commit.apply import patch_requests
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.lifecycle import (
    bind,
    evict,
    node_requests,
    progress_reports,
    reserve,
    transitions,
)
from holdfast.commit.objects import deletion, object_writes
from holdfast.commit.objects.object_writes import Written
from holdfast.commit.objects.request_form import form_refusal
from holdfast.commit.operations import Replayed
from holdfast.model import keys, plane_format
from holdfast.model import requests as ask
from holdfast.model.errors import Conflict, Invalid, Missing, Rejected
from holdfast.model.meta import Object
from holdfast.model.plane_format import PlaneFormat
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import RaiseFormat

# Raising the format of the plane, on an operator's request.
#
# `authority` compares the format in every transaction, so an older server that still runs writes
# nothing from the moment this commits. The server that was asked checks first whether an older part
# is running (`host/api/plane/upgrade_routes`): no transaction could know that, and no safety
# property depends on it.


def raise_format(draft: Draft, context: Context, request: RaiseFormat) -> Refusal | None:
    """Raise the plane's records to the next format."""
    if not request.word.strip():
        return Refusal(
            Reason.INVALID, "word: required: state the reason, for the audit", {"field": "word"}
        )
    found: PlaneFormat | None = draft.read(keys.plane_format())
    newest = plane_format.FORMAT
    # An empty plane gets the newest format with its first record.
    current = found.format if found is not None else newest
    if request.to > newest:
        return Refusal(
            Reason.INVALID,
            f"to: format {request.to}: this version of holdfast supports formats up to {newest}",
            {"field": "to"},
        )
    if request.to != current + 1:
        return Refusal(
            Reason.STALE_OBJECT,
            f"to: format {request.to}: the plane has format {current}, next is {current + 1}",
            {"format": str(current)},
        )
    draft.write(keys.plane_format(), PlaneFormat(request.to))
    return None


class Approval(msgspec.Struct, frozen=True, gc=False):
    """An accepted request before its commit.

    `revisions` are the revisions at which the objects were last written; UNCOMMITTED means by this
    commit.
    """

    objects: tuple[Object, ...] = ()
    revisions: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    replayed: bool = False
    created: bool = False


Handler = Callable[[Draft, Context, Any], Any]

HANDLERS: dict[type[Any], Handler] = {
    ask.Bind: bind.bind,
    ask.BindTogether: bind.bind_together,
    ask.Reserve: reserve.reserve,
    ask.Unreserve: reserve.unreserve,
    ask.HoldCapacity: reserve.hold_capacity,
    ask.CommitGang: reserve.commit_gang,
    ask.DropReservation: reserve.drop,
    ask.Evict: evict.evict,
    ask.StopAndReserve: evict.stop_and_reserve,
    ask.Move: transitions.move,
    ask.ReportStage: progress_reports.report_stage,
    ask.ReportPending: progress_reports.report_pending,
    ask.RegisterNode: node_requests.register,
    ask.JudgeNode: node_requests.judge,
    ask.AcquireLease: leases.acquire,
    ask.RenewLease: leases.renew,
    ask.ReleaseLease: leases.release,
    ask.RetireLease: leases.retire,
    ask.Create: object_writes.create,
    ask.Update: object_writes.update,
    ask.Patch: patch_requests.patch,
    ask.Remove: deletion.remove,
    ask.ForgetOperations: operations.forget,
    ask.QuarantineRecord: quarantine_repair.quarantine_record,
    ask.RepairRecord: quarantine_repair.repair,
    ask.RaiseFormat: raise_format,
}


def decide(draft: Draft, context: Context, request: Any) -> Approval | Refusal:
    """Decide one request on the records that its draft reads.

    Raises NotLoaded when something must be read first.
    """
    handler = HANDLERS.get(type(request))
    if handler is None:
        return Refusal(Reason.INVALID, f"unknown request type {type(request).__name__}")
    refusal = (
        form_refusal(context.identity, request)
        or visibility_refusal(draft, context, request)
        or request_refusal(draft, context, request)
    )
    if refusal is not None:
        return refusal
    try:
        outcome = handler(draft, context, request)
    except Rejected as error:
        return _refusal_of(error)
    if isinstance(outcome, Refusal):
        return outcome
    # A dry run leaves the objects at the revisions they have.
    since = draft.base if getattr(request, "dry_run", False) else draft.revision
    return _decided(request, outcome, since)


def _refusal_of(error: Rejected) -> Refusal:
    """The refusal for an exception that a rule raised: no request may stop the authority."""
    match error:
        case Invalid():
            return Refusal(Reason.INVALID, error.message, causes=error.errors)
        case Missing():
            return Refusal(Reason.MISSING, error.message)
        case Conflict():
            return Refusal(Reason.STALE_OBJECT, error.message, {"code": error.code})
        case _:
            return Refusal(Reason.NOT_ALLOWED, error.message, {"code": error.code})


def _decided(request: Any, outcome: Any, since: Callable[[str], int]) -> Approval:
    objects, warnings = _result(outcome)
    revisions = tuple(since(keys.key_of(obj)) for obj in objects)
    replayed = isinstance(outcome, Replayed)
    return Approval(objects, revisions, warnings, replayed, _has_created(request, outcome))


def _has_created(request: Any, outcome: Any) -> bool:
    """Whether this request, or an earlier try of it, created the object."""
    if isinstance(outcome, Replayed):
        return isinstance(request, ask.Create) or outcome.operation.result == operations.CREATED
    return isinstance(outcome, Written) and outcome.created


def _result(outcome: Any) -> tuple[tuple[Object, ...], tuple[str, ...]]:
    match outcome:
        case Object():
            return (outcome,), ()
        case Written():
            return (outcome.object,), outcome.warnings
        case tuple():
            return outcome, ()
        case _:
            return (), ()
