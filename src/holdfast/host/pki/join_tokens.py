"""Join tokens as text: which one, its secret, and whom to trust with it.

`NAME.SECRET.HASH`: the Token object in the system's namespace, of which only a hash of the secret
is stored, and the hash of the plane's certificate authority. Whoever joins proves by the last part
that it speaks to this plane before it shows the secret to anybody. `host/pki/node_join` uses
tokens, `host/pki/join_admission` takes them in.

In a plane whose authority was rotated a token ends with `.GENERATION`, that of the trust bundle: an
earlier bundle, which the same authority has signed, may name one that was removed since.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.host.client import Client
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
    """The parts of a token's text. It is never printed but once."""

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
    """The token in a text. Raises Invalid, without repeating it."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise Invalid("this is no join token; it reads like join-1a2b3c4d.SECRET.HASH")
    name, secret, authority, generation = found.groups()
    return JoinToken(name, secret, authority, int(generation or 0))


def fingerprint(authority_pem: bytes) -> str:
    """The hash by which an authority is known: of several the newest, which counts the longest.
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
    """A token for one node, or for any new one if `node` is empty; and its text, for once."""
    if not timedelta(0) < ttl <= TTL_MAX:
        raise Invalid(f"a join token lasts for a while, and for {TTL_MAX.days} days at most")
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


async def create_token(client: Client, node: str, ttl: timedelta) -> str:
    """Make a token at the plane of this client, who must be an administrator; its text."""
    # Not what this client trusts: its kubeconfig may be older than a rotation.
    authorities, generation = await trust_bundle.current_authorities(
        client.transport, client.access.ca
    )
    token, text = new_token(authorities, node, ttl, generation=generation)
    await client.create(token)
    return text.text


def key_hash(public_key_der: bytes) -> str:
    """How a key is known that a token was used for."""
    return hashlib.sha256(public_key_der).hexdigest()
