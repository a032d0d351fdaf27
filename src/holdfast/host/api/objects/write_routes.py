"""Create, update, delete: from bytes to a request to the authority, and from its verdict back.

Nothing is decided here: the authority decides what is valid and who may change it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from holdfast.host.api import status_objects
from holdfast.host.api.call import Call, bad, code_of, reply
from holdfast.host.api.objects import batch, presentation, reads, slices
from holdfast.host.api.objects.bodies import (
    decode_object,
    demand_json,
    demand_unversioned,
    is_dry,
    manager,
    validation,
)
from holdfast.host.api.objects.computed_fields import with_computed_fields_if_known
from holdfast.host.api.objects.scope import SECRETS, selection
from holdfast.host.audit.accesses import READ
from holdfast.model.encoding import wire
from holdfast.model.encoding.problems import describe_error
from holdfast.model.encoding.resource_versions import complete_version
from holdfast.model.errors import Invalid
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Create, Propagation, Remove, Update

# Warning headers, which kubectl prints and every other client may ignore.

# More would not fit a terminal, nor the header limits of some proxies.
WARNINGS_MAX = 16
TEXT_MAX = 256


def warning_headers(warnings: tuple[str, ...]) -> dict[str, str] | None:
    """The headers for these warnings; several share one header, separated by commas."""
    if not warnings:
        return None
    return {"Warning": ", ".join(map(_warning, warnings[:WARNINGS_MAX]))}


def _warning(text: str) -> str:
    plain = "".join(c if c.isprintable() and c.isascii() else "?" for c in text[:TEXT_MAX])
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'


async def create(call: Call) -> web.StreamResponse:
    """A new object."""
    # Before the body: a caller that may not write here learns nothing about what is valid.
    call.demand(call.route.verb)
    demand_json(call)
    wish, body = validation(call), await call.body()
    many = batch.split(call.kind, body)
    if many is not None:
        return await batch.create_many(call, many)
    found = decode_object(call, body, wish)
    # A collection's path has no name, but refusals and replays are about this object.
    call.name = found.object.name
    demand_unversioned(found.object)
    request = Create(found.object, manager(call), is_dry(call), call.operation, call.term)
    return await write_response(call, await call.ask(request), found.warnings)


async def update(call: Call) -> web.StreamResponse:
    """Replace an object, or its status."""
    call.demand(call.route.verb)
    demand_json(call)
    found = decode_object(call, await call.body(), validation(call))
    request = Update(
        found.object, call.route.subresource, manager(call), is_dry(call), call.operation, call.term
    )
    return await write_response(call, await call.ask(request), found.warnings)


async def write_response(
    call: Call, verdict: Accepted | Refusal, warnings: tuple[str, ...] = ()
) -> web.StreamResponse:
    """The response to a write: the object as it is now, and 201 if the write created it."""
    if isinstance(verdict, Refusal):
        return call.refusal_response(verdict)
    if not verdict.objects:
        return await replay_response(call, code_of(verdict))
    obj = verdict.objects[0]
    if call.kind.plural == SECRETS:
        # A patch that changes nothing, or a dry run, shows the Secret to a caller that may not read
        # it.
        await call.witness(READ, "in the answer to a write", waits=False)
    (body,) = await with_computed_fields_if_known(call, [wire.encode(obj)])
    shape = call.shape
    if shape:
        body = presentation.one(call.route.facade, shape, call.kind, body)
    return reply(code_of(verdict), body, warning_headers((*warnings, *verdict.warnings)))


async def replay_response(call: Call, code: int = 200) -> web.StreamResponse:
    """The response to an operation that was accepted before: the object as it is now."""
    entry = await reads.current(call) if call.name else None
    if entry is None:
        return reply(200, status_objects.success(call.kind, call.name, ""))
    if call.kind.plural == SECRETS:
        await call.witness(READ, "in the answer to a write", waits=False)
    return reply(code, entry.data)


# Deleting ------------------------------------------------------------------------------------


class _Preconditions(msgspec.Struct, frozen=True, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _Options(msgspec.Struct, frozen=True, rename="camel"):
    """The DeleteOptions that have a meaning here."""

    propagation_policy: str | None = None
    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None


async def _options(call: Call) -> dict[str, Any]:
    """The arguments of a Remove, from the body and the query; Kubernetes allows both."""
    body = await call.body()
    options = _Options()
    if body:
        demand_json(call)
        # Whether work may finish depends on the options, so a body that two readers could
        # understand in two ways is refused.
        tree = wire.decode_tree(body)
        try:
            options = msgspec.convert(tree, _Options)
        except msgspec.ValidationError as error:
            bad(f"the body must be DeleteOptions: {describe_error(error)}")
    grace = call.number("gracePeriodSeconds", options.grace_period_seconds)
    policy = call.query.get("propagationPolicy") or options.propagation_policy or "Background"
    if options.orphan_dependents:
        policy = Propagation.ORPHAN
    if policy not in tuple(Propagation):
        allowed = ", ".join(Propagation)
        raise Invalid(f"propagationPolicy: {policy[:40]!r} must be one of {allowed}")
    before = options.preconditions or _Preconditions()
    return {
        "uid": before.uid or "",
        "resource_version": before.resource_version or "",
        "propagation": Propagation(policy),
        "grace_seconds": grace,
        # As in Kubernetes: a grace of zero states that the work is known to be gone.
        "force": grace == 0,
        "dry_run": is_dry(call) or bool(options.dry_run),
    }


async def delete(call: Call) -> web.StreamResponse:
    """Ask for an object's deletion."""
    call.demand(call.route.verb)
    request = Remove(
        call.kind.plural,
        call.namespace,
        call.name,
        operation=call.operation,
        term=call.term,
        **await _options(call),
    )
    verdict = await call.ask(request)
    if isinstance(verdict, Refusal):
        return call.refusal_response(verdict)
    if not verdict.objects:
        return await replay_response(call)
    obj = verdict.objects[0]
    if is_gone(obj):
        body = status_objects.success(call.kind, call.name, obj.metadata.uid)
        return reply(200, body, warning_headers(verdict.warnings))
    return reply(200, wire.encode(obj), warning_headers(verdict.warnings))


