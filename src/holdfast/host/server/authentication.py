"""Who is asking: from the client certificate of the connection, or from a bearer token.

A certificate's common name is the identity and its organizations are the groups. A token is
`NAMESPACE.NAME.SECRET`; the Token object of that name holds only a hash of the secret. Whoever
shows neither is anonymous. A wrong token is refused, never taken for anonymous: somebody who means
to be somebody should hear that he is not.

`door` asks here with what it knows of tokens and of revocations, for every request.
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

# A group of this form gives the right to work in a namespace.
TENANT_GROUP = "tenant:"
BEARER = "Bearer "
TOKEN_MAX = 512
HASH_PREFIX = "sha256:"

FindToken = Callable[[str, str], Token | None]
# Whether what was issued to this user at this moment, in milliseconds, was taken back since.
IsRevoked = Callable[[str, int], bool]


class CertificateEnded(Forbidden):
    """The certificate of a kept connection has ended since: who it was may be nobody by now."""


class TokenUnknown(Forbidden):
    """There is no such token, as far as this server has heard; it may have been made just now."""


class ClientCertificate(msgspec.Struct, frozen=True, gc=False):
    """What a certificate says: who, until when, and since when. The dates are the wall clock's.

    issuer: the common name of the authority that has signed it.
    """

    identity: Identity
    until_s: float
    issued_ms: int
    issuer: str = ""


def secret_hash(secret: str) -> str:
    """What is stored of a secret. Secrets are random and long, so a plain hash is enough."""
    return HASH_PREFIX + hashlib.sha256(secret.encode()).hexdigest()


def identity_of(name: str, groups: tuple[str, ...]) -> Identity:
    """An identity, with the namespaces that its groups give it."""
    tenants = (g.removeprefix(TENANT_GROUP) for g in groups if g.startswith(TENANT_GROUP))
    # `tenant:acme:editors` is a group of that tenant's own making, and no tenant.
    named = tuple(it for it in tenants if it == EVERY_TENANT or is_name(it))
    return Identity(name=name, groups=groups, tenants=named)


def never_revoked(user: str, issued: int) -> bool:
    """For whoever has no list of what was taken back."""
    return False


def demand_current(shown: ClientCertificate, is_revoked: IsRevoked = never_revoked) -> None:
    """A handshake looks at a certificate once; a connection may outlive it. Raises Forbidden."""
    if time.time() >= shown.until_s:
        raise CertificateEnded(
            "the certificate of this connection has ended; connect again with a new one",
            code="Unauthenticated",
        )
    if is_revoked(shown.identity.name, shown.issued_ms):
        raise CertificateEnded(
            f"the certificate of {shown.identity.name} was revoked; who it was for needs a new one",
            code="Unauthenticated",
        )


def client_certificate(transport: Any, life_max_ms: int | None = None) -> ClientCertificate | None:
    """What the certificate of a connection says, if there is one that names somebody.

    It counts for no longer than `life_max_ms` after its issue, whatever its last date says: a
    revocation is kept for that long.
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
    """The identity in a verified peer certificate, in the form that the ssl module gives it."""
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
    # Two common names would leave it to the reader who this is.
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
    """The identity behind an Authorization header; None when there is none. Raises Forbidden."""
    if not header:
        return None
    moment = now if now is not None else datetime.now(UTC)
    token = header.removeprefix(BEARER).strip()
    parts = token.split(".")
    # A header may hold bytes that are no text, of which nobody could make a hash.
    is_text = header.startswith(BEARER) and token.isascii()
    if not is_text or len(token) > TOKEN_MAX or len(parts) != 3:
        raise invalid_token_error()
    namespace, name, secret = parts
    found = find(namespace, name)
    # The hash is computed and compared also for a token that does not exist, in constant time.
    expected = found.spec.hash if found is not None else secret_hash("")
    good = hmac.compare_digest(expected, secret_hash(secret))
    if found is None:
        raise invalid_token_error(TokenUnknown)
    is_valid = _is_valid(found, moment, life_max_ms)
    if not good or not is_valid or _is_taken_back(found, is_revoked):
        raise invalid_token_error()
    return identity_of(found.spec.user, found.spec.groups)


def token_name(header: str) -> str:
    """The name of the token in an Authorization header, of whatever has the form of one."""
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
        # Components are known by certificates.
        and not spec.user.startswith(SYSTEM_PREFIX)
        # Admission refuses these; what an earlier version let in does not count either.
        and len(spec.groups) <= GROUPS_MAX
        and not speaks_for_others(token)
        and ends is not None
        and now < ends
    )


def _is_taken_back(token: Token, is_revoked: IsRevoked) -> bool:
    """Whether it was, together with all else that was issued to its user until a moment."""
    created = token.metadata.creation_timestamp
    return is_revoked(token.spec.user, wall_ms(created) if created is not None else 0)


def invalid_token_error(cls: type[Forbidden] = Forbidden) -> Forbidden:
    """One sentence for every cause: its sender does not learn which part was wrong."""
    return cls("the bearer token is not valid here", code="Unauthenticated")


def anonymous() -> Identity:
    """Nobody in particular."""
    return Identity(name=ANONYMOUS)
