"""Remembering what was accepted, so that asking again is not doing again.

An operation id is the caller's own: identity, uid, transition number and intent, the same for
every try. It is kept on the object it changed; only deletes and generated names, which leave no
object to keep it on, get a record of their own. A refusal is never remembered: it is decided anew,
since the world may have changed.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

import msgspec

from holdfast.commit.context import Context, Settings
from holdfast.commit.draft import Draft, for_each
from holdfast.commit.leases import term_refusal
from holdfast.commit.records import PastOperation
from holdfast.model import keys
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object, ObjectMeta, Operation
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import ForgetOperations

# The result of an apply that made its object, by which its repetition is answered in the same way.
CREATED = "created"
_encode = msgspec.json.Encoder().encode


def operation_id(identity: str, uid: str, number: int, intent: str) -> str:
    """The id that a component gives its operation; equal for every try of the same intention."""
    return f"{identity}/{uid}/{number}/{intent}"


def digest(request: msgspec.Struct) -> str:
    """What the request asks for, in short.

    The same id for something else is a mistake of the caller.
    """
    return hashlib.blake2b(_encode(request), digest_size=12).hexdigest()


class Replayed(msgspec.Struct, frozen=True):
    """This very operation was accepted before."""

    operation: Operation


def recall(metadata: ObjectMeta, operation: str, mark: str) -> Replayed | Refusal | None:
    """Whether the object remembers this operation: as done, as something else under its id,
    or not at all.
    """
    if not operation:
        return None
    for past in metadata.operations:
        if past.id == operation:
            return _judge(past, mark)
    return None


def _judge(past: Operation, mark: str) -> Replayed | Refusal:
    if past.digest == mark:
        return Replayed(past)
    return Refusal(
        Reason.OPERATION_REUSED,
        f"operation {past.id!r} was accepted before for another request",
        {"operation": past.id},
    )


def remembered(
    metadata: ObjectMeta,
    operation: str,
    mark: str,
    at: datetime,
    settings: Settings,
    result: str = "",
) -> ObjectMeta:
    """The metadata with this operation kept,
    and the old ones let go that need not be kept any more.
    """
    if not operation:
        return metadata
    made = Operation(id=operation, digest=mark, at=at, result=result)
    kept = metadata.operations
    if len(kept) >= settings.operations_kept:
        kept = _young(kept, at, settings)
    return msgspec.structs.replace(metadata, operations=(*kept, made))


def _young(kept: tuple[Operation, ...], at: datetime, settings: Settings) -> tuple[Operation, ...]:
    """Those that have to be kept beside a new one."""
    since = at - timedelta(milliseconds=settings.operations_kept_ms)
    while len(kept) >= settings.operations_kept and (
        kept[0].at < since or len(kept) >= settings.operations_max
    ):
        kept = kept[1:]
    return kept


def past_key(context: Context, operation: str) -> str:
    """Where an operation apart from its object is kept: among those of its own caller.

    Otherwise one tenant could use up the ids that another is about to use.
    """
    return keys.operation(f"{context.identity.name}/{operation}")


def recall_past(
    draft: Draft, context: Context, operation: str, mark: str
) -> Replayed | Refusal | None:
    """The same for operations whose object is gone or was named by the server."""
    if not operation:
        return None
    past: PastOperation | None = draft.read(past_key(context, operation))
    return _judge(past.operation, mark) if past is not None else None


def remember_past(draft: Draft, context: Context, obj: Object, operation: str, mark: str) -> None:
    """Keep an operation apart from its object; the servers forget it after its time."""
    if not operation:
        return
    kept_for = timedelta(milliseconds=context.settings.operations_kept_ms)
    draft.write(
        past_key(context, operation),
        PastOperation(
            operation=Operation(id=operation, digest=mark, at=context.at),
            key=keys.key_of(obj),
            uid=obj.metadata.uid,
            until=context.at + kept_for,
        ),
    )


def forget(draft: Draft, context: Context, request: ForgetOperations) -> Refusal | None:
    """Forget operations whose time has passed. Those that must still be remembered stay."""
    if not context.is_actor(Actor.GARBAGE, Actor.AUTHORITY):
        return Refusal(Reason.NOT_OWNER, "only servers and controller:garbage forget operations")
    # A server needs no lease for it: whichever of them does it, and however often, each record says
    # for itself that its time is over.
    if not context.is_actor(Actor.AUTHORITY):
        refusal = term_refusal(draft, context, request.term)
        if refusal is not None:
            return refusal
    kept_since = context.at - timedelta(milliseconds=context.settings.skew_ms)
    wanted = [keys.operation(name) for name in request.operations]
    for key, past in zip(wanted, for_each(wanted, draft.read), strict=True):
        if past is not None and past.until <= kept_since:
            draft.delete(key)
    return None
