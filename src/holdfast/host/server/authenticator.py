"""Authenticates every request by certificate or by token, or treats its caller as anonymous.

A token is the text of a Token object, the service token of a replica (`host/pki/service_tokens`),
or signed by an OpenID Connect issuer (`host/oidc`).

Tokens and revocations are read from the hub. A revocation takes effect as soon as the hub has it,
for the next request of an open connection as for a new one. `host/api/objects/long_streams` checks
open streams again.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web

from holdfast.host.oidc.envelope import is_signed_token
from holdfast.host.oidc.issuers import Issuers
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.service_tokens import ServiceTokens, is_service_token
from holdfast.host.server import authentication
from holdfast.host.server.authentication import CertificateEnded, ClientCertificate
from holdfast.model.access.credential_life import TOKEN_LIFE_MAX_MS, revocation_name, revokes
from holdfast.model.access.identity import Identity
from holdfast.model.encoding.wire import readable
from holdfast.model.kinds.access import Revocation, Token
from holdfast.model.kinds.replica import Replica
from holdfast.model.registry import kind_of_struct
from holdfast.observe.entries import ObjectEntry
from holdfast.observe.watch_hub import WatchHub

_TOKEN = kind_of_struct(Token)
_REVOCATION = kind_of_struct(Revocation)
_REPLICA = kind_of_struct(Replica)


class CredentialLives(msgspec.Struct, frozen=True):
    """How long after their issue credentials are valid, whatever they say themselves."""

    certificate_ms: int | None = None
    token_ms: int = TOKEN_LIFE_MAX_MS


# For callers that know no server's settings.
UNBOUNDED_LIVES = CredentialLives()


class Authenticator:
    """See the module's docstring. The HTTP server calls it to authenticate each request."""

    def __init__(
        self,
        hub: WatchHub,
        issuers: Issuers | None = None,
        service_tokens: ServiceTokens | None = None,
        lives: CredentialLives = UNBOUNDED_LIVES,
        authorities: CertificateAuthorities | None = None,
    ) -> None:
        """`authorities` are those whose certificates are valid, where they may change."""
        self._hub, self._lives, self._authorities = hub, lives, authorities
        self._issuers = issuers if issuers is not None else Issuers(())
        self._service_tokens = service_tokens
        # A connection's certificate never changes, so it is read once.
        self._known: WeakKeyDictionary[Any, ClientCertificate] = WeakKeyDictionary()

    def __call__(self, request: web.BaseRequest) -> Identity:
        """Raises Forbidden (Unauthenticated) for a token or a certificate that is not valid."""
        shown = self.peer_identity(request.transport)
        if shown is not None:
            return shown
        header = request.headers.get("Authorization", "")
        token = header.removeprefix(authentication.BEARER).strip()
        if self._service_tokens is not None and is_service_token(token):
            return self._service_tokens.identity(token, self._replica, self._is_revoked)
        if is_signed_token(token):
            return self._issuers.identity(token, self._is_revoked)
        found = authentication.from_token(
            header,
            self._find,
            is_revoked=self._is_revoked,
            life_max_ms=self._lives.token_ms,
        )
        return found or authentication.anonymous()

    def peer_identity(self, transport: Any) -> Identity | None:
        """Return the peer's identity by its certificate alone, or None. Raises Forbidden."""
        known = self.certificate(transport)
        return known.identity if known is not None else None

    def certificate(self, transport: Any) -> ClientCertificate | None:
        """Return what the peer's certificate says, if it is still valid. Raises Forbidden."""
        if transport is None:
            return None
        known = self._known.get(transport)
        if known is None:
            known = authentication.client_certificate(transport, self._lives.certificate_ms)
            if known is None:
                return None
            self._known[transport] = known
        # The handshake checked the authority once. A rotation may have ended since.
        if self._authorities is not None and known.issuer not in self._authorities.names:
            raise CertificateEnded(
                f"the certificate of {known.identity.name} is from a certificate authority that is "
                "no longer trusted; connect again with a certificate of the current one",
                code="Unauthenticated",
            )
        authentication.demand_current(known, self._is_revoked)
        return known

    def credential(self, request: web.BaseRequest) -> str:
        """Return the name of the presented credential, never its secret. It may be invalid."""
        transport = request.transport
        peer = transport.get_extra_info("peercert") if transport is not None else None
        if peer:
            return f"certificate {str(peer.get('serialNumber', '')).lower()}"
        return authentication.token_name(request.headers.get("Authorization", ""))

    def _find(self, namespace: str, name: str) -> Token | None:
        entry = self._hub.get(_TOKEN, namespace, name)
        return readable(Token, entry.data) if entry is not None else None

    def _replica(self, namespace: str, name: str) -> ObjectEntry | None:
        return self._hub.get(_REPLICA, namespace, name)

    def _is_revoked(self, user: str, issued_ms: int) -> bool:
        entry = self._hub.get(_REVOCATION, "", revocation_name(user))
        if entry is None:
            return False
        found = readable(Revocation, entry.data)
        # A revocation that cannot be read revokes everything: it may concern this credential.
        return found is None or revokes(found, issued_ms)
