"""What a node that joins and the servers say to each other: `joining` here, `admitting` there.

By themselves, for an agent must not load half a server to say them.
"""

from __future__ import annotations

import msgspec

JOIN_PATH = "/join"
AUTHORITY_PATH = "/ca"
# The same with signatures, by which others than the one that is known can be trusted.
BUNDLE_PATH = "/ca/bundle"


class JoinRequest(msgspec.Struct, frozen=True):
    """What a node sends. `request` is a certificate signing request, as PEM.

    Without a token the certificate of the connection says who asks.
    """

    node: str
    request: str
    token: str = ""

    def __repr__(self) -> str:
        return f"JoinRequest(node={self.node!r})"


class Joined(msgspec.Struct, frozen=True):
    """What it gets: its certificate and the plane's authority, as PEM."""

    node: str
    certificate: str
    authority: str