def is_gone(obj: Object) -> bool:
    """Whether an object whose deletion was accepted is gone: nothing has to finish first."""
    if isinstance(obj, Replica):
        return obj.status.state is State.RELEASED
    return not obj.metadata.finalizers


async def delete_many(call: Call) -> web.StreamResponse:
    """Ask for the deletion of every selected object, each decided by itself."""
    call.demand("deletecollection")
    await call.services.freshness.is_hub_fresh()
    arguments = await _options(call)
    kind, chosen = call.kind, selection(call)
    entries, _ = await reads.chosen_entries(call, chosen, call.services.hub.candidates(chosen))

    def make(number: int) -> Remove:
        entry = entries[number]
        return Remove(kind.plural, entry.namespace, entry.name, **arguments, collection=True)

    objects = []
    verdicts = await slices.decide_in_slices(call, len(entries), make)
    share = call.services.loop_share
    for entry, verdict in zip(entries, verdicts, strict=True):
        if share.is_over:
            await share.rest()
        if isinstance(verdict, Accepted):
            objects += [wire.encode(obj) for obj in verdict.objects]
        elif isinstance(verdict, Refusal) and verdict.reason == "Missing":
            continue
        else:
            return reply(*status_objects.of(verdict, kind, entry.name))
    listing = presentation.ListMetadata(complete_version(call.services.hub.revision))
    rendering = presentation.Rendering(call.route.facade, "", kind, listing)
    return reply(200, b"%b%b%b" % (rendering.head, b",".join(objects), rendering.tail))
