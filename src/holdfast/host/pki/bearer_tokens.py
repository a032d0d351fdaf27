"""Bearer tokens: how people and services authenticate without a certificate.

A token is `NAMESPACE.NAME.SECRET`; the Token object holds only a hash of the secret. The text is
shown once, to its creator; `host/server/authentication` verifies it.

A token in the system's namespace may name any user. One in a tenant's namespace may only name users
and groups that the tenant defines: their names begin with the tenant's.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from holdfast.host.client import AsyncClient
from holdfast.host.server.authentication import TENANT_GROUP, secret_hash
from holdfast.model.errors import Invalid
from holdfast.model.kinds.access import Token, TokenPurpose, TokenSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.validation.access import tenant_prefix

TTL_MAX = timedelta(days=366)
SECRET_BYTES = 32


def new_bearer(
    user: str,
    groups: Sequence[str],
    ttl: timedelta,
    now: datetime | None = None,
    namespace: str = SYSTEM_NAMESPACE,
) -> tuple[Token, str]:
    """Return a token for this user in these groups, and its text, which is not stored."""
    if not timedelta(0) < ttl <= TTL_MAX:
        raise Invalid(f"the life of a bearer token must be above 0 and at most {TTL_MAX.days} days")
    moment = now if now is not None else datetime.now(UTC)
    name, secret = f"bearer-{secrets.token_hex(6)}", secrets.token_urlsafe(SECRET_BYTES)
    spec = TokenSpec(
        purpose=TokenPurpose.BEARER,
        user=_own(user, namespace),
        groups=tuple(dict.fromkeys(_own(group, namespace) for group in groups)),
        hash=secret_hash(secret),
        expires=(moment + ttl).replace(microsecond=0) + timedelta(seconds=1),
    )
    made = Token(ObjectMeta(name=name, namespace=namespace), spec=spec)
    return made, f"{namespace}.{name}.{secret}"


def _own(name: str, namespace: str) -> str:
    """Return a user or a group as a token of this namespace may name it."""
    prefix = "" if namespace == SYSTEM_NAMESPACE else tenant_prefix(namespace)
    return name if name.startswith(prefix) else prefix + name


def groups_for(groups: Sequence[str], tenants: Sequence[str]) -> tuple[str, ...]:
    """Return the groups with those that give access to these tenants."""
    return (*groups, *(TENANT_GROUP + tenant for tenant in tenants))


async def create_bearer(
    client: AsyncClient,
    user: str,
    groups: Sequence[str],
    ttl: timedelta,
    namespace: str = SYSTEM_NAMESPACE,
) -> tuple[str, Token]:
    """Create a token with this client, which needs the permission. Return its text and the created
    object, which may expire earlier than asked.
    """
    token, text = new_bearer(user, groups, ttl, namespace=namespace)
    return text, await client.create(token)
