"""Tokens of replicas: signed by the plane, short-lived, and bound to one attempt of one replica.

The agent of its node asks for a replica's token (`host/api/plane/service_token_routes`) and stores
it where the work finds it. Tokens are not stored by servers: the key is derived from that of the
signing authority, so every server can issue and verify one; during a rotation tokens of both
authorities are valid. A token is valid while its replica, by uid, has not ended, its node is the
same, and no later attempt was reported; docs/adr/0103 says why.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime

import jwt
import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from holdfast.host.oidc import envelope
from holdfast.host.oidc.envelope import ES256, TokenRefused, text64
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.server.authentication import (
    IsRevoked,
    TokenUnknown,
    identity_of,
    invalid_token_error,
)
from holdfast.model.access.identity import NODE_PREFIX, Identity
from holdfast.model.access.rights import workload_account, workloads_group
from holdfast.model.encoding.wire import readable
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.observe.entries import ObjectEntry

PURPOSE = "holdfast service tokens of replicas, version 1"
HEAD = msgspec.json.encode({"alg": ES256, "typ": "holdfast-replica+jwt"})
_BEGINS = text64(HEAD) + "."
# States in which work may run.
LIVING = (State.BOUND, State.RUNNING, State.STOPPING, State.UNKNOWN)
# Servers' clocks differ a little; a token that another server has just issued must be valid here.
SKEW_S = 30.0
REMEMBERED_MAX = 8_192

FindReplica = Callable[[str, str], ObjectEntry | None]


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The claims of a token: its subject, its plane, and its validity."""

    iss: str
    aud: str
    sub: str
    namespace: str
    replica: str
    uid: str
    attempt: int
    node: str
    iat: float
    exp: float


class SignedServiceToken(msgspec.Struct, frozen=True):
    """A token as an agent gets it. It is never printed."""

    token: str
    expires: datetime

    def __repr__(self) -> str:
        return f"SignedServiceToken(until {self.expires.isoformat()})"


def is_service_token(text: str) -> bool:
    """Return whether a text claims to be such a token."""
    return text.startswith(_BEGINS)


class _Signing:
    """What is derived from one authority: the key, its public half, and the plane's name."""

    def __init__(self, fingerprint: str, authority: CertificateAuthority) -> None:
        self.fingerprint = fingerprint
        self.key = authority.derived_key(PURPOSE)
        numbers = self.key.public_key().public_numbers()
        x, y = (text64(it.to_bytes(32, "big")) for it in (numbers.x, numbers.y))
        self.public = jwt.PyJWK({"kty": "EC", "crv": "P-256", "x": x, "y": y}, ES256)
        self.plane = "holdfast:" + hashlib.sha256(authority.pem).hexdigest()[:32]


class ServiceTokens:
    """Issues and verifies tokens. One for each server."""

    def __init__(
        self,
        authorities: CertificateAuthorities,
        now_s: Callable[[], float] = time.time,
        seen: Callable[[str, str, str], None] = lambda account, replica, authority: None,
    ) -> None:
        """`seen` is called with the holder of each token and the fingerprint of its authority."""
        self._authorities, self._now_s, self._seen = authorities, now_s, seen
        # By the plane's name under each authority; rebuilt when the authorities change.
        self._signing: dict[str, _Signing] = {}
        self._made_of: dict[str, CertificateAuthority] | None = None
        self._remembered: dict[bytes, Claims] = {}
        # The result of the last decoding of a replica's record; see `_demand_alive`.
        self._alive: dict[str, tuple[ObjectEntry, bool]] = {}

    def issue(self, replica: Replica, node: str, attempt: int, life_s: float) -> SignedServiceToken:
        """Issue a token for one attempt of a replica that is bound to this node."""
        # Raises an error with the reason if this server cannot sign.
        wanted = self._authorities.signer.fingerprint
        signing = next(it for it in self._issuers().values() if it.fingerprint == wanted)
        now_s = round(self._now_s(), 3)
        ends_s = now_s + life_s
        claims = Claims(
            iss=signing.plane,
            aud=signing.plane,
            sub=workload_account(replica.namespace, replica.spec.workload),
            namespace=replica.namespace,
            replica=replica.name,
            uid=replica.metadata.uid,
            attempt=attempt,
            node=node,
            iat=now_s,
            exp=ends_s,
        )
        signed = f"{_BEGINS}{text64(msgspec.json.encode(claims))}"
        made = signing.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
        r, s = decode_dss_signature(made)
        signature = text64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        return SignedServiceToken(f"{signed}.{signature}", datetime.fromtimestamp(ends_s, UTC))

    def _issuers(self) -> dict[str, _Signing]:
        """Return the authorities whose tokens are valid now."""
        held = self._authorities.held
        if self._made_of is not held:
            made = [_Signing(known, it) for known, it in held.items()]
            self._signing, self._made_of = {it.plane: it for it in made}, held
        return self._signing

    def identity(self, text: str, find: FindReplica, is_revoked: IsRevoked) -> Identity:
        """Return the holder of a token. Raises Forbidden, or TokenUnknown for unknown replicas."""
        try:
            claims = self._verified(text)
        except TokenRefused:
            raise invalid_token_error() from None
        issued_ms = int(claims.iat * 1_000)
        if is_revoked(claims.sub, issued_ms) or is_revoked(NODE_PREFIX + claims.node, issued_ms):
            raise invalid_token_error()
        self._demand_alive(claims, find)
        self._seen(claims.sub, claims.replica, self._issuers()[claims.iss].fingerprint)
        return identity_of(claims.sub, (workloads_group(claims.namespace),))

    def _verified(self, text: str) -> Claims:
        digest = hashlib.sha256(text.encode(errors="replace")).digest()
        claims, issuers = self._remembered.get(digest), self._issuers()
        if claims is None:
            opened = envelope.parse_token(text)
            # No authority has this name here, so there is no key to verify with.
            named = issuers.get(str(opened.claims.get("iss")))
            if named is None:
                raise TokenRefused("Signature")
            envelope.demand_signed(opened, named.public)
            try:
                claims = msgspec.convert(opened.claims, Claims)
            except msgspec.ValidationError as error:
                raise TokenRefused("Malformed") from error
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[digest] = claims
        now_s = self._now_s()
        issuer = issuers.get(claims.iss)
        is_for_us = issuer is not None and claims.iss == claims.aud
        if issuer is None or not is_for_us or not claims.iat - SKEW_S <= now_s < claims.exp:
            raise TokenRefused("Expired")
        return claims

    def _demand_alive(self, claims: Claims, find: FindReplica) -> None:
        """Check that the attempt of the replica has not ended."""
        entry = find(claims.namespace, claims.replica)
        if entry is None:
            # It may have been bound a moment ago, and the hub is behind.
            raise invalid_token_error(TokenUnknown)
        known = f"{claims.uid}/{claims.attempt}/{claims.node}"
        seen = self._alive.get(known)
        if seen is None or seen[0] is not entry:
            if len(self._alive) >= REMEMBERED_MAX:
                self._alive.clear()
            seen = self._alive[known] = (entry, _is_alive(claims, readable(Replica, entry.data)))
        if not seen[1]:
            raise invalid_token_error()


def _is_alive(claims: Claims, replica: Replica | None) -> bool:
    # A replica that cannot be read gives no validity.
    if replica is None or replica.metadata.uid != claims.uid:
        return False
    status = replica.status
    return (
        status.state in LIVING
        and status.binding is not None
        and status.binding.node == claims.node
        # An earlier attempt has ended before a later one is reported.
        and claims.attempt >= status.process.restarts
    )
