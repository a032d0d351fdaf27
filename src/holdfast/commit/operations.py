"""Remembering what was accepted, so that asking again is not doing again.

An operation id is the caller's own: identity, uid, transition number and intent, the same for
every try. It is kept on the object it changed. Deletes and generated names, which leave no
object to keep it on, get a record of their own, and changes that state no version, which would be
made to the next object of that name as well. A refusal is never remembered: it is decided anew,
since the world may have changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from functools import cache

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, SomeObject, for_each
from holdfast.commit.leases import term_refusal
from holdfast.commit.records import PastOperation
from holdfast.model import keys
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object, ObjectMeta, Operation
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import ForgetOperations
from holdfast.model.transaction import ABSENT

# The result of an apply that made its object, by which its repetition is answered in the same way.
CREATED = "created"
# How digests begin that were made in this way. Others are not compared.
_SCHEME = "2:"
_OBJECT_FIELDS = ("object", "node")
_encode = msgspec.json.Encoder().encode


def operation_id(identity: str, uid: str, number: int, intent: str) -> str:
    """The id that a component gives its operation; equal for every try of the same intention."""
    return f"{identity}/{uid}/{number}/{intent}"


def digest(request: msgspec.Struct) -> str:
    """What the request asks for, in short, whatever the term that it is asked under.

    The same id for something else is a mistake of the caller. The next holder of a lease that asks
    for the same is none. Nothing that is at its default goes into it: a version that has one more
    field finds the same for the same request, wherever it is tried again.
    """
    body = request
    if getattr(body, "term", None) is not None:
        body = msgspec.structs.replace(body, term=None)
    parts: list[bytes] = [type(request).__name__.encode()]
    for field in _OBJECT_FIELDS:
        obj = getattr(request, field, None)
        if isinstance(obj, Object):
            parts += _stated(obj)
            body = msgspec.structs.replace(body, **{field: None})
    hashed = hashlib.blake2b(b"\n".join((*parts, _encode(body))), digest_size=12)
    return f"{_SCHEME}{hashed.hexdigest()}"


def _stated(obj: Object) -> Iterator[bytes]:
    """The sections of an object that are not at their defaults, each with its name.

    An object always shows all of them, so they are looked at one by one. What the server keeps in
    the metadata is none of the caller's wishes.
    """
    for name, shown, default in _sections(type(obj)):
        value = getattr(obj, name)
        if isinstance(value, ObjectMeta):
            value = msgspec.structs.replace(value, managed_fields=(), operations=())
        said = _encode(value)
        if said != default:
            yield shown
            yield said


@cache
def _sections(cls: type[Object]) -> tuple[tuple[str, bytes, bytes], ...]:
    """Name, name on the wire, and the encoded default of each."""
    return tuple(
        (it.name, it.encode_name.encode(), _default(it)) for it in msgspec.structs.fields(cls)
    )


def _default(field: msgspec.structs.FieldInfo) -> bytes:
    """What a section is when nothing is said of it; nothing at all where it has to be said."""
    if field.default_factory is not msgspec.NODEFAULT:
        return _encode(field.default_factory())
    return _encode(field.default) if field.default is not msgspec.NODEFAULT else b""


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
    # A version that made digests in another way remembers the id, which is the caller's own.
    if past.digest == mark or not past.digest.startswith(_SCHEME):
        return Replayed(past)
    return Refusal(
        Reason.OPERATION_REUSED,
        f"operation {past.id!r} was accepted before for another request",
        {"operation": past.id},
    )


def add_operation(
    draft: Draft, context: Context, obj: SomeObject, operation: str, mark: str, result: str = ""
) -> SomeObject:
    """The object with this operation kept,
    and the old ones let go that need not be kept any more.
    """
    if not operation:
        return obj
    made = Operation(id=operation, digest=mark, at=context.at, result=result)
    kept = _dated(obj.metadata.operations, draft.revision(keys.key_of(obj)))
    if len(kept) >= context.settings.operations_kept:
        kept = _young(kept, context)
    metadata = msgspec.structs.replace(obj.metadata, operations=(*kept, made))
    return msgspec.structs.replace(obj, metadata=metadata)


def _dated(kept: tuple[Operation, ...], revision: int) -> tuple[Operation, ...]:
    """Those that an object remembers, each with a revision by which it had been accepted.

    It is not known while an operation is written, so the next write of the object adds it. The
    object as it is now has all of them; a number beyond its revision is of another store.
    """
    if revision <= ABSENT:
        return kept
    return tuple(
        past
        if ABSENT < past.revision <= revision
        else msgspec.structs.replace(past, revision=revision)
        for past in kept
    )


def _young(kept: tuple[Operation, ...], context: Context) -> tuple[Operation, ...]:
    """Those that have to be kept beside a new one."""
    settings = context.settings
    while len(kept) >= settings.operations_kept and (
        context.is_surely_older(kept[0].revision, settings.operations_kept_ms + 1)
        or len(kept) >= settings.operations_max
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


def remember_past(
    draft: Draft, context: Context, obj: Object, operation: str, mark: str, result: str = ""
) -> None:
    """Keep an operation apart from its object; the servers forget it after its time."""
    if not operation:
        return
    kept_for = timedelta(milliseconds=context.settings.operations_kept_ms)
    draft.write(
        past_key(context, operation),
        PastOperation(
            operation=Operation(id=operation, digest=mark, at=context.at, result=result),
            key=keys.key_of(obj),
            uid=obj.metadata.uid,
            until=context.at + kept_for,
        ),
    )


def _unversioned(operation: str, key: str) -> str:
    """The id under which a change that states no version is kept apart from its object.

    With the object's key, since a caller may use one id for changes of several objects.
    """
    return f"{operation}/{key}" if operation else ""


def recall_unversioned(
    draft: Draft, context: Context, key: str, operation: str, mark: str
) -> Replayed | Refusal | None:
    """Whether this change of whatever has this key was accepted before."""
    if not operation:
        return None
    draft.suppose_absent(past_key(context, _unversioned(operation, key)))
    return recall_past(draft, context, _unversioned(operation, key), mark)


def remember_unversioned(
    draft: Draft, context: Context, obj: Object, operation: str, mark: str
) -> None:
    """Keep the operation of a change that states no version or uid of its object.

    Nothing else keeps a copy of it from changing the object again: after more operations than the
    object remembers, after it changed nothing the first time, or after the object was deleted and
    another one made under its name.
    """
    name = _unversioned(operation, keys.key_of(obj))
    remember_past(draft, context, obj, name, mark)


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
    kept_ms = context.settings.operations_kept_ms + context.settings.skew_ms
    wanted = [keys.operation(name) for name in request.operations]
    for key, past in zip(wanted, for_each(wanted, draft.read), strict=True):
        # Its calendar may have been anything, so what counts is when the store has had it.
        if past is not None and context.is_surely_older(draft.revision(key), kept_ms):
            draft.delete(key)
    return None
