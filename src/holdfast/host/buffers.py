"""How much memory each TLS connection takes while it is idle.

`plane` calls this before it listens. Most connections of a server are watches that say little, and
there are a thousand of them.
"""

from __future__ import annotations

from asyncio import sslproto

# asyncio gives each connection a buffer of 256 KiB to receive into and keeps it as long as the
# connection lives: a quarter of a gigabyte for a thousand watches. A TLS record has at most 16 KiB,
# so with room for two a large body takes a few more reads and nothing else changes.
RECEIVE_BYTES = 32 << 10


def receive_into_small_buffers() -> None:
    """For all connections of this process from now on; asyncio knows no setting for each."""
    sslproto.SSLProtocol.max_size = RECEIVE_BYTES
