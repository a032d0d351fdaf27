"""The scale subresource: how many replicas, in the shape that `kubectl scale` and autoscalers use.

A change becomes a merge patch of the object itself, so that every rule of an ordinary change holds.
kubectl sends its PUT without a content type.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from holdfast.commit.apply.patch import json_patch, merge_patch
from holdfast.host.api import status_objects
from holdfast.host.api.call import Call, bad, reply
from holdfast.host.api.objects import patches, reads
from holdfast.host.api.objects.bodies import demand_json, is_dry, manager
from holdfast.model.encoding import wire
from holdfast.model.errors import Missing, Rejected
from holdfast.model.kinds.workload import Workload
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Patch, PatchType

_ENCODER = msgspec.json.Encoder()


def scale_of(workload: Workload) -> dict[str, Any]:
    """A workload as a Scale."""
    metadata = workload.metadata
    progress = workload.status.progress
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
            "creationTimestamp": metadata.creation_timestamp,
        },
        "spec": {"replicas": workload.spec.replicas},
        "status": {
            "replicas": progress.admitted,
            "selector": f"holdfast.dev/workload={metadata.name}",
        },
    }


async def _current(call: Call) -> dict[str, Any]:
    entry = await reads.current(call)
    if entry is None:
        raise Missing(f"{call.kind.plural} {call.name!r} not found")
    found = scale_of(wire.decode_trusted(Workload, entry.data))
    return dict(msgspec.json.decode(_ENCODER.encode(found)))


async def get(call: Call) -> web.StreamResponse:
    """The wanted and the actual number of replicas."""
    call.demand("get")
    return reply(200, _ENCODER.encode(await _current(call)))


async def update(call: Call) -> web.StreamResponse:
    """Set the number by a whole Scale."""
    call.demand(call.route.verb)
    demand_json(call)
    return await _set(call, wire.decode_tree(await call.body()))


async def patch(call: Call) -> web.StreamResponse:
    """Set the number by a patch of the Scale."""
    call.demand(call.route.verb)
    kind = patches.patch_type(call)
    if kind is PatchType.APPLY:
        raise Rejected(
            "the scale subresource accepts merge and JSON patches; apply the object itself instead",
            code=status_objects.UNSUPPORTED_MEDIA_TYPE,
        )
    body = await patches.tree(call, kind)
    if kind is PatchType.MERGE:
        # Fields that the patch does not name keep their value, also if it changes meanwhile.
        return await _set(call, merge_patch({}, body))
    call.demand("get")
    return await _set(call, json_patch(await _current(call), body))


async def _set(call: Call, scale: Any) -> web.StreamResponse:
    spec = scale.get("spec") if isinstance(scale, dict) else None
    # A Scale without a number means zero, as in Kubernetes.
    count = spec.get("replicas", 0) if isinstance(spec, dict) else None
    if not isinstance(count, int) or isinstance(count, bool):
        bad("spec.replicas: must be a whole number")
    change: dict[str, Any] = {"spec": {"replicas": count}}
    metadata = scale.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if version:
        change["metadata"] = {"resourceVersion": str(version)}
    request = Patch(
        call.kind.plural,
        call.namespace,
        call.name,
        PatchType.MERGE,
        change,
        call.route.subresource,
        manager=manager(call),
        dry_run=is_dry(call),
        operation=call.operation,
        term=call.term,
    )
    verdict = await call.ask(request)
    if isinstance(verdict, Refusal):
        return call.refusal_response(verdict)
    workload = next((obj for obj in verdict.objects if isinstance(obj, Workload)), None)
    if workload is None:
        return reply(200, _ENCODER.encode(await _current(call)))
    return reply(200, _ENCODER.encode(scale_of(workload)))
