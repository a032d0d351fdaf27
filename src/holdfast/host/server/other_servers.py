"""Requests to the other servers of a plane: HTTPS, with certificates on both sides.

The authority's shell performs `Ask` through this; `forwarding` is the other end. The address of a
server is in the lease that makes it the one to ask. The server must prove its name by its
certificate before anything is sent: an address alone proves nothing.

Requests that wait at the same time are sent together. Bodies are sent one after the other, each
when the one before was received, so that requests stay in order; verdicts come back meanwhile.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp

from holdfast.commit.server import FORWARD_TIMEOUT_MS
from holdfast.host.client.http_session import FAULTS, HttpSession, fault_of
from holdfast.host.client.request_batches import Batch, Batcher, BatchLimits
from holdfast.host.process.metrics import Metrics
from holdfast.host.process.peers import Peers
from holdfast.host.server import digest_exchange
from holdfast.host.server.forwarding import (
    BATCH_BYTES,
    CONTENT_TYPE,
    LINES_MAX,
    PATH,
    VERDICT_BYTES_MAX,
    decode_verdict,
    encode_forward,
)
from holdfast.host.server.settings import peer_host
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.nodes.heartbeat import HeartbeatQuery
from holdfast.model.requests import Forward

# In flight are bodies that still wait for verdicts. The authority decides one at a time anyway;
# more would only wait there instead of here.
LIMITS = BatchLimits(requests=LINES_MAX, bytes=BATCH_BYTES, in_flight=8, waiting=20_000)
# A reachable server answers at once. One that does not is left alone for a while, so that requests
# do not wait for it one after the other when they could be decided here.
CONNECT_S = 1.0
AVOID_S = 1.0
# By then no caller waits for a verdict of this body, and the next body should not wait either.
EXCHANGE_S = FORWARD_TIMEOUT_MS / 1_000 + 0.5


class OtherServers(Peers):
    """`Peers` over the network. `find` returns the address of a server, or an empty string.

    Besides forwarded requests it carries the question which nodes another server has heard.
    """

    def __init__(
        self, find: Callable[[str], str], tls: ssl.SSLContext, metrics: Metrics | None = None
    ) -> None:
        self._find = find
        self._metrics = metrics if metrics is not None else Metrics()
        self._session = HttpSession(tls, connections_max=0)
        self._links: dict[tuple[str, str], _Link] = {}
        # Sessions of earlier certificates: requests in flight there end there.
        self._earlier: list[tuple[HttpSession, list[_Link]]] = []

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        """See `Peers`. The certificate proves who the sender is."""
        if isinstance(body, HeartbeatQuery):
            body = await self.read(to, digest_exchange.PATH, timeout_s)
            return digest_exchange.decode_heartbeat_report(to, body)
        try:
            verdict = await self._ask(to, body, timeout_s)
        except HoldfastError as error:
            self._metrics.forwarded.add(error.code)
            raise
        self._metrics.forwarded.add("Answered")
        return verdict

    async def read(self, to: str, path: str, timeout_s: float) -> bytes:
        """Return what another server answers at a path. Raises Unavailable."""
        answer = await self._session.exchange(
            self._found(to).rstrip("/"),
            "GET",
            path,
            timeout_s=timeout_s,
            connect_s=CONNECT_S,
            proves=peer_host(to),
        )
        if answer.code != 200:
            raise Unavailable(f"server {to} answered with {answer.code}")
        return answer.body

    async def take(self, tls: ssl.SSLContext) -> None:
        """Use another certificate, and trust other authorities, from now on."""
        self._earlier.append((self._session, list(self._links.values())))
        self._session, self._links = HttpSession(tls, connections_max=0), {}
        # A caller that waits for an answer may just have taken the last session.
        for kept in self._earlier[:-1]:
            session, links = kept
            if not any(link.is_busy for link in links):
                self._earlier.remove(kept)
                await session.aclose()

    async def _ask(self, to: str, body: Any, timeout_s: float) -> Any:
        if not isinstance(body, Forward):
            raise Unavailable(f"servers do not ask each other for {type(body).__name__}")
        address = self._found(to)
        link = self._links.get((to, address))
        if link is None:
            # There is one holder at a time; links to earlier ones end by themselves.
            self._links = {at: kept for at, kept in self._links.items() if kept.is_busy}
            link = self._links[to, address] = _Link(self._session, to, address)
        return await link.ask(encode_forward(body), timeout_s)

    def _found(self, to: str) -> str:
        address = self._find(to)
        if not address:
            raise Unavailable(f"the address of server {to} is not known")
        return address

    async def close(self) -> None:
        """End all requests in flight; their callers get OutcomeUnknown."""
        for session, links in (*self._earlier, (self._session, list(self._links.values()))):
            for link in links:
                await link.close()
            await session.aclose()


class _Link:
    """One other server at one address."""

    def __init__(self, session: HttpSession, name: str, address: str) -> None:
        self._session, self._name, self._address = session, name, address.rstrip("/")
        self._batcher = Batcher(self._deliver, LIMITS, in_order=True)
        self._avoided_until = float("-inf")
        self.close = self._batcher.close

    @property
    def is_busy(self) -> bool:
        return self._batcher.is_busy

    async def ask(self, line: bytes, timeout_s: float) -> Any:
        """Return the verdict. Raises Unavailable or OutcomeUnknown, as `Peers` says."""
        if asyncio.get_running_loop().time() < self._avoided_until:
            raise Unavailable(f"server {self._name} was unreachable a moment ago")
        return await self._batcher.ask(f"a request to server {self._name}", line, timeout_s)

    async def _deliver(self, batch: Batch, received: Callable[[], None]) -> None:
        """Send a body and distribute its verdicts."""
        lost = await self._exchange(batch, received)
        for request in batch:
            request.settle(lost)

    async def _exchange(self, batch: Batch, received: Callable[[], None]) -> HoldfastError:
        """Return the error for the requests without a verdict."""
        body = b"".join([request.data for request in batch])
        for request in batch:
            request.is_sent = True
        try:
            response = await self._session.open(
                self._address,
                "POST",
                PATH,
                # aiohttp sends bytes in one piece and a file in chunks, which suits a large body.
                body=body if len(body) <= LIMITS.bytes else io.BytesIO(body),
                headers={"Content-Type": CONTENT_TYPE},
                total_s=EXCHANGE_S,
                connect_s=CONNECT_S,
                proves=peer_host(self._name),
            )
        except Unavailable as error:
            self._avoided_until = asyncio.get_running_loop().time() + AVOID_S
            return Unavailable(f"server {self._name} cannot be reached: {error.message}")
        except OutcomeUnknown as error:
            return OutcomeUnknown(f"server {self._name}: {error.message}")
        async with response:
            if response.status != 200:
                return self._turned_away(response.status)
            received()
            try:
                await _read(response, batch)
            except FAULTS as error:
                return fault_of("POST", f"server {self._name}", error)
        return OutcomeUnknown(f"server {self._name} ended before its verdict")

    def _turned_away(self, code: int) -> HoldfastError:
        text = f"server {self._name} answered with {code}"
        # It was refused as a whole, before any of it was read.
        return Unavailable(text) if 400 <= code < 500 else OutcomeUnknown(text)


async def _read(response: aiohttp.ClientResponse, batch: Batch) -> None:
    """Distribute verdicts as they arrive, in the order of the requests."""
    rest = b""
    verdicts = iter(batch)
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line, request in zip(lines, verdicts, strict=False):
            request.settle(decode_verdict(line))
        if len(rest) > VERDICT_BYTES_MAX:
            return
