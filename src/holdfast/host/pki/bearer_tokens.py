"""Bearer tokens: how people and services show who they are without a certificate.

`NAMESPACE.NAME.SECRET`, of which the Token object keeps a hash of the secret alone. The text is
shown once, to whoever made it; `host/server/authentication` takes it in.

A token of the system's namespace speaks for anybody, one of a tenant's namespace for users and
groups of that tenant's own making: their names begin with the tenant's.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from holdfast.host.client import Client
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
    """A token for this user in these groups; and its text, for once."""
    if not timedelta(0) < ttl <= TTL_MAX:
        raise Invalid(f"a bearer token lasts for a while, and for {TTL_MAX.days} days at most")
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
    """A user or a group as a token of this namespace may name it."""
    prefix = "" if namespace == SYSTEM_NAMESPACE else tenant_prefix(namespace)
    return name if name.startswith(prefix) else prefix + name


def groups_for(groups: Sequence[str], tenants: Sequence[str]) -> tuple[str, ...]:
    """The groups of somebody who works in these tenants as well."""
    return (*groups, *(TENANT_GROUP + tenant for tenant in tenants))


async def create_bearer(
    client: Client,
    user: str,
    groups: Sequence[str],
    ttl: timedelta,
    namespace: str = SYSTEM_NAMESPACE,
) -> tuple[str, Token]:
    """Make a token at the plane of this client, who must be allowed to: its text, and what the
    plane made of it, which may end earlier.
    """
    token, text = new_bearer(user, groups, ttl, namespace=namespace)
    return text, await client.create(token)
