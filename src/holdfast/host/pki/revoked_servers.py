"""Components refuse servers whose certificates were revoked, as servers do among each other.

Each server announces the revoked ones: to agents over their tunnels (`tunnel/server_end`), to
others with the list of servers (`server_discovery`). An announcement must be signed by an authority
of the plane, so a stolen server key can neither make others refuse good servers nor remove a name
from the list: what a component has learned stays. A revoked server can omit itself; any other
server that the component reaches announces it.

This is the component's side; `RevocationAnnouncer` in `host/server/revocation_checks` is the
server's.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.host.pki import trust_bundle
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.certificates import issued_ms
from holdfast.host.server.authentication import from_certificate
from holdfast.model.errors import Invalid

# A plane has few servers; this only bounds what a component stores.
SERVERS_MAX = 1_000
# No certificate or bundle begins like this: a signature of one is never valid for another.
_CONTEXT = b"holdfast revoked servers, version 1\n"
_BEFORE = msgspec.json.Decoder(dict[str, int])


def statement(before_ms: Mapping[str, int], authorities: CertificateAuthorities) -> str:
    """Return a signed statement of when each server was revoked; empty if none was."""
    if not before_ms:
        return ""
    text = msgspec.json.encode(dict(sorted(before_ms.items())))
    return trust_bundle.seal(_CONTEXT, text, authorities.held.values()).decode()


class RevokedServers:
    """The revoked servers that a component knows. `changed` is called when it learns another."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._before_ms: dict[str, int] = {}
        self._changed = changed
        self._last = ""

    def learn(self, text: str, ca: bytes) -> None:
        """Take in a server's statement, if one of these authorities has signed it."""
        if not text or text == self._last:
            return
        try:
            trusted = trust_bundle.certificates(ca)
            announced = _BEFORE.decode(trust_bundle.verify_seal(_CONTEXT, text.encode(), trusted))
        except (Invalid, msgspec.DecodeError):
            # The statement does not come from the plane.
            return
        self._last = text
        merged = {**announced, **self._before_ms}
        for name, before_ms in announced.items():
            merged[name] = max(before_ms, merged[name])
        if merged != self._before_ms and len(merged) <= SERVERS_MAX:
            self._before_ms = merged
            self._changed()

    def refusal(self, peer: Mapping[str, Any] | None) -> str:
        """Return why not to use a server, by its certificate; empty if it may be used."""
        identity = from_certificate(dict(peer or {}))
        before_ms = self._before_ms.get(identity.name) if identity is not None else None
        if peer is None or identity is None or before_ms is None:
            return ""
        since_s = ssl.cert_time_to_seconds(peer["notBefore"])
        if issued_ms(int(peer["serialNumber"], 16), since_s) > before_ms:
            return ""
        return f"the certificate of {identity.name} was revoked"
