"""Operations: remembering what was accepted, so that a retry is not done twice.

The caller chooses an operation id: identity, uid, transition number and intent, the same for every
try. It is kept on the object that it changed. Some operations get a record of their own: deletes
and generated names, which leave no object to keep it on, and changes that state no version, which
would also apply to the next object of that name. A refusal is never remembered: it is decided
again, because the state may have changed.
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
from holdfast.commit.record_encoding import PastOperation
from holdfast.commit.request_steps import ComparedRecord, PlacementStep, Replayed
from holdfast.model import keys
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object, ObjectMeta, Operation
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import ForgetOperations
from holdfast.model.transaction import ABSENT

# The result of an apply that created its object, so that a retry gets the same answer.
CREATED = "created"
# The prefix of digests of this scheme. Others are not compared.
_SCHEME = "2:"
_encode = msgspec.json.Encoder().encode


def digest(request: msgspec.Struct) -> str:
    """A digest of what the request asks for, whatever term it is made under.

    The same id for a different request is an error of the caller; the same request by the next
    holder of a lease is not. Defaults do not enter it: a version with one more field computes the
    same digest for the same request, wherever it is retried.
    """
    body = request
    if "term" in body.__struct_fields__:
        body = msgspec.structs.replace(body, term=None)
    parts: list[bytes] = [type(request).__name__.encode()]
    for field, value in msgspec.structs.asdict(request).items():
        if isinstance(value, Object):
            parts += _stated(value)
            body = msgspec.structs.replace(body, **{field: None})
    hashed = hashlib.blake2b(b"\n".join((*parts, _encode(body))), digest_size=12)
    return f"{_SCHEME}{hashed.hexdigest()}"


def _stated(obj: Object) -> Iterator[bytes]:
    """The sections of an object that are not at their defaults, each with its name.

    An object always shows all of them, so they are compared one by one. The server's own metadata
    is no part of what the caller asks for.
    """
    sections = msgspec.structs.asdict(obj)
    for name, shown, default in _sections(type(obj)):
        value = sections[name]
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
    """The encoded default of a section; empty for a required one."""
    if field.default_factory is not msgspec.NODEFAULT:
        return _encode(field.default_factory())
    return _encode(field.default) if field.default is not msgspec.NODEFAULT else b""


def recall(metadata: ObjectMeta, operation: str, mark: str) -> Replayed | Refusal | None:
    """What the object remembers of this operation: done, its id used for another request, or
    nothing.
    """
    if not operation:
        return None
    for past in metadata.operations:
        if past.id == operation:
            return _judge(past, mark)
    return None


def _judge(past: Operation, mark: str) -> Replayed | Refusal:
    # A version with another digest scheme remembers the id, which is the caller's own.
    if past.digest == mark or not past.digest.startswith(_SCHEME):
        return Replayed(past)
    return Refusal(
        Reason.OPERATION_REUSED,
        f"operation {past.id!r} was already accepted for another request",
        {"operation": past.id},
    )


def add_operation(
    draft: Draft, context: Context, obj: SomeObject, operation: str, mark: str, result: str = ""
) -> SomeObject:
    """The object with this operation added, and without old ones that need not be kept any more."""
    if not operation:
        return obj
    made = Operation(id=operation, digest=mark, at=context.at, result=result)
    kept = _dated(obj.metadata.operations, draft.revision(keys.key_of(obj)))
    if len(kept) >= context.settings.operations_kept:
        kept = _young(kept, context)
    metadata = msgspec.structs.replace(obj.metadata, operations=(*kept, made))
    return msgspec.structs.replace(obj, metadata=metadata)


def _dated(kept: tuple[Operation, ...], revision: int) -> tuple[Operation, ...]:
    """The remembered operations, each with a revision by which it had been accepted.

    The revision is not known while an operation is written, so the next write of the object adds
    it. The current object contains all of them; a number beyond its revision is of another store.
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
    """The operations that must be kept beside a new one."""
    settings = context.settings
    while len(kept) >= settings.operations_kept and (
        context.is_surely_older(kept[0].revision, settings.operations_kept_ms + 1)
        or len(kept) >= settings.operations_max
    ):
        kept = kept[1:]
    return kept


def past_key(context: Context, operation: str) -> str:
    """The key of an operation that is kept in a record of its own: below its own caller.

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
    """Keep an operation in a record of its own; the servers delete it after its time."""
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
    """The id of the separate record for a change that states no version.

    It contains the object's key, because a caller may use one id for changes of several objects.
    """
    return f"{operation}/{key}" if operation else ""


def recall_unversioned(
    draft: Draft, context: Context, key: str, operation: str, mark: str
) -> Replayed | Refusal | None:
    """Whether this change to the object at this key was accepted before."""
    if not operation:
        return None
    draft.suppose_absent(past_key(context, _unversioned(operation, key)))
    return recall_past(draft, context, _unversioned(operation, key), mark)


def remember_unversioned(
    draft: Draft, context: Context, obj: Object, operation: str, mark: str
) -> None:
    """Keep the operation of a change that states no version or uid of its object.

    Nothing else prevents a copy of it from changing the object again: after more operations than
    the object remembers, after it changed nothing the first time, or after the object was deleted
    and another one created under its name.
    """
    name = _unversioned(operation, keys.key_of(obj))
    remember_past(draft, context, obj, name, mark)


def forget(draft: Draft, context: Context, request: ForgetOperations) -> Refusal | None:
    """Forget operations whose time has passed. Those that must still be remembered stay."""
    if not context.is_actor(Actor.GARBAGE, Actor.AUTHORITY):
        return Refusal(
            Reason.NOT_OWNER, "only servers and controller:garbage may forget operations"
        )
    # A server needs no lease for it: whichever server does it, and however often, each record
    # proves that its own time is over.
    if not context.is_actor(Actor.AUTHORITY):
        refusal = term_refusal(draft, context, request.term)
        if refusal is not None:
            return refusal
    kept_ms = context.settings.operations_kept_ms + context.settings.skew_ms
    wanted = [keys.operation(name) for name in request.operations]
    for key, past in zip(wanted, for_each(wanted, draft.read), strict=True):
        # Its wall clock may have been wrong, so the age of its revision in the store counts.
        if past is not None and context.is_surely_older(draft.revision(key), kept_ms):
            draft.delete(key)
    return None


STEPS = (
    PlacementStep(
        "forget operations",
        "server, controller:garbage",
        "operations whose time is over",
        "nothing: an operation is written once and never again",
        "the age of the record's revision, in the transaction",
        request=ForgetOperations,
        handler=forget,
        compares=(ComparedRecord.OPERATION, ComparedRecord.EPOCH),
    ),
)
