"""Who is asking: from the client certificate of the connection, or from a bearer token.

A certificate's common name is the identity and its organizations are the groups. A token is
`NAMESPACE.NAME.SECRET`; the Token object of that name holds only a hash of the secret. Whoever
shows neither is anonymous. A wrong token is refused, never taken for anonymous: somebody who means
to be somebody should hear that he is not.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from holdfast.model.errors import Forbidden
from holdfast.model.identity import ANONYMOUS, Identity
from holdfast.model.kinds.token import Token, TokenPurpose

# A group of this form gives the right to work in a namespace.
TENANT_GROUP = "tenant:"
BEARER = "Bearer "
TOKEN_MAX = 512
HASH_PREFIX = "sha256:"

FindToken = Callable[[str, str], Token | None]


class CertificateEnded(Forbidden):
    """The certificate of a kept connection has ended since: who it was may be nobody by now."""


def hashed(secret: str) -> str:
    """What is stored of a secret. Secrets are random and long, so a plain hash is enough."""
    return HASH_PREFIX + hashlib.sha256(secret.encode()).hexdigest()


def identity_of(name: str, groups: tuple[str, ...]) -> Identity:
    """An identity, with the namespaces that its groups give it."""
    tenants = tuple(g.removeprefix(TENANT_GROUP) for g in groups if g.startswith(TENANT_GROUP))
    return Identity(name=name, groups=groups, tenants=tenants)


def ends_s(peer: dict[str, Any]) -> float:
    """When a peer certificate ends, by the wall clock."""
    return ssl.cert_time_to_seconds(peer["notAfter"]) if "notAfter" in peer else 0.0


def demand_current(until_s: float) -> None:
    """A handshake looks at the dates once; a connection may outlive them. Raises Forbidden."""
    if time.time() >= until_s:
        raise CertificateEnded(
            "the certificate of this connection has ended; connect again with a new one",
            code="Unauthenticated",
        )


def shown(transport: Any) -> Identity | None:
    """Who is at the other end of a connection by its certificate. Raises CertificateEnded."""
    given = transport.get_extra_info("peercert") if transport is not None else None
    peer: dict[str, Any] = given or {}
    found = from_certificate(peer)
    if found is not None:
        demand_current(ends_s(peer))
    return found


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
    return identity_of(names[0], tuple(groups)) if len(names) == 1 else None


def from_token(header: str, find: FindToken, now: datetime | None = None) -> Identity | None:
    """The identity behind an Authorization header; None when there is none. Raises Forbidden."""
    if not header:
        return None
    moment = now if now is not None else datetime.now(UTC)
    token = header.removeprefix(BEARER).strip()
    parts = token.split(".")
    if not header.startswith(BEARER) or len(token) > TOKEN_MAX or len(parts) != 3:
        raise _refused()
    namespace, name, secret = parts
    found = find(namespace, name)
    # The hash is computed and compared also for a token that does not exist, in constant time.
    expected = found.spec.hash if found is not None else hashed("")
    good = hmac.compare_digest(expected, hashed(secret))
    if found is None or not good or not _is_valid(found, moment):
        raise _refused()
    return identity_of(found.spec.user, found.spec.groups)


def _is_valid(token: Token, now: datetime) -> bool:
    spec = token.spec
    return (
        spec.purpose is TokenPurpose.BEARER
        and not spec.revoked
        and bool(spec.user)
        and (spec.expires is None or now < spec.expires)
    )


def _refused() -> Forbidden:
    # One sentence for every cause: which part was wrong is nobody's business.
    return Forbidden("the bearer token is not valid here", code="Unauthenticated")


def anonymous() -> Identity:
    """Nobody in particular."""
    return Identity(name=ANONYMOUS)
