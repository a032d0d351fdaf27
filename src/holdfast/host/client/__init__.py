"""The one client of Holdfast's servers: of components, of the command, of users' programs.

`AsyncClient` is that of users and commands; `holdfast.client` is its public name. `api_client` is
that of a component's machine. Both send through `transport`, encode by `request_calls` and read
watches by `list_watch`; servers among each other share the sessions and batches beneath.
"""

from __future__ import annotations

from holdfast.host.client.async_client import AsyncClient, LogOptions
from holdfast.host.client.exec_session import ExecResult, ExecSession
from holdfast.host.client.list_watch import Listed, ListWatchEvent, follow
from holdfast.host.client.reading import ObjectList
from holdfast.host.client.server_access import Access, find_access, from_kubeconfig
from holdfast.host.client.writing import DeletedObject
from holdfast.observe.watch_events import Departed, Present, Reached

__all__ = [
    "Access",
    "AsyncClient",
    "DeletedObject",
    "Departed",
    "ExecResult",
    "ExecSession",
    "ListWatchEvent",
    "Listed",
    "LogOptions",
    "ObjectList",
    "Present",
    "Reached",
    "find_access",
    "follow",
    "from_kubeconfig",
]
