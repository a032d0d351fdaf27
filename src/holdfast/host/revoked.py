"""Asks the store itself whether a certificate was revoked, where the hub may not have heard of it.

`host/api/app` asks for components while the hub is not known to be as new as the store
(`host/rights`), and `forwards` for the servers that forward. People are turned away then. The
renewals and commits of components need the store anyway, so one more read of it costs them little,
while turning them away would stop work that runs.
"""

from __future__ import annotations

from aiohttp import web

from holdfast.commit.records import decode
from holdfast.host import authentication
from holdfast.host.door import Door
from holdfast.model import keys
from holdfast.model.errors import RecordUnreadable
from holdfast.model.kinds.revocation import Revocation
from holdfast.model.registry import kind_of_struct
from holdfast.model.revocations import ends, revocation_name
from holdfast.store.contract import Store

_KIND = kind_of_struct(Revocation)


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
