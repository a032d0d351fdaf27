"""The client that all components of Holdfast use to talk to its servers.

`Client` is for single requests, `follow` for list and watch, `Access` for addresses and
credentials.
"""

from __future__ import annotations

from holdfast.host.client.client import Client
from holdfast.host.client.list_watch import Listed, ListWatchEvent, follow
from holdfast.host.client.reading import ObjectList
from holdfast.host.client.server_access import Access, from_kubeconfig
from holdfast.host.client.writing import DeletedObject
from holdfast.observe.watch_events import Departed, Present, Reached

__all__ = [
    "Access",
    "Client",
    "DeletedObject",
    "Departed",
    "ListWatchEvent",
    "Listed",
    "ObjectList",
    "Present",
    "Reached",
    "follow",
    "from_kubeconfig",
]
