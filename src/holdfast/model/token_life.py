"""When a token ends, as the server decides it: for admission, authentication and collection.

Admission gives every new token an end (`commit/shaping`). The authenticator asks here as well, so
that a token which an earlier version stored without one, or a maximum that was lowered since, does
not leave a credential that lives for ever.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.model.kinds.token import Token, TokenPurpose

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
