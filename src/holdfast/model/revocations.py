"""What a revocation is called, and what it ends: one rule each, for servers and for the law.

There is one Revocation for each user, under a name that follows from the user's. So a server that
is asked by somebody finds what ends his certificate by one look, and revoking again is an update.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from holdfast.model.identity import SYSTEM_PREFIX
from holdfast.model.kinds.revocation import Revocation
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


def ends(revocation: Revocation, issued_ms: int) -> bool:
    """Whether what was issued to its user at this moment does not count any more."""
    before = revocation.spec.before
    return before is not None and issued_ms <= wall_ms(before)
