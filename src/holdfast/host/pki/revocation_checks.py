"""Asks the store itself whether a certificate was revoked, where the hub may not have heard of it.

`host/api/app` asks for components while the hub is not known to be as new as the store
(`host/server/rights`), and `forwards` for the servers that forward. People are turned away then.
The renewals and commits of components need the store anyway, so one more read of it costs them
little, while turning them away would stop work that runs.

`Announcing` tells components which servers were revoked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from holdfast.commit.records import decode
from holdfast.host.pki import trust_bundle
from holdfast.host.pki.ca_keys import Authorities
from holdfast.host.pki.certificates import issued_ms
from holdfast.host.server import authentication
from holdfast.host.server.authentication import from_certificate
from holdfast.host.server.authenticator import Door
from holdfast.model import keys
from holdfast.model.access.credential_life import ends, revocation_name
from holdfast.model.access.identity import SERVER_PREFIX
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import Invalid, RecordUnreadable
from holdfast.model.kinds.access import Revocation
from holdfast.model.registry import kind_of_struct
from holdfast.model.time import wall_ms
from holdfast.observe.selection import Selection
from holdfast.observe.watch_hub import Hub
from holdfast.store.contract import Store

# Components refuse servers whose certificates were revoked, as servers do among each other.
#
# Each server tells which ones these are: agents on the line on which they wait to be asked
# (`switchboard`), others with the list of servers (`discovering`). Only what an authority of the
# plane has signed is believed, so a thief of a server's key can neither make others refuse good
# servers nor take a name from the list: what was learnt once stays. A revoked server can keep quiet
# about itself; any other one that the component reaches tells.
#
# This is the component's side; `Announcing` in `revoked` is the server's.

# A plane has few servers; this only bounds what a component keeps.
SERVERS_MAX = 1_000
# No certificate and no bundle begins so: a signature of one never counts as one of another.
_CONTEXT = b"holdfast revoked servers, version 1\n"
_BEFORE = msgspec.json.Decoder(dict[str, int])


def statement(before_ms: Mapping[str, int], authorities: Authorities) -> str:
    """Up to which moment certificates of these servers do not count, signed; empty for none."""
    if not before_ms:
        return ""
    text = msgspec.json.encode(dict(sorted(before_ms.items())))
    return trust_bundle.sealed(_CONTEXT, text, authorities.held.values()).decode()


class RevokedServers:
    """What a component knows. `changed` is called when it has learnt of another one."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._before_ms: dict[str, int] = {}
        self._changed = changed
        self._last = ""

    def learn(self, text: str, ca: bytes) -> None:
        """Take in what a server tells, if one of these authorities has signed it."""
        if not text or text == self._last:
            return
        try:
            trusted = trust_bundle.certificates(ca)
            told = _BEFORE.decode(trust_bundle.proven(_CONTEXT, text.encode(), trusted))
        except (Invalid, msgspec.DecodeError):
            # Whoever it is that tells this, it does not speak for the plane.
            return
        self._last = text
        merged = {**told, **self._before_ms}
        for name, before_ms in told.items():
            merged[name] = max(before_ms, merged[name])
        if merged != self._before_ms and len(merged) <= SERVERS_MAX:
            self._before_ms = merged
            self._changed()

    def refusal(self, peer: Mapping[str, Any] | None) -> str:
        """Why this is no server to speak with, by its certificate; empty if it is one."""
        identity = from_certificate(dict(peer or {}))
        before_ms = self._before_ms.get(identity.name) if identity is not None else None
        if peer is None or identity is None or before_ms is None:
            return ""
        since_s = ssl.cert_time_to_seconds(peer["notBefore"])
        if issued_ms(int(peer["serialNumber"], 16), since_s) > before_ms:
            return ""
        return f"the certificate of {identity.name} was revoked"


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
