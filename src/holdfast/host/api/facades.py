"""The core names that clients insist on, over kinds of ours: namespaces are tenants, pods replicas.

All are read-only views. What a name means, and why these and no others, is in
docs/adr/0041-names-and-facades.md; how a replica looks as a pod is in `pods`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.host.api import pods, tables
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.registry import Kind, kind_named
from holdfast.model.wire import readable

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
    """How a kind is called in answers."""

    kind: str
    api_version: str


_NAMES = {
    NAMESPACE: Names("Namespace", "v1"),
    EVENT: Names("Event", "v1"),
    POD: Names("Pod", "v1"),
}


def names(facade: str, kind: Kind) -> Names:
    """The kind and the version that answers bear."""
    return _NAMES[facade] if facade else Names(kind.name, "holdfast.dev/v1")


def shown(facade: str, data: bytes) -> bytes:
    """An object as the facade shows it; nothing, if it cannot be read."""
    if facade == NAMESPACE:
        tenant = readable(Tenant, data)
        return _ENCODER.encode(_namespace(tenant)) if tenant is not None else b""
    if facade == POD:
        replica = readable(Replica, data)
        return _ENCODER.encode(pods.pod(replica)) if replica is not None else b""
    if facade == EVENT:
        # The shape is the same, only the version has another name; it stands after the metadata,
        # and no text inside an object has bare quotes.
        return data.replace(_OWN_VERSION, _CORE_VERSION, 1)
    return data


def selected(facade: str, fields: str) -> str:
    """The field selector that is meant: events are about our kinds, which kubectl knows by others.

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
    return [tables.definition(n, "string", f, d, 0) for n, f, d in _NAMESPACE_COLUMNS]


def namespace_row(tenant: Tenant, now: datetime, include: str) -> bytes:
    """The row of a tenant in such a table."""
    age = tables.age(tenant.metadata.creation_timestamp, now)
    whole = _namespace(tenant) if include == tables.OBJECT else None
    return tables.row_of([tenant.name, _phase(tenant), age], whole, tenant, include)
