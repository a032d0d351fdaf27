"""The clients of a component that works with several planes, as one set of peers and sources.

An address `NAME/servers` leads to the servers of that plane, where the component is another one
than at home: it has one identity there, whichever of its own asks. Every other address is one of
the own plane. Each plane has a client of its own, so that credentials, revoked servers, addresses
and overload of one plane say nothing about another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from holdfast.host.client.api_client import ApiClient
from holdfast.host.process.peers import Peers
from holdfast.model.access.identity import Identity
from holdfast.model.errors import Unavailable
from holdfast.observe.watch_events import SERVERS, plane_of


class PlaneAccount(msgspec.Struct, frozen=True):
    """A client of another plane, and the component's identity there."""

    client: ApiClient
    identity: Identity


class PlaneClients(Peers):
    """See the module's docstring. `abroad` has the accounts by the names of the planes."""

    def __init__(self, own: ApiClient, abroad: Mapping[str, PlaneAccount]) -> None:
        self._own, self._abroad = own, abroad

    def submit(
        self, sender: Identity, to: str, body: Any, timeout_s: float
    ) -> asyncio.Future[Any] | None:
        """See `Peers`."""
        client, identity, address = self._way(sender, to)
        return client.submit(identity, address, body, timeout_s)

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        """See `Peers`."""
        client, identity, address = self._way(sender, to)
        return await client.ask(identity, address, body, timeout_s)

    def follow(self, sender: Identity, to: str, body: Any) -> AsyncGenerator[Any, None]:
        """See `Sources`."""
        client, identity, address = self._way(sender, to)
        return client.follow(identity, address, body)

    def _way(self, sender: Identity, to: str) -> tuple[ApiClient, Identity, str]:
        """Return whom to ask, as whom, and at which address. Raises Unavailable."""
        plane = plane_of(to)
        if not plane:
            return self._own, sender, to
        account = self._abroad.get(plane)
        if account is None:
            known = ", ".join(self._abroad) or "none"
            raise Unavailable(f"there are no credentials for plane {plane}; known planes: {known}")
        return account.client, account.identity, SERVERS
