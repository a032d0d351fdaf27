"""Each request to the servers as one HTTP call, and how to decode its answer.

Components (`host/client/api_client`) and the client of users (`host/client/writing`) encode their
requests here. Most typed requests and creates have no call of their own:
many of them are sent in one (`host/client/request_batches`). Lifelines do: the renewal of a lease
or the verdict on a node must not wait for the slowest of a hundred others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.host.client import paths
from holdfast.host.client.answers import UNREADABLE, HttpAnswer
from holdfast.host.client.create_form import can_carry
from holdfast.host.client.paths import OPERATION_HEADER, TERM_HEADER
from holdfast.host.client.verdicts import (
    Result,
    refusal_of_answer,
    unreadable_answer,
    verdict_of,
    write_verdict,
)
from holdfast.model.access.identity import Identity
from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.encoding.wire import decode_trusted, encode
from holdfast.model.errors import Invalid, InvariantBroken, Missing, Unavailable, unexpected
from holdfast.model.machine import Question
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport, Renew, Renewed
from holdfast.model.read_requests import Get, GetResult, Reach
from holdfast.model.registry import kind_of, kind_of_plural
from holdfast.model.requests import (
    LIFELINES,
    Create,
    Forward,
    Patch,
    QuarantineRecord,
    RaiseFormat,
    Remove,
    RepairRecord,
    Term,
    TermRequest,
    TypedRequest,
    Update,
    refuses_unknown,
)

JSON = "application/json"
REQUESTS_PATH = f"{paths.GROUP}/requests"
HEARTBEATS_PATH = f"{paths.GROUP}/heartbeats"
TERMS_PATH = f"{paths.GROUP}/terms"
RECORDS_PATH = f"{paths.GROUP}/records"
QUARANTINE_PATH = f"{paths.GROUP}/quarantine"
REPAIRS_PATH = f"{QUARANTINE_PATH}/repairs"
UPGRADE_PATH = f"{paths.GROUP}/upgrade"
FORMAT_PATH = f"{UPGRADE_PATH}/format"
PULSES_PATH = f"{paths.GROUP}/pulses"
# The servers' limit; the names of some nodes are longer.
_MANAGER_MAX = 128

# Servers handle these before anything else, and nothing here delays them.
PROMPT = (Renew, HeartbeatQuery, *LIFELINES)

_JSON = msgspec.json.Encoder()


class ApiCall(msgspec.Struct, frozen=True):
    """One HTTP request; `read` turns the answer into what the machine gets."""

    method: str
    path: str
    read: Callable[[HttpAnswer], Any]
    body: bytes | None = None
    query: dict[str, str] = {}
    headers: dict[str, str] = {}


def is_batched(body: Any) -> bool:
    """Return whether it is a request that is sent in a batch."""
    if isinstance(body, Create):
        return can_carry(body)
    return isinstance(body, TypedRequest) and not body.is_lifeline


def api_call(sender: Identity | None, body: Question) -> ApiCall:
    """Return the HTTP call for a request. Raises InvariantBroken for those that have none.

    A sender is the field manager where the request names none. Users have no name here: their
    servers know them by their credentials.
    """
    match body:
        case Get():
            return _get(body)
        case Renew():
            path = renewals_path(body.node)
            return ApiCall("POST", path, _renewed, _JSON.encode(body), headers=_headers(""))
        case HeartbeatQuery():
            return ApiCall("GET", HEARTBEATS_PATH, _heard)
        case TypedRequest(is_lifeline=True):
            return ApiCall("POST", TERMS_PATH, _decided, _JSON.encode(body), headers=_headers(""))
        case Create(object=obj):
            path = paths.collection(kind_of(obj), obj.namespace)
            return _write("POST", path, sender, body, encode(obj))
        case Update(object=obj):
            path = paths.one(kind_of(obj), obj.namespace, obj.name, body.subresource)
            return _write("PUT", path, sender, body, encode(obj))
        case Patch():
            return _patch(sender, body)
        case Remove():
            return _remove(body)
        case (
            # Sent in a batch, or by servers to each other and to themselves.
            TypedRequest()
            | Forward()
            | TermRequest()
            | Reach()
            | QuarantineRecord()
            # People have routes for these.
            | RepairRecord()
            | RaiseFormat()
        ):
            raise InvariantBroken(f"no server can be asked {type(body).__name__} in a call")
        case _:
            return unexpected(body, "no server can be asked")


def renewals_path(node: str) -> str:
    """Return the path for the heartbeats of a node's agent."""
    return f"{paths.GROUP}/nodes/{quote(node, safe='')}/renewals"


