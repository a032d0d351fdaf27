"""Dispatch: which function decides which request, and how its result becomes an answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.commit import operations
from holdfast.commit.access.authorize import request_refusal
from holdfast.commit.access.visibility import visibility_refusal
from holdfast.commit.authority_table import HANDLERS
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.objects.request_form import form_refusal
from holdfast.commit.request_steps import Outcome, Replayed, Written
from holdfast.model import keys
from holdfast.model import requests as ask
from holdfast.model.errors import Conflict, Invalid, Missing, Rejected
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal


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


def decide(draft: Draft, context: Context, request: ask.Request) -> Approval | Refusal:
    """Decide one request on the records that its draft reads.

    Raises NotLoaded when something must be read first.
    """
    refusal = (
        form_refusal(context.identity, request)
        or visibility_refusal(draft, context, request)
        or request_refusal(draft, context, request)
    )
    if refusal is not None:
        return refusal
    try:
        outcome = HANDLERS[type(request)](draft, context, request)
    except Rejected as error:
        return _refusal_of(error)
    if isinstance(outcome, Refusal):
        return outcome
    # A dry run leaves the objects at the revisions they have.
    since = draft.base if ask.is_dry_run(request) else draft.revision
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


def _decided(request: ask.Request, outcome: Outcome, since: Callable[[str], int]) -> Approval:
    objects, warnings = _result(outcome)
    revisions = tuple(since(keys.key_of(obj)) for obj in objects)
    replayed = isinstance(outcome, Replayed)
    return Approval(objects, revisions, warnings, replayed, _has_created(request, outcome))


def _has_created(request: ask.Request, outcome: Outcome) -> bool:
    """Whether this request, or an earlier try of it, created the object."""
    if isinstance(outcome, Replayed):
        return isinstance(request, ask.Create) or outcome.operation.result == operations.CREATED
    return isinstance(outcome, Written) and outcome.created


def _result(outcome: Outcome) -> tuple[tuple[Object, ...], tuple[str, ...]]:
    match outcome:
        case Object():
            return (outcome,), ()
        case Written():
            return (outcome.object,), outcome.warnings
        case tuple():
            return outcome, ()
        case _:
            return (), ()
