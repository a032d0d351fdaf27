"""The names and effect of revocations, and the expiry of tokens. Servers and the commit use both.

There is one Revocation for each user, under a name that follows from the user name. So a server
finds the revocation of a certificate's user with one lookup, and revoking again is an update.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from functools import lru_cache

from holdfast.model.access.identity import SYSTEM_PREFIX
from holdfast.model.kinds.access import Revocation, Token, TokenPurpose
from holdfast.model.time import DAY_MS, wall_ms

# Each form of user name has its own prefix, so that no two users share a revocation.
_COMPONENT = re.compile(
    r"system:(node|server|scheduler|controller):([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)", re.ASCII
)
_PLAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_DIGITS = 40


@lru_cache(maxsize=16_384)
def revocation_name(user: str) -> str:
    """The name of the Revocation of this user."""
    component = _COMPONENT.fullmatch(user)
    if component is not None and ".." not in user:
        return f"system.{component[1]}.{component[2]}"
    if not user.startswith(SYSTEM_PREFIX) and _PLAIN.fullmatch(user):
        return f"user.{user}"
    # User names may have characters that object names cannot have.
    digest = hashlib.sha256(user.encode(errors="surrogatepass")).hexdigest()
    return f"other.{digest[:_DIGITS]}"


def revokes(revocation: Revocation, issued_ms: int) -> bool:
    """Whether a credential that was issued to its user at this time is revoked."""
    before = revocation.spec.before
    return before is not None and issued_ms <= wall_ms(before)


# When a token expires: for admission, authentication and garbage collection.
#
# Admission sets the expiry of every new token (`commit/objects/object_defaults.py`). The
# authenticator checks here as well, so that a token that an earlier version stored without an
# expiry, or one older than a maximum that was lowered since, does not stay valid forever.

# The longest lifetime of a bearer token; an operator may lower it.
TOKEN_LIFE_MAX_MS = 366 * DAY_MS
# A join token admits any machine that holds it as a node, and is issued to be used soon.
JOIN_LIFE_MAX_MS = 30 * DAY_MS


def latest_end(token: Token, created: datetime, life_max_ms: int) -> datetime:
    """The latest allowed expiry of a token that was created at this time."""
    is_join = token.spec.purpose is TokenPurpose.JOIN
    life_ms = min(life_max_ms, JOIN_LIFE_MAX_MS) if is_join else life_max_ms
    return created + timedelta(milliseconds=life_ms)


def ends_at(token: Token, life_max_ms: int) -> datetime | None:
    """When a stored token expires; None if that is unknown, which counts as expired."""
    expires, created = token.spec.expires, token.metadata.creation_timestamp
    if created is None:
        return expires
    latest = latest_end(token, created, life_max_ms)
    return min(expires, latest) if expires is not None else latest
