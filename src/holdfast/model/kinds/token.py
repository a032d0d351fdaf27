"""Token: a bearer token or a node's join token. Only its hash is ever stored."""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.meta import Object, Part, Timestamp


class TokenPurpose(StrEnum):
    BEARER = "Bearer"
    JOIN = "Join"


class TokenSpec(Part, frozen=True):
    """What the token is good for.

    purpose: Bearer identifies a person or service, Join admits one node.
    user: who the bearer is.
    node: the only node that may join with it; a node that is new to the plane if empty.
    groups: the groups that the bearer is in.
    hash: of the secret part; the secret itself is shown once and never stored.
    expires: when it ends.
    single_use: whether the first use ends it.
    revoked: whether it was taken back.
    """

    purpose: TokenPurpose = TokenPurpose.BEARER
    user: str = ""
    groups: tuple[str, ...] = ()
    node: str = ""
    hash: str = ""
    expires: Timestamp | None = None
    single_use: bool = False
    revoked: bool = False


class TokenStatus(Part, frozen=True):
    """What became of it.

    used_at: when it was first used.
    used_by: the node that joined with it.
    key: hash of the public key that it was used for; the same key may ask for its answer again.
    """

    used_at: Timestamp | None = None
    used_by: str = ""
    key: str = ""


class Token(Object, frozen=True, kw_only=True, tag="Token"):
    """A bearer token or a node's join token.

    spec: what it is good for.
    status: what became of it.
    """

    spec: TokenSpec = TokenSpec()
    status: TokenStatus = TokenStatus()
