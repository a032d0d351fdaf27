"""Rate limits for callers without an identity: by address, and for all of them together.

Joining, fetching the authority's certificate, health checks and every request without a valid
identity come before `admission`, which goes by identity. Each costs a little: a connection, a read
of the store, a signature. So `app` counts them here before that cost arises.

Health checks are limited by address alone: a flood from many addresses must not make a load
balancer take the server for unhealthy.
"""

from __future__ import annotations

import ipaddress
import time

from aiohttp import web

from holdfast.commit.flow.overload import RejectionReason, overload_error
from holdfast.commit.flow.rates import Rate, Rates
from holdfast.commit.flow.request_classes import ANONYMOUS_TENANT, Flow, RequestClass
from holdfast.host.pki.join_protocol import AUTHORITY_PATH, BUNDLE_PATH, JOIN_PATH

HEALTH_PATHS = frozenset(("/livez", "/readyz", "/healthz"))
OPEN_PATHS = frozenset((JOIN_PATH, AUTHORITY_PATH, BUNDLE_PATH))
# Enough for a rack of machines behind one address that joins at once, and for a script that lost
# its token to learn so.
PER_ADDRESS = Rate(200, 15)
ALL = Rate(1_000, 10)
# A client with one IPv6 address usually has all addresses that share this many bits.
_IPV6_BITS = 64
_MS = 1_000


class AnonymousLimits:
    """See the module's docstring. One for each server."""

    def __init__(self, per_address: Rate = PER_ADDRESS, of_all: Rate = ALL) -> None:
        self._per_address, self._of_all = per_address, of_all
        self._health, self._addresses, self._all = Rates(), Rates(), Rates()
        self.refused = 0

    def demand(self, request: web.BaseRequest) -> None:
        """Count a request without a valid credential. Raises Overloaded."""
        address, now_ms = address_of(request), int(time.monotonic() * _MS)
        wait_ms = self._addresses.take(address, self._per_address, now_ms)
        self._refuse_before(address, wait_ms or self._all.take("", self._of_all, now_ms))

    def demand_health(self, request: web.BaseRequest) -> None:
        """Count a health check. Raises Overloaded."""
        address, now_ms = address_of(request), int(time.monotonic() * _MS)
        self._refuse_before(address, self._health.take(address, self._per_address, now_ms))

    def _refuse_before(self, address: str, wait_ms: int) -> None:
        if wait_ms:
            self.refused += 1
            flow = Flow(RequestClass.BACKGROUND, ANONYMOUS_TENANT, address)
            raise overload_error(flow, RejectionReason.RATE_EXCEEDED, 1 + wait_ms // _MS)


def address_of(request: web.BaseRequest) -> str:
    """The address that a request is counted for: where it comes from, for IPv6 its network."""
    transport = request.transport
    name = transport.get_extra_info("peername") if transport is not None else None
    return network_of(str(name[0]) if isinstance(name, tuple) and name else "")


def network_of(text: str) -> str:
    """The address itself, for IPv6 its network."""
    if ":" not in text:
        return text
    try:
        return str(ipaddress.ip_network((text.partition("%")[0], _IPV6_BITS), strict=False))
    except ValueError:
        return text
