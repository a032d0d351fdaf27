"""Asks the store itself whether a certificate was revoked, where the hub may be behind.

`host/api/app` asks for components while the hub is not known to be as new as the store
(`host/server/caller_rights`), and `forwarding` for the servers that forward. People are refused
then. The renewals and commits of components need the store anyway, so one more read costs them
little, while refusing them would stop work that runs.

`RevocationAnnouncer` says to components which servers were revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from holdfast.commit.record_encoding import decode
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.revoked_servers import statement
from holdfast.host.server import authentication
from holdfast.host.server.authenticator import Authenticator
from holdfast.model import keys
from holdfast.model.access.credential_life import revocation_name, revokes
from holdfast.model.access.identity import SERVER_PREFIX
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import RecordUnreadable
from holdfast.model.kinds.access import Revocation
from holdfast.model.registry import kind_of_struct
from holdfast.model.time import wall_ms
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.contract import Store

_KIND = kind_of_struct(Revocation)
# The prefix of the names of servers' revocations.
_SERVERS = revocation_name(SERVER_PREFIX + "x").removesuffix("x")
LOOK_S = 2.0


class StoredRevocations:
    """See the module's docstring."""

    def __init__(self, authenticator: Authenticator, store: Store) -> None:
        self._authenticator, self._store = authenticator, store

    async def demand_current(self, request: web.BaseRequest) -> None:
        """Raises CertificateEnded, or Unavailable where the store cannot be asked."""
        shown = self._authenticator.certificate(request.transport)
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
                # A revocation that cannot be read may concern this certificate.
                return True
            return revokes(found, issued_ms)
        return False


class RevocationAnnouncer:
    """A server's: it tells which servers are revoked, as soon as its hub knows."""

    def __init__(
        self, hub: WatchHub, authorities: CertificateAuthorities, tell: Callable[[str], None]
    ) -> None:
        """`tell` is called with each new statement."""
        self._hub, self._authorities, self._tell = hub, authorities, tell
        self._seen: tuple[int, int] | None = None
        self.text = ""

    async def run(self) -> None:
        """Run until cancelled."""
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
        for entry in self._hub.select(ObjectSelection(_KIND)):
            if entry.name.startswith(_SERVERS):
                one = readable(Revocation, entry.data)
                if one is not None and one.spec.before is not None:
                    found[one.spec.user] = wall_ms(one.spec.before)
        return found
