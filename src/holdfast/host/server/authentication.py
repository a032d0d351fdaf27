"""Identifies a caller by the client certificate of the connection or by a bearer token.

A certificate's common name is the identity and its organizations are the groups. A token is
`NAMESPACE.NAME.SECRET`; the Token object of that name holds only a hash of the secret. A caller
with neither is anonymous. A wrong token is refused and never treated as anonymous: a caller that
means to authenticate must learn that it failed.

`authenticator` calls this for every request, with the tokens and revocations that it knows.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.host.pki.certificates import issued_ms
from holdfast.model.access.credential_life import TOKEN_LIFE_MAX_MS, ends_at
from holdfast.model.access.identity import ANONYMOUS, SYSTEM_PREFIX, Identity
from holdfast.model.access.rights import EVERY_TENANT
from holdfast.model.errors import Forbidden
from holdfast.model.kinds.access import Token, TokenPurpose
from holdfast.model.time import wall_ms
from holdfast.model.validation.access import GROUPS_MAX, speaks_for_others
from holdfast.model.validation.names import is_name

# A group of this form gives access to a namespace.
TENANT_GROUP = "tenant:"
BEARER = "Bearer "
TOKEN_MAX = 512
HASH_PREFIX = "sha256:"

FindToken = Callable[[str, str], Token | None]
# Whether credentials issued to this user at this moment, in milliseconds, were revoked since.
IsRevoked = Callable[[str, int], bool]


class CertificateEnded(Forbidden):
    """The certificate of an open connection has expired or was revoked since the handshake."""


class TokenUnknown(Forbidden):
    """This server knows no such token. It may have been created a moment ago."""


class ClientCertificate(msgspec.Struct, frozen=True, gc=False):
    """What a client certificate says: the identity, and its dates by the wall clock.

    issuer: the common name of the authority that signed it.
    """

    identity: Identity
    until_s: float
    issued_ms: int
    issuer: str = ""


def secret_hash(secret: str) -> str:
    """Return what is stored of a secret. Secrets are long and random, so a plain hash is enough."""
    return HASH_PREFIX + hashlib.sha256(secret.encode()).hexdigest()


def identity_of(name: str, groups: tuple[str, ...]) -> Identity:
    """Return an identity with the namespaces that its groups give it."""
    tenants = (g.removeprefix(TENANT_GROUP) for g in groups if g.startswith(TENANT_GROUP))
    # `tenant:acme:editors` is a group that the tenant defined, not a tenant.
    named = tuple(it for it in tenants if it == EVERY_TENANT or is_name(it))
    return Identity(name=name, groups=groups, tenants=named)


def never_revoked(user: str, issued: int) -> bool:
    """Return False: for callers without a list of revocations."""
    return False


def demand_current(shown: ClientCertificate, is_revoked: IsRevoked = never_revoked) -> None:
    """Check a certificate again: a connection may outlive it. Raises Forbidden."""
    if time.time() >= shown.until_s:
        raise CertificateEnded(
            "the certificate of this connection has expired; connect again with a new one",
            code="Unauthenticated",
        )
    if is_revoked(shown.identity.name, shown.issued_ms):
        raise CertificateEnded(
            f"the certificate of {shown.identity.name} was revoked; obtain a new certificate",
            code="Unauthenticated",
        )


def client_certificate(transport: Any, life_max_ms: int | None = None) -> ClientCertificate | None:
    """Return what the certificate of a connection says, if it names an identity.

    It is valid for at most `life_max_ms` after its issue, whatever its last date says: a revocation
    is kept for that long.
    """
    given = transport.get_extra_info("peercert") if transport is not None else None
    peer: dict[str, Any] = given or {}
    identity = from_certificate(peer)
    if identity is None:
        return None
    since_s, until_s = (
        ssl.cert_time_to_seconds(peer[date]) if date in peer else 0.0
        for date in ("notBefore", "notAfter")
    )
    since_ms = issued_ms(int(peer.get("serialNumber", "0"), 16), since_s)
    if life_max_ms is not None:
        until_s = min(until_s, (since_ms + life_max_ms) / 1_000)
    named = dict(pair for part in peer.get("issuer", ()) for pair in part)
    return ClientCertificate(identity, until_s, since_ms, named.get("commonName", ""))


def from_certificate(peer: dict[str, Any] | None) -> Identity | None:
    """Return the identity in a verified peer certificate, in the form of the ssl module."""
    if not peer:
        return None
    names: list[str] = []
    groups: list[str] = []
    for part in peer.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                names.append(value)
            elif key == "organizationName":
                groups.append(value)
    # With two common names the identity would be ambiguous.
    if len(names) != 1 or len(groups) > GROUPS_MAX:
        return None
    return identity_of(names[0], tuple(groups))


def from_token(
    header: str,
    find: FindToken,
    now: datetime | None = None,
    is_revoked: IsRevoked = never_revoked,
    life_max_ms: int = TOKEN_LIFE_MAX_MS,
) -> Identity | None:
    """Return the identity behind an Authorization header, or None. Raises Forbidden."""
    if not header:
        return None
    moment = now if now is not None else datetime.now(UTC)
    token = header.removeprefix(BEARER).strip()
    parts = token.split(".")
    # A header may hold bytes that are not text and cannot be hashed.
    is_text = header.startswith(BEARER) and token.isascii()
    if not is_text or len(token) > TOKEN_MAX or len(parts) != 3:
        raise invalid_token_error()
    namespace, name, secret = parts
    found = find(namespace, name)
    # The hash is computed and compared in constant time even for a token that does not exist.
    expected = found.spec.hash if found is not None else secret_hash("")
    good = hmac.compare_digest(expected, secret_hash(secret))
    if found is None:
        raise invalid_token_error(TokenUnknown)
    is_valid = _is_valid(found, moment, life_max_ms)
    if not good or not is_valid or _is_taken_back(found, is_revoked):
        raise invalid_token_error()
    return identity_of(found.spec.user, found.spec.groups)


def token_name(header: str) -> str:
    """Return the name of the token in an Authorization header, if it has the form of one."""
    parts = header.removeprefix(BEARER).strip()[:TOKEN_MAX].split(".")
    if not header.startswith(BEARER) or len(parts) != 3:
        return ""
    return f"token {parts[0]}/{parts[1]}"


def _is_valid(token: Token, now: datetime, life_max_ms: int) -> bool:
    spec, ends = token.spec, ends_at(token, life_max_ms)
    return (
        spec.purpose is TokenPurpose.BEARER
        and not spec.revoked
        and bool(spec.user)
        # Components authenticate by certificate.
        and not spec.user.startswith(SYSTEM_PREFIX)
        # Admission refuses these; objects that an earlier version accepted are not valid either.
        and len(spec.groups) <= GROUPS_MAX
        and not speaks_for_others(token)
        and ends is not None
        and now < ends
    )


def _is_taken_back(token: Token, is_revoked: IsRevoked) -> bool:
    """Return whether a revocation of its user covers this token."""
    created = token.metadata.creation_timestamp
    return is_revoked(token.spec.user, wall_ms(created) if created is not None else 0)


def invalid_token_error(cls: type[Forbidden] = Forbidden) -> Forbidden:
    """Return one message for every cause: the sender must not learn which part was wrong."""
    return cls(
        "the bearer token is not valid here: get a new one, as with `holdfast token create`",
        code="Unauthenticated",
    )


def anonymous() -> Identity:
    """Return the identity of a caller that presented no credential."""
    return Identity(name=ANONYMOUS)
