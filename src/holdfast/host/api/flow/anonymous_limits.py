"""How often those may ask who are nobody yet: by address, and all of them together.

Joining, the authority's certificate, health and every request without a good identity come before
the gates of `turns`, which go by identity. Each costs little, and none costs nothing: a connection,
a look into the store, a signature. So they are counted here, before that is spent.

Health is counted by address alone: whoever floods a server from many addresses must not make a load
balancer take it for ill.
"""

from __future__ import annotations

import ipaddress
import time

from aiohttp import web

from holdfast.commit.flow.overload import RejectionReason, overload_error
from holdfast.commit.flow.rates import Rate, Rates
from holdfast.commit.flow.request_classes import NOBODY, Flow, RequestClass
from holdfast.host.pki.join_protocol import AUTHORITY_PATH, BUNDLE_PATH, JOIN_PATH

HEALTH_PATHS = frozenset(("/livez", "/readyz", "/healthz"))
OPEN_PATHS = frozenset((JOIN_PATH, AUTHORITY_PATH, BUNDLE_PATH))
# A rack of machines behind one address joins at once, and a script that lost its token is told so.
PER_ADDRESS = Rate(200, 15)
ALL = Rate(1_000, 10)
# Whoever has one address of IPv6 usually has all that share this many bits.
_IPV6_BITS = 64
_MS = 1_000


class AnonymousLimits:
    """See the module's docstring. One for each server."""

    def __init__(self, per_address: Rate = PER_ADDRESS, of_all: Rate = ALL) -> None:
        self._per_address, self._of_all = per_address, of_all
        self._health, self._addresses, self._all = Rates(), Rates(), Rates()
        self.refused = 0

    def demand(self, request: web.BaseRequest) -> None:
        """Count somebody who has shown nothing that counts. Raises Overloaded."""
        address, now_ms = address_of(request), int(time.monotonic() * _MS)
        wait_ms = self._addresses.take(address, self._per_address, now_ms)
        self._refuse_before(address, wait_ms or self._all.take("", self._of_all, now_ms))

    def demand_health(self, request: web.BaseRequest) -> None:
        """Count a look at the health. Raises Overloaded."""
        address, now_ms = address_of(request), int(time.monotonic() * _MS)
        self._refuse_before(address, self._health.take(address, self._per_address, now_ms))

    def _refuse_before(self, address: str, wait_ms: int) -> None:
        if wait_ms:
            self.refused += 1
            flow = Flow(RequestClass.BACKGROUND, NOBODY, address)
            raise overload_error(flow, RejectionReason.RATE_EXCEEDED, 1 + wait_ms // _MS)


def address_of(request: web.BaseRequest) -> str:
    """Whom a request is counted for: the address it comes from, of IPv6 its network."""
    transport = request.transport
    name = transport.get_extra_info("peername") if transport is not None else None
    return network_of(str(name[0]) if isinstance(name, tuple) and name else "")


def network_of(text: str) -> str:
    """Whom an address is counted for: itself, of IPv6 its network."""
    if ":" not in text:
        return text
    try:
        return str(ipaddress.ip_network((text.partition("%")[0], _IPV6_BITS), strict=False))
    except ValueError:
        return text
