"""Join tokens as text: the token's name, its secret, and the authority to trust.

`NAME.SECRET.HASH`: the Token object in the system's namespace, which holds only a hash of the
secret, and the hash of the plane's certificate authority. By the last part a node verifies that it
talks to this plane before it sends the secret. `host/pki/node_join` uses tokens,
`host/pki/join_admission` verifies them.

After a rotation of the authority a token ends with `.GENERATION`, that of the trust bundle: an
earlier bundle with a signature of the same authority may name one that was removed since.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.host.client import AsyncClient
from holdfast.host.pki import trust_bundle
from holdfast.host.server.authentication import secret_hash
from holdfast.model.errors import Invalid
from holdfast.model.kinds.access import Token, TokenPurpose, TokenSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE

TTL_MAX = timedelta(days=30)
SECRET_BYTES = 32
_TEXT = re.compile(
    r"([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)\.([-_A-Za-z0-9]{43})\.([0-9a-f]{64})"
    r"(?:\.([1-9][0-9]{0,8}))?"
)


class JoinToken(msgspec.Struct, frozen=True):
    """The parts of a token's text, which is printed only once."""

    name: str
    secret: str
    authority: str
    generation: int = 0

    def __repr__(self) -> str:
        return f"JoinToken(name={self.name!r})"

    @property
    def text(self) -> str:
        since = f".{self.generation}" if self.generation else ""
        return f"{self.name}.{self.secret}.{self.authority}{since}"


def parse(text: str) -> JoinToken:
    """Parse a token. Raises Invalid, without repeating the text."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise Invalid("this is not a join token: the form is join-1a2b3c4d.SECRET.HASH")
    name, secret, authority, generation = found.groups()
    return JoinToken(name, secret, authority, int(generation or 0))


def fingerprint(authority_pem: bytes) -> str:
    """Return the hash of an authority; of several, of the newest, which is valid the longest.
    Raises Invalid.
    """
    return trust_bundle.fingerprint(trust_bundle.certificates(authority_pem)[-1])


def new_token(
    authority_pem: bytes,
    node: str,
    ttl: timedelta,
    now: datetime | None = None,
    *,
    generation: int = 0,
) -> tuple[Token, JoinToken]:
    """Return a token for one node, or for any new one if `node` is empty, and its text."""
    if not timedelta(0) < ttl <= TTL_MAX:
        raise Invalid(f"the life of a join token must be above 0 and at most {TTL_MAX.days} days")
    moment = now if now is not None else datetime.now(UTC)
    text = JoinToken(
        f"join-{secrets.token_hex(6)}",
        secrets.token_urlsafe(SECRET_BYTES),
        fingerprint(authority_pem),
        generation,
    )
    spec = TokenSpec(
        purpose=TokenPurpose.JOIN,
        node=node,
        hash=secret_hash(text.secret),
        expires=(moment + ttl).replace(microsecond=0) + timedelta(seconds=1),
        single_use=True,
    )
    return Token(ObjectMeta(name=text.name, namespace=SYSTEM_NAMESPACE), spec=spec), text


async def create_token(client: AsyncClient, node: str, ttl: timedelta) -> str:
    """Create a token with the client of an administrator. Return its text."""
    # Fetched, since the client's kubeconfig may be older than a rotation.
    authorities, generation = await trust_bundle.current_authorities(
        client.transport, client.access.ca
    )
    token, text = new_token(authorities, node, ttl, generation=generation)
    await client.create(token)
    return text.text


def key_hash(public_key_der: bytes) -> str:
    """Return the hash of a key that a token was used for."""
    return hashlib.sha256(public_key_der).hexdigest()
