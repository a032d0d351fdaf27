"""Components refuse servers whose certificates were revoked, as servers do among each other.

Each server tells which ones these are: agents on the line on which they wait to be asked
(`tunnel.server_end`), others with the list of servers (`discovering`). Only what an authority of the
plane has signed is believed, so a thief of a server's key can neither make others refuse good
servers nor take a name from the list: what was learnt once stays. A revoked server can keep quiet
about itself; any other one that the component reaches tells.

This is the component's side; `Announcing` in `host/server/revocation_checks` is the server's.
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

# A plane has few servers; this only bounds what a component keeps.
SERVERS_MAX = 1_000
# No certificate and no bundle begins so: a signature of one never counts as one of another.
_CONTEXT = b"holdfast revoked servers, version 1\n"
_BEFORE = msgspec.json.Decoder(dict[str, int])


def statement(before_ms: Mapping[str, int], authorities: CertificateAuthorities) -> str:
    """Up to which moment certificates of these servers do not count, signed; empty for none."""
    if not before_ms:
        return ""
    text = msgspec.json.encode(dict(sorted(before_ms.items())))
    return trust_bundle.seal(_CONTEXT, text, authorities.held.values()).decode()


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
            told = _BEFORE.decode(trust_bundle.verify_seal(_CONTEXT, text.encode(), trusted))
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
