"""The client of a Holdfast plane, for programs: `Client`, and `AsyncClient` for asyncio.

    from holdfast.client import Client, kinds

    with Client() as client:
        for node in client.list(kinds.Node).objects:
            print(node.name, node.status.phase)

Both have the same methods; docs/client.md describes them with examples. Objects are the typed
structs of `holdfast.client.kinds`, and plain dicts are accepted where one is written. Without
arguments a client uses the kubeconfig that HOLDFAST_KUBECONFIG, KUBECONFIG or HOLDFAST_DATA names;
`from_kubeconfig` reads a certain one, and `Access` takes addresses and credentials directly.

Errors are those below, sorted by what to do next; each has a stable `code`.
"""

from __future__ import annotations

from holdfast.client import kinds
from holdfast.client.sync_client import Client
from holdfast.host.client import (
    Access,
    AsyncClient,
    DeletedObject,
    Departed,
    ExecResult,
    ExecSession,
    Listed,
    LogOptions,
    ObjectList,
    Present,
    find_access,
    from_kubeconfig,
)
from holdfast.model.errors import (
    Conflict,
    Expired,
    Forbidden,
    HoldfastError,
    Invalid,
    Missing,
    OutcomeUnknown,
    Rejected,
    Unavailable,
)
from holdfast.model.requests import PatchType, Propagation
from holdfast.observe.retry import RetryPolicy

__all__ = [
    "Access",
    "AsyncClient",
    "Client",
    "Conflict",
    "DeletedObject",
    "Departed",
    "ExecResult",
    "ExecSession",
    "Expired",
    "Forbidden",
    "HoldfastError",
    "Invalid",
    "Listed",
    "LogOptions",
    "Missing",
    "ObjectList",
    "OutcomeUnknown",
    "PatchType",
    "Present",
    "Propagation",
    "Rejected",
    "RetryPolicy",
    "Unavailable",
    "find_access",
    "from_kubeconfig",
    "kinds",
]
