"""The list of servers that renew their leases, as any of them answers it.

`server_discovery` follows it for components; commands ask for it once.
`host/server/digest_exchange` is the other end.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.host.client.answers import HttpAnswer
from holdfast.model.errors import Unavailable
from holdfast.model.nodes.heartbeat import SERVERS_MAX, ServerRoster

PATH = "/servers"


class KnownServer(msgspec.Struct, frozen=True):
    """A server that renews its lease.

    generation: of the trust bundle at the server that answers; see `trust_follower`.
    revoked: the signed statement of revoked servers; see `revoked_servers`. Only in the first item.
    """

    server: str
    address: str
    generation: int = 0
    revoked: str = ""


_KNOWN = msgspec.json.Decoder(tuple[KnownServer, ...])


def live_servers(
    roster: ServerRoster | None, generation: int = 0, revoked: str = ""
) -> tuple[KnownServer, ...]:
    """Return the servers that renew their leases."""
    if roster is None:
        return ()
    expired = roster.expired_servers()
    found = [
        KnownServer(it.server, it.address.rstrip("/"), generation)
        for it in roster.servers
        if it.life and it.address and it.server not in expired
    ]
    if found and revoked:
        found[0] = msgspec.structs.replace(found[0], revoked=revoked)
    return tuple(found)


def servers_in(answer: HttpAnswer) -> Sequence[KnownServer]:
    """Return the servers in an answer of `PATH`. Raises HoldfastError."""
    if not answer.is_good:
        raise answer.error(may_have_happened=False)
    try:
        found = _KNOWN.decode(answer.body)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the list of servers cannot be decoded: {error}") from error
    return [it for it in found[:SERVERS_MAX] if it.address.startswith("https://")]


def addresses_in(answer: HttpAnswer) -> Sequence[str]:
    """Return the addresses in an answer of `PATH`. Raises HoldfastError."""
    return [it.address for it in servers_in(answer)]
