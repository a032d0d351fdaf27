"""The typed requests of `model.requests` over HTTP: many in one body, each decided separately.

The first try of all goes out together. Each request without a clear answer then goes through the
retry machine: it is looked for on the object that it concerns, and sent again under its operation
id.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from holdfast.host.client import paths
from holdfast.host.client.answers import ApiStatus, error_of
from holdfast.host.client.retrying import Performer, RefusedAnswer
from holdfast.host.client.writing import fetch_object, is_remembered
from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.errors import HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.meta import Object
from holdfast.model.registry import kind_named, kind_of_struct
from holdfast.model.requests import Accepted
from holdfast.observe.retry import Nature, Send

REQUESTS_PATH = f"{paths.GROUP}/requests"
# This many requests of a batch are resolved one by one at the same time.
RESOLVING_MAX = 32

Verdict = Accepted | HoldfastError


class Result(msgspec.Struct, frozen=True):
    """The outcome of one request: success with its objects, or a refusal with its Status."""

    code: int = 200
    revision: int = 0
    replayed: bool = False
    objects: list[msgspec.Raw] = []
    reason: str = ""
    status: ApiStatus = ApiStatus()


class Results(msgspec.Struct, frozen=True):
    """The answer to many requests, in their order."""

    items: list[Result]


class _OnlyKind(msgspec.Struct, frozen=True):
    kind: str


_ONE = msgspec.json.Decoder(Result)
_MANY = msgspec.json.Decoder(Results)
_encode = msgspec.json.Encoder().encode


class RequestClient(Protocol):
    """The part of a client that is needed here."""

    @property
    def performer(self) -> Performer: ...

    async def fetch(self, path: str, query: dict[str, str] | None, timeout_s: float) -> bytes: ...

    async def put(
        self, method: str, path: str, body: bytes, operation: str, effect: Send
    ) -> bytes: ...


async def ask_each(client: RequestClient, requests: Sequence[Any]) -> list[Verdict]:
    """Return the verdict on each, in their order, with refusals and errors as values."""
    wanted = [_named(request) for request in requests]
    if not wanted:
        return []
    if len(wanted) == 1:
        return [await _resolve(client, wanted[0], None)]
    first = await _together(client, wanted)
    turns = asyncio.Semaphore(RESOLVING_MAX)

    async def settle(request: Any, verdict: Accepted | RefusedAnswer) -> Verdict:
        if isinstance(verdict, Accepted):
            return verdict
        async with turns:
            return await _resolve(client, request, verdict)

    return await asyncio.gather(*map(settle, wanted, first))


def _named(request: Any) -> Any:
    """Return the request under an operation id, the same for all its tries."""
    if getattr(request, "operation", None) != "":
        return request
    return msgspec.structs.replace(request, operation=uuid.uuid4().hex)


async def _together(
    client: RequestClient, requests: Sequence[Any]
) -> list[Accepted | RefusedAnswer]:
    """Send all of them once. Return the outcomes."""
    effect = Send(client.performer.policy.try_ms)
    try:
        body = await client.put("POST", REQUESTS_PATH, _encode(requests), "", effect)
        results = [_verdict(item) for item in _MANY.decode(body).items]
    except RefusedAnswer as refused:
        return [refused] * len(requests)
    except HoldfastError as error:
        return [RefusedAnswer(error, 0)] * len(requests)
    except msgspec.DecodeError as error:
        return [RefusedAnswer(OutcomeUnknown(f"the answer cannot be decoded: {error}"), 0)] * len(
            requests
        )
    if len(results) != len(requests):
        unknown = OutcomeUnknown("the answer is for other requests")
        return [RefusedAnswer(unknown, 0)] * len(requests)
    return results


async def _resolve(client: RequestClient, request: Any, first: RefusedAnswer | None) -> Verdict:
    """Complete one request. `first` is the outcome of its first try, with others."""
    body, operation = _encode(request), getattr(request, "operation", "")
    waiting = first

    async def send(effect: Send) -> Accepted:
        nonlocal waiting
        if waiting is not None:
            refused, waiting = waiting, None
            raise refused
        answer = await client.put("POST", REQUESTS_PATH, body, operation, effect)
        verdict = _verdict(_ONE.decode(answer))
        if isinstance(verdict, RefusedAnswer):
            raise verdict
        return verdict

    async def look(timeout_s: float) -> Accepted | None:
        place = _place(request)
        if place is None or not operation:
            return None
        cls, path = place
        obj = await fetch_object(client, cls, path, timeout_s)
        if obj is None or not is_remembered(obj, operation):
            return None
        return _found(obj)

    try:
        accepted: Accepted = await client.performer.perform(Nature.WRITE, send, look)
    except HoldfastError as error:
        return error
    return accepted


def _found(obj: Object) -> Accepted:
    """Return the acceptance of a request that an object remembers."""
    try:
        revision = object_revision(obj.metadata.resource_version)
    except Invalid as error:
        # The request was accepted, so this must not look like its refusal.
        raise Unavailable(f"the answer cannot be decoded: {error.message}") from error
    return Accepted(revision, (obj,), replayed=True)


def _verdict(result: Result) -> Accepted | RefusedAnswer:
    if not 200 <= result.code < 300:
        error = error_of(result.code, result.status, result.reason, may_have_happened=True)
        return RefusedAnswer(error, result.status.details.retry_after_seconds * 1_000)
    objects = tuple(read_object(bytes(raw)) for raw in result.objects)
    return Accepted(result.revision, objects, result.replayed)


def read_object(body: bytes) -> Object:
    """Decode an object of any kind. Raises a decoding error, or Missing for an unknown kind."""
    kind = kind_named(msgspec.json.decode(body, type=_OnlyKind).kind)
    return decode_trusted(kind.struct, body)


def _place(request: Any) -> tuple[type[Object], str] | None:
    """Return the object that remembers an accepted request, if one does.

    Where none does, the request states its precondition (an epoch, a ledger's revision), so that it
    takes effect at most once.
    """
    if hasattr(request, "target"):
        target = request.target
        return Replica, paths.one(kind_of_struct(Replica), target.namespace, target.name)
    if hasattr(request, "binds"):
        return _place(request.binds[0]) if request.binds else None
    if hasattr(request, "reservation"):
        kind = kind_of_struct(Reservation)
        return Reservation, paths.one(kind, request.namespace, request.reservation)
    if hasattr(request, "node"):
        name = request.node.name if isinstance(request.node, Node) else request.node
        return Node, paths.one(kind_of_struct(Node), "", name)
    scope = getattr(request, "scope", None) or getattr(
        getattr(request, "term", None), "scope", None
    )
    if scope and not hasattr(request, "namespace"):
        return Lease, paths.one(kind_of_struct(Lease), "", lease_name(scope))
    return None
