"""One request, one decision: which function decides what, and what becomes of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.commit import (
    bind,
    evict,
    formats,
    leases,
    moves,
    nodes,
    objects,
    operations,
    patching,
    quarantine,
    removal,
    reports,
    reserve,
)
from holdfast.commit.authorise import request_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.form import form_refusal
from holdfast.commit.objects import Written
from holdfast.commit.operations import Replayed
from holdfast.commit.sight import sight_refusal
from holdfast.model import keys
from holdfast.model import requests as ask
from holdfast.model.errors import Conflict, Invalid, Missing, Rejected
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal


class Decided(msgspec.Struct, frozen=True, gc=False):
    """A yes, before it is committed.

    `revisions` say since when each object is as it is; UNCOMMITTED means by this very commit.
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
    ask.HoldCapacity: reserve.hold,
    ask.CommitGang: reserve.commit_gang,
    ask.DropReservation: reserve.drop,
    ask.Evict: evict.evict,
    ask.StopAndReserve: evict.stop_and_reserve,
    ask.Move: moves.move,
    ask.ReportStage: reports.report_stage,
    ask.ReportPending: reports.report_pending,
    ask.RegisterNode: nodes.register,
    ask.JudgeNode: nodes.judge,
    ask.AcquireLease: leases.acquire,
    ask.RenewLease: leases.renew,
    ask.ReleaseLease: leases.release,
    ask.RetireLease: leases.retire,
    ask.Create: objects.create,
    ask.Update: objects.update,
    ask.Patch: patching.patch,
    ask.Remove: removal.remove,
    ask.ForgetOperations: operations.forget,
    ask.QuarantineRecord: quarantine.put,
    ask.RepairRecord: quarantine.repair,
    ask.RaiseFormat: formats.raise_format,
}


def decide(draft: Draft, context: Context, request: Any) -> Decided | Refusal:
    """Decide one request on what its draft reads.

    Raises NotLoaded when something must be read first.
    """
    handler = HANDLERS.get(type(request))
    if handler is None:
        return Refusal(Reason.INVALID, f"{type(request).__name__} is no request")
    refusal = (
        form_refusal(context.identity, request)
        or sight_refusal(draft, context, request)
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
    """What a rule below raised, as the refusal that it is: no request may stop the authority."""
    match error:
        case Invalid():
            return Refusal(Reason.INVALID, error.message, causes=error.errors)
        case Missing():
            return Refusal(Reason.MISSING, error.message)
        case Conflict():
            return Refusal(Reason.STALE_OBJECT, error.message, {"code": error.code})
        case _:
            return Refusal(Reason.NOT_ALLOWED, error.message, {"code": error.code})


def _decided(request: Any, outcome: Any, since: Callable[[str], int]) -> Decided:
    objects, warnings = _result(outcome)
    revisions = tuple(since(keys.key_of(obj)) for obj in objects)
    replayed = isinstance(outcome, Replayed)
    return Decided(objects, revisions, warnings, replayed, _has_created(request, outcome))


def _has_created(request: Any, outcome: Any) -> bool:
    """Whether the object was made by this request, or by its earlier try."""
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
