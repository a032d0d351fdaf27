"""Core Kubernetes names that clients require, for kinds of ours: tenants and replicas.

A tenant shows as a namespace, a replica as a pod, an event as a core event.

All are read-only views. docs/adr/0041-names-and-facades.md says what each name means, and why there
are these and no others.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.host.api.objects import table_answers
from holdfast.model.encoding.wire import readable
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.lifecycle import Stage, State
from holdfast.model.registry import kind_named

# A replica as a pod: what `kubectl get pods`, `logs` and `exec` need to see of one.
#
# Nothing can be written through it. A pod has one container, which is the replica's work.
# Environment variables are left out, since more tools read pods than replicas.

CONTAINER = "work"
_READY = (Stage.READY, Stage.SERVING)
_PHASES = {
    State.PENDING: "Pending",
    State.RESERVED: "Pending",
    State.BOUND: "Pending",
    State.RUNNING: "Running",
    State.STOPPING: "Running",
    State.UNKNOWN: "Unknown",
    State.FAILED: "Failed",
    State.SUCCEEDED: "Succeeded",
}
_COLUMNS = (
    ("Name", "string", "name", "the name of the replica", 0),
    ("Ready", "string", "", "whether its work is ready", 0),
    ("Status", "string", "", "the state of the replica", 0),
    ("Restarts", "integer", "", "how often its work was started again in place", 0),
    ("Age", "string", "", "how long it has existed", 0),
    ("Node", "string", "", "where it runs", 1),
)


def phase(of: Replica) -> str:
    """The phase of the pod. A released replica has succeeded if its work exited with 0."""
    ended = "Succeeded" if of.status.process.exit_code == 0 else "Failed"
    return _PHASES.get(of.status.state, ended)


def pod(of: Replica) -> dict[str, Any]:
    """The whole pod."""
    binding, process = of.status.binding, of.status.process
    template = of.spec.template
    container = {"name": CONTAINER, "image": template.image, "command": template.command}
    spec: dict[str, Any] = {"containers": [container]}
    if binding is not None:
        spec["nodeName"] = binding.node
    ready = _is_ready(of)
    status: dict[str, Any] = {
        "phase": phase(of),
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [_container_status(of, ready)],
    }
    if process.started_at is not None:
        status["startTime"] = process.started_at
    if of.status.pending is not None and of.status.pending.message:
        status["message"] = of.status.pending.message
    # Without managed fields: they are about fields of a Replica.
    metadata = msgspec.structs.replace(of.metadata, managed_fields=(), operations=())
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }


def _is_ready(of: Replica) -> bool:
    return of.status.state is State.RUNNING and of.status.stage in _READY


def _container_status(of: Replica, ready: bool) -> dict[str, Any]:
    process = of.status.process
    return {
        "name": CONTAINER,
        "image": of.spec.template.image,
        "imageID": "",
        "ready": ready,
        "restartCount": process.restarts,
        "state": _state(of),
    }


def _state(of: Replica) -> dict[str, Any]:
    process, state = of.status.process, of.status.state
    if state in (State.RUNNING, State.STOPPING, State.UNKNOWN):
        return {"running": {"startedAt": process.started_at}}
    if phase(of) == "Pending":
        return {"waiting": {"reason": state.value}}
    code = process.exit_code
    if code is None:
        # The exit code that shells report for a process that a signal ended.
        code = 128 + process.signal if process.signal else 1
    return {"terminated": {"exitCode": code, "reason": process.reason or state.value}}


def definitions() -> list[dict[str, Any]]:
    """The columns of `kubectl get pods`."""
    return [table_answers.definition(*column) for column in _COLUMNS]


def row(of: Replica, now: datetime, include: str) -> bytes:
    """The row of a replica in that table."""
    binding, age = of.status.binding, table_answers.age(of.metadata.creation_timestamp, now)
    ready = f"{int(_is_ready(of))}/1"
    node = binding.node if binding is not None else "<none>"
    cells = [of.name, ready, of.status.state.value, of.status.process.restarts, age, node]
    whole = pod(of) if include == table_answers.OBJECT else None
    return table_answers.row_of(cells, whole, of, include)


OURS = ""
NAMESPACE = "namespace"
EVENT = "event"
POD = "pod"

TENANT_KIND = kind_named("Tenant")
EVENT_KIND = kind_named("Event")
REPLICA_KIND = kind_named("Replica")

_ENCODER = msgspec.json.Encoder()
_OWN_VERSION = b',"apiVersion":"holdfast.dev/v1","involvedObject":'
_CORE_VERSION = b',"apiVersion":"v1","involvedObject":'
_SHOWN_AS = (("Pod", "Replica"), ("Namespace", "Tenant"))
_NAMESPACE_COLUMNS = (
    ("Name", "name", "the name of the namespace"),
    ("Status", "", "Active, or Terminating while its objects go away"),
    ("Age", "", "how long it has existed"),
)


class Names(msgspec.Struct, frozen=True):
    """The kind and version that responses state."""

    kind: str
    api_version: str


_NAMES = {
    NAMESPACE: Names("Namespace", "v1"),
    EVENT: Names("Event", "v1"),
    POD: Names("Pod", "v1"),
}


def names(facade: str, kind: Kind) -> Names:
    """The kind and version that responses state for a facade or one of our kinds."""
    return _NAMES[facade] if facade else Names(kind.name, "holdfast.dev/v1")


def present(facade: str, data: bytes) -> bytes:
    """An object as the facade shows it; empty if it cannot be decoded."""
    if facade == NAMESPACE:
        tenant = readable(Tenant, data)
        return _ENCODER.encode(_namespace(tenant)) if tenant is not None else b""
    if facade == POD:
        replica = readable(Replica, data)
        return _ENCODER.encode(pod(replica)) if replica is not None else b""
    if facade == EVENT:
        # The form is the same except for the version. It comes after the metadata, and strings
        # inside an object have no unescaped quotes, so a replacement in the text is safe.
        return data.replace(_OWN_VERSION, _CORE_VERSION, 1)
    return data


def own_field_selector(facade: str, fields: str) -> str:
    """The field selector in terms of our kinds, where kubectl uses the core names.

    `kubectl describe pod` asks for the events of a Pod; they are those of the replica.
    """
    if facade != EVENT:
        return fields
    for shown_as, kind in _SHOWN_AS:
        fields = fields.replace(f"involvedObject.kind={shown_as}", f"involvedObject.kind={kind}")
    return fields


def _namespace(tenant: Tenant) -> dict[str, Any]:
    return {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": _metadata(tenant),
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": _phase(tenant)},
    }


def _metadata(tenant: Tenant) -> Any:
    # Without managed fields: they are about fields of a Tenant.
    return msgspec.structs.replace(tenant.metadata, managed_fields=(), operations=())


def _phase(tenant: Tenant) -> str:
    leaving = tenant.metadata.deletion_timestamp is not None
    return "Terminating" if leaving else str(tenant.status.phase.value)


def namespace_definitions() -> list[dict[str, Any]]:
    """The columns of `kubectl get namespaces`."""
    return [table_answers.definition(n, "string", f, d, 0) for n, f, d in _NAMESPACE_COLUMNS]


def namespace_row(tenant: Tenant, now: datetime, include: str) -> bytes:
    """The row of a tenant in that table."""
    age = table_answers.age(tenant.metadata.creation_timestamp, now)
    whole = _namespace(tenant) if include == table_answers.OBJECT else None
    return table_answers.row_of([tenant.name, _phase(tenant), age], whole, tenant, include)
