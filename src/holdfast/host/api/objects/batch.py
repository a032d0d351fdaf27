"""Many objects in one request: an array or a `List`, each created or refused by itself.

The response has one result for each object, in order, with the code that a request of its own would
have got. The objects reach the authority together and so share its group commit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web

from holdfast.host.api import status_objects
from holdfast.host.api.call import Call, bad, code_of, reply
from holdfast.host.api.objects import slices
from holdfast.host.api.objects.bodies import (
    decode_object,
    demand_unversioned,
    is_dry,
    manager,
    validation,
)
from holdfast.model.encoding import wire
from holdfast.model.encoding.problems import CODE_TOO_LARGE, malformed_error
from holdfast.model.errors import HoldfastError
from holdfast.model.kind_declaration import Kind
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Create

OBJECTS_MAX = 5_000
# A body of ordinary objects has fewer: there a comma separates fields, each with a key and a value.
COMMAS_MAX = 150_000


class _Head(msgspec.Struct):
    """The part of a list that tells it from an object."""

    kind: str = ""
    items: list[msgspec.Raw] | None = None


_HEAD = msgspec.json.Decoder(_Head)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


def demand_few(body: bytes) -> None:
    """Refuse a body with too many values before it is split. Raises Invalid."""
    if body.count(b",") > COMMAS_MAX:
        raise malformed_error(f"must have at most {COMMAS_MAX} values", code=CODE_TOO_LARGE)


def split(kind: Kind, body: bytes) -> list[bytes] | None:
    """The objects of a body that holds many; None if it is one object, or not a known form.

    Each is cut out unchanged and goes through all the guards of a body by itself.
    """
    is_array = body[:64].lstrip()[:1] == b"["
    if not is_array and b'"items"' not in body:
        return None
    demand_few(body)
    try:
        if is_array:
            found = _ARRAY.decode(body)
        else:
            head = _HEAD.decode(body)
            if head.items is None or head.kind not in ("List", f"{kind.name}List"):
                return None
            found = head.items
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The decoder of objects explains what is wrong with it.
        return None
    if len(found) > OBJECTS_MAX:
        bad(f"items: at most {OBJECTS_MAX} objects per request, not {len(found)}; send fewer")
    return [bytes(item) for item in found]


async def create_many(call: Call, bodies: Sequence[bytes]) -> web.StreamResponse:
    """Create all of them. `?results=names` leaves the objects out of the response."""
    wish, who, dry, term = validation(call), manager(call), is_dry(call), call.term
    brief = call.query.get("results") == "names"
    names = [""] * len(bodies)

    def make(number: int) -> Create | HoldfastError:
        try:
            found = decode_object(call, bodies[number], wish)
            demand_unversioned(found.object)
        except HoldfastError as error:
            return error
        names[number] = found.object.name
        operation = f"{call.operation}/{number}" if call.operation else ""
        return Create(found.object, who, dry, operation, term)

    results = []
    verdicts = await slices.decide_in_slices(call, len(bodies), make)
    for number, (name, verdict) in enumerate(zip(names, verdicts, strict=True)):
        results.append(result(verdict, call.kind, name, brief=brief))
        await slices.yield_after_slice(number)
    return reply(200, results_body(results))


def results_body(results: Sequence[bytes]) -> bytes:
    """The response to many requests in one."""
    return b'{"kind":"ResultList","apiVersion":"holdfast.dev/v1","items":[%b]}' % b",".join(results)


def result(
    verdict: Accepted | Refusal | HoldfastError,
    kind: Kind | None,
    name: str,
    *,
    brief: bool,
) -> bytes:
    """The result of one of many."""
    if not isinstance(verdict, Accepted):
        failed, body, _ = status_objects.of(verdict, kind, name)
        reason = verdict.reason if isinstance(verdict, Refusal) else verdict.code
        return b'{"code":%d,"reason":"%b","status":%b}' % (failed, reason.encode(), body)
    if brief:
        names = [
            {"name": obj.name, "uid": obj.metadata.uid, "version": obj.metadata.resource_version}
            for obj in verdict.objects
        ]
        return b'%b,"names":%b}' % (opening(verdict), msgspec.json.encode(names))
    objects = b",".join([wire.encode(obj) for obj in verdict.objects])
    return b'%b,"objects":[%b]}' % (opening(verdict), objects)


def opening(verdict: Accepted) -> bytes:
    """The beginning of the result of an accepted request; only its objects follow."""
    return b'{"code":%d,"revision":%d,"replayed":%b' % (
        code_of(verdict),
        verdict.revision,
        b"true" if verdict.replayed else b"false",
    )
