"""What a revocation is called, and what it ends: one rule each, for servers and for the law.

There is one Revocation for each user, under a name that follows from the user's. So a server that
is asked by somebody finds what ends his certificate by one look, and revoking again is an update.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from functools import lru_cache

from holdfast.model.access.identity import SYSTEM_PREFIX
from holdfast.model.kinds.access import Revocation, Token, TokenPurpose
from holdfast.model.time import wall_ms

# Each form of a user gets a beginning of its own, so that no two users share a name.
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
    # Names of people have letters that names of objects do not.
    digest = hashlib.sha256(user.encode(errors="surrogatepass")).hexdigest()
    return f"other.{digest[:_DIGITS]}"


def revokes(revocation: Revocation, issued_ms: int) -> bool:
    """Whether what was issued to its user at this moment does not count any more."""
    before = revocation.spec.before
    return before is not None and issued_ms <= wall_ms(before)


# When a token ends, as the server decides it: for admission, authentication and collection.
#
# Admission gives every new token an end (`commit/objects/object_defaults`). The authenticator asks
# here as well, so that a token which an earlier version stored without one, or a maximum that was
# lowered since, does not leave a credential that lives for ever.

_DAY_MS = 86_400_000
# A bearer token counts for no longer after its creation; an operator may lower this.
TOKEN_LIFE_MAX_MS = 366 * _DAY_MS
# A join token makes a node of whoever holds it, and is handed out to be used soon.
JOIN_LIFE_MAX_MS = 30 * _DAY_MS


def latest_end(token: Token, created: datetime, life_max_ms: int) -> datetime:
    """The latest moment at which a token that was created then may end."""
    is_join = token.spec.purpose is TokenPurpose.JOIN
    life_ms = min(life_max_ms, JOIN_LIFE_MAX_MS) if is_join else life_max_ms
    return created + timedelta(milliseconds=life_ms)


def ends_at(token: Token, life_max_ms: int) -> datetime | None:
    """When a stored token ends; None where nothing tells, which counts as ended."""
    expires, created = token.spec.expires, token.metadata.creation_timestamp
    if created is None:
        return expires
    latest = latest_end(token, created, life_max_ms)
    return min(expires, latest) if expires is not None else latest
