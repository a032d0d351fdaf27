"""Asks the store itself whether a certificate was revoked, where the hub may not have heard of it.

`host/api/app` asks for components while the hub is not known to be as new as the store
(`host/rights`), and `forwards` for the servers that forward. People are turned away then. The
renewals and commits of components need the store anyway, so one more read of it costs them little,
while turning them away would stop work that runs.

`Announcing` tells components which servers were revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from holdfast.commit.records import decode
from holdfast.host import authentication
from holdfast.host.authorities import Authorities
from holdfast.host.door import Door
from holdfast.host.revoked_servers import statement
from holdfast.model import keys
from holdfast.model.errors import RecordUnreadable
from holdfast.model.identity import SERVER_PREFIX
from holdfast.model.kinds.revocation import Revocation
from holdfast.model.registry import kind_of_struct
from holdfast.model.revocations import ends, revocation_name
from holdfast.model.time import wall_ms
from holdfast.model.wire import readable
from holdfast.observe.hub import Hub
from holdfast.observe.selection import Selection
from holdfast.store.contract import Store

_KIND = kind_of_struct(Revocation)
# What the revocations of servers are called.
_SERVERS = revocation_name(SERVER_PREFIX + "x").removesuffix("x")
LOOK_S = 2.0


class StoredRevocations:
    """See the module's docstring."""

    def __init__(self, door: Door, store: Store) -> None:
        self._door, self._store = door, store

    async def demand_current(self, request: web.BaseRequest) -> None:
        """Raises CertificateEnded, or Unavailable where the store cannot be asked."""
        shown = self._door.certificate(request.transport)
        if shown is None:
            return
        is_ended = await self._is_ended(shown.identity.name, shown.issued_ms)
        authentication.demand_current(shown, lambda *_: is_ended)

    async def _is_ended(self, user: str, issued_ms: int) -> bool:
        key = keys.object_key(_KIND, "", revocation_name(user))
        page = await self._store.range(key, key + "\0", limit=1)
        for record in page.records:
            try:
                found: Revocation = decode(record.key, record.value)
            except RecordUnreadable:
                # It may have been meant for what is shown here.
                return True
            return ends(found, issued_ms)
        return False


class Announcing:
    """A server's: it tells which servers are revoked, as soon as its hub knows."""

    def __init__(self, hub: Hub, authorities: Authorities, tell: Callable[[str], None]) -> None:
        """`tell` is called with each new statement."""
        self._hub, self._authorities, self._tell = hub, authorities, tell
        self._seen: tuple[int, int] | None = None
        self.text = ""

    async def run(self) -> None:
        """For as long as the server lives."""
        while True:
            seen = self._hub.changed(_KIND), self._authorities.bundle.generation
            if seen != self._seen:
                self._seen = seen
                text = statement(self._revoked(), self._authorities)
                if text:
                    self.text = text
                    self._tell(text)
            await asyncio.sleep(LOOK_S)

    def _revoked(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in self._hub.select(Selection(_KIND)):
            if entry.name.startswith(_SERVERS):
                one = readable(Revocation, entry.data)
                if one is not None and one.spec.before is not None:
                    found[one.spec.user] = wall_ms(one.spec.before)
        return found
