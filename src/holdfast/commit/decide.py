"""One request, one decision: which function decides what, and what becomes of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.commit import (
    bind,
    evict,
    leases,
    moves,
    nodes,
    objects,
    patching,
    removal,
    reports,
    reserve,
)
from holdfast.commit import requests as ask
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.objects import Written
from holdfast.commit.operations import Replayed
from holdfast.model.errors import Invalid, Missing
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal


class Decided(msgspec.Struct, frozen=True):
    """A yes, before it is committed."""

    objects: tuple[Object, ...] = ()
    warnings: tuple[str, ...] = ()
    replayed: bool = False


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
    ask.SettleDisruption: evict.settle,
    ask.Move: moves.move,
    ask.ReportStage: reports.report_stage,
    ask.ReportPending: reports.report_pending,
    ask.RegisterNode: nodes.register,
    ask.JudgeNode: nodes.judge,
    ask.AcquireLease: leases.acquire,
    ask.RenewLease: leases.renew,
    ask.ReleaseLease: leases.release,
    ask.Create: objects.create,
    ask.Update: objects.update,
    ask.Patch: patching.patch,
    ask.Remove: removal.remove,
}


def decide(draft: Draft, context: Context, request: Any) -> Decided | Refusal:
    """Decide one request on what its draft reads.

    Raises NotLoaded when something must be read first.
    """
    handler = HANDLERS.get(type(request))
    if handler is None:
        return Refusal(Reason.INVALID, f"{type(request).__name__} is no request")
    try:
        outcome = handler(draft, context, request)
    except Invalid as error:
        return Refusal(Reason.INVALID, error.message, causes=error.errors)
    except Missing as error:
        return Refusal(Reason.MISSING, error.message)
    return _decided(outcome)


def _decided(outcome: Any) -> Decided | Refusal:
    match outcome:
        case Refusal():
            return outcome
        case Replayed():
            return Decided(replayed=True)
        case Written():
            return Decided((outcome.object,), outcome.warnings)
        case tuple():
            return Decided(outcome)
        case Object():
            return Decided((outcome,))
        case _:
            return Decided()
