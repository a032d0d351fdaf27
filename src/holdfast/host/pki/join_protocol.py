"""The messages between a node that joins (`node_join`) and the servers (`join_admission`).

In a separate module, so that an agent need not import the server's part.
"""

from __future__ import annotations

import msgspec

JOIN_PATH = "/join"
AUTHORITY_PATH = "/ca"
# The same with signatures, by which a client that trusts one authority can trust the others.
BUNDLE_PATH = "/ca/bundle"


class JoinRequest(msgspec.Struct, frozen=True):
    """What a node sends. `request` is a certificate signing request, as PEM.

    Without a token the certificate of the connection identifies the caller.
    """

    node: str
    request: str
    token: str = ""

    def __repr__(self) -> str:
        return f"JoinRequest(node={self.node!r})"


class Joined(msgspec.Struct, frozen=True):
    """What the node gets: its certificate and the plane's authority, as PEM."""

    node: str
    certificate: str
    authority: str