def _headers(operation: str, form: str = JSON, term: Term | None = None) -> dict[str, str]:
    headers = {"Content-Type": form}
    if operation:
        headers[OPERATION_HEADER] = operation
    if term is not None:
        headers[TERM_HEADER] = f"{term.epoch} {term.scope}"
    return headers


def _get(get: Get) -> ApiCall:
    kind = kind_of_plural(get.plural)

    def read(answer: HttpAnswer) -> Any:
        # Only our own servers know that there is none; a 404 from a proxy proves nothing.
        if answer.code == 404 and answer.reason == Missing.code:
            return GetResult(None, 0)
        if not answer.is_good:
            return refusal_of_answer(answer, is_write=False)
        try:
            obj = decode_trusted(kind.struct, answer.body)
            return GetResult(obj, object_revision(obj.metadata.resource_version))
        except (*UNREADABLE, Invalid) as error:
            return Unavailable(f"the answer cannot be decoded: {error}")

    return ApiCall("GET", paths.one(kind, get.namespace, get.name), read)


def _write(
    method: str,
    path: str,
    sender: Identity | None,
    request: Create | Update | Patch,
    data: bytes,
    *,
    form: str = JSON,
) -> ApiCall:
    is_strict = isinstance(request, Patch) or refuses_unknown(request)
    query = {"fieldValidation": "Strict" if is_strict else "Ignore"}
    manager = request.manager or (sender.name[:_MANAGER_MAX] if sender is not None else "")
    if manager:
        query["fieldManager"] = manager
    if request.dry_run:
        query["dryRun"] = "All"
    headers = _headers(request.operation, form, request.term)
    return ApiCall(method, path, write_verdict, data, query, headers)


def _patch(sender: Identity | None, patch: Patch) -> ApiCall:
    kind = kind_of_plural(patch.plural)
    path = paths.one(kind, patch.namespace, patch.name, patch.subresource)
    made = _write("PATCH", path, sender, patch, _JSON.encode(patch.body), form=patch.type.value)
    query = dict(made.query)
    if patch.force:
        query["force"] = "true"
    if not patch.strict:
        query["fieldValidation"] = "Ignore"
    return msgspec.structs.replace(made, query=query)


def _remove(remove: Remove) -> ApiCall:
    options: dict[str, Any] = {"propagationPolicy": remove.propagation.value}
    before = {"uid": remove.uid, "resourceVersion": remove.resource_version}
    if any(before.values()):
        options["preconditions"] = {key: value for key, value in before.items() if value}
    # In Kubernetes a grace period of 0 means force.
    grace = 0 if remove.force else remove.grace_seconds or None
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    path = paths.one(kind_of_plural(remove.plural), remove.namespace, remove.name)
    query = {"dryRun": "All"} if remove.dry_run else {}
    headers = _headers(remove.operation, term=remove.term)
    return ApiCall("DELETE", path, write_verdict, _JSON.encode(options), query, headers)


def _decided(answer: HttpAnswer) -> Any:
    if not answer.is_good:
        return refusal_of_answer(answer, is_write=True)
    try:
        return verdict_of(msgspec.json.decode(answer.body, type=Result))
    except UNREADABLE as error:
        return unreadable_answer(error)


def _renewed(answer: HttpAnswer) -> Any:
    if not answer.is_good:
        return refusal_of_answer(answer, is_write=True)
    try:
        return msgspec.json.decode(answer.body, type=Renewed)
    except UNREADABLE as error:
        return unreadable_answer(error)


def _heard(answer: HttpAnswer) -> Any:
    if not answer.is_good:
        return refusal_of_answer(answer, is_write=False)
    try:
        return msgspec.json.decode(answer.body, type=HeartbeatReport)
    except UNREADABLE as error:
        return Unavailable(f"the answer cannot be decoded: {error}")
