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
from collections import deque
from collections.abc import Callable
from typing import Any

import aiohttp

from holdfast.commit.server import FORWARD_TIMEOUT_MS
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
from holdfast.model.heartbeat import HeartbeatQuery
from holdfast.model.requests import Forward

# Bodies that still wait for verdicts. The authority decides one at a time anyway; more would only
# wait there instead of here.
IN_FLIGHT_MAX = 8
WAITING_MAX = 20_000
# A reachable server answers at once. One that does not is left alone for a while, so that requests
# do not wait for it one after the other when they could be decided here.
CONNECT_S = 1.0
AVOID_S = 1.0
# By then no caller waits for a verdict of this body, and the next body should not wait either.
EXCHANGE_S = FORWARD_TIMEOUT_MS / 1_000 + 0.5
# When one of these is raised, nothing was sent.
_BEFORE_SENDING = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)


class _Waiting:
    """One request, first queued and then sent."""

    __slots__ = ("future", "is_sent", "line")

    def __init__(self, line: bytes, future: asyncio.Future[Any]) -> None:
        self.line, self.future = line, future
        self.is_sent = False

    def settle(self, verdict: Any) -> None:
        if not self.future.done():
            self.future.set_result(verdict)


class OtherServers(Peers):
    """`Peers` over the network. `find` returns the address of a server, or an empty string.

    Besides forwarded requests it carries the question which nodes another server has heard.
    """

    def __init__(
        self, find: Callable[[str], str], tls: ssl.SSLContext, metrics: Metrics | None = None
    ) -> None:
        self._find = find
        self._metrics = metrics if metrics is not None else Metrics()
        self._session = _session(tls)
        self._links: dict[tuple[str, str], _Link] = {}
        # Sessions of earlier certificates: requests in flight there end there.
        self._earlier: list[tuple[aiohttp.ClientSession, list[_Link]]] = []

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        """See `Peers`. The certificate proves who the sender is."""
        if isinstance(body, HeartbeatQuery):
            return await digest_exchange.fetch_heartbeat_report(
                self._session, to, self._found(to), timeout_s
            )
        try:
            verdict = await self._ask(to, body, timeout_s)
        except HoldfastError as error:
            self._metrics.forwarded.add(error.code)
            raise
        self._metrics.forwarded.add("Answered")
        return verdict

    async def read(self, to: str, path: str, timeout_s: float) -> bytes:
        """Return what another server answers at a path. Raises Unavailable."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(CONNECT_S, timeout_s))
        try:
            async with self._session.get(
                self._found(to).rstrip("/") + path,
                server_hostname=peer_host(to),
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise Unavailable(f"server {to} answered with {response.status}")
                return await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"server {to}: {str(error) or type(error).__name__}") from error

    async def take(self, tls: ssl.SSLContext) -> None:
        """Use another certificate, and trust other authorities, from now on."""
        self._earlier.append((self._session, list(self._links.values())))
        self._session, self._links = _session(tls), {}
        # A caller that waits for an answer may just have taken the last session.
        for kept in self._earlier[:-1]:
            session, links = kept
            if not any(link.is_busy for link in links):
                self._earlier.remove(kept)
                await session.close()

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
            await session.close()
        # Closing the connections takes one more turn of the loop.
        await asyncio.sleep(0)


def _session(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=0))


class _Link:
    """One other server at one address."""

    def __init__(self, session: aiohttp.ClientSession, name: str, address: str) -> None:
        self._session, self._name = session, name
        self._url = address.rstrip("/") + PATH
        self._line: deque[_Waiting] = deque()
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = False
        self._avoided_until = float("-inf")

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    async def ask(self, line: bytes, timeout_s: float) -> Any:
        """Return the verdict. Raises Unavailable or OutcomeUnknown, as `Peers` says."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._avoided_until:
            raise Unavailable(f"server {self._name} was unreachable a moment ago")
        if len(self._line) >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} requests wait for server {self._name} already")
        waiting = _Waiting(line, loop.create_future())
        self._line.append(waiting)
        if not self._sending:
            self._sending = True
            self._begin(self._send())
        try:
            async with asyncio.timeout(timeout_s):
                verdict = await waiting.future
        except TimeoutError:
            silence = f"server {self._name} gave no verdict within {timeout_s:g} s"
            # What was not sent by now never will be: its future is done.
            raise (OutcomeUnknown if waiting.is_sent else Unavailable)(silence) from None
        if isinstance(verdict, HoldfastError):
            # One error may answer many callers, so it must not collect their tracebacks.
            raise verdict.with_traceback(None)
        return verdict

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self) -> None:
        """Send bodies in order until no request waits."""
        try:
            while self._line:
                await self._slots.acquire()
                batch = self._taken()
                taken_in = asyncio.Event()
                self._begin(self._post(batch, taken_in))
                await taken_in.wait()
        finally:
            self._sending = False

    def _taken(self) -> list[_Waiting]:
        """Return the first waiting requests, as many as fit in a body."""
        batch: list[_Waiting] = []
        size = 0
        while self._line and len(batch) < LINES_MAX:
            first = self._line[0]
            if first.future.done():
                self._line.popleft()
                continue
            if batch and size + len(first.line) > BATCH_BYTES:
                break
            size += len(first.line)
            batch.append(self._line.popleft())
        return batch

    async def _post(self, batch: list[_Waiting], taken_in: asyncio.Event) -> None:
        lost: HoldfastError = OutcomeUnknown(f"server {self._name} ended before its verdict")
        try:
            if batch:
                lost = await self._exchange(batch, taken_in) or lost
        finally:
            taken_in.set()
            self._slots.release()
            for waiting in batch:
                waiting.settle(lost)

    async def _exchange(
        self, batch: list[_Waiting], taken_in: asyncio.Event
    ) -> HoldfastError | None:
        """Send a body and distribute its verdicts. Return the error for requests without one."""
        body = b"".join([waiting.line for waiting in batch])
        for waiting in batch:
            waiting.is_sent = True
        try:
            async with self._session.post(
                self._url,
                # aiohttp sends bytes in one piece and a file in chunks, which suits a large body.
                data=body if len(body) <= BATCH_BYTES else io.BytesIO(body),
                headers={"Content-Type": CONTENT_TYPE},
                server_hostname=peer_host(self._name),
                timeout=aiohttp.ClientTimeout(total=EXCHANGE_S, connect=CONNECT_S),
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    return self._turned_away(response.status)
                taken_in.set()
                await _read(response, batch)
        except _BEFORE_SENDING as error:
            self._avoided_until = asyncio.get_running_loop().time() + AVOID_S
            return Unavailable(f"server {self._name} cannot be reached: {error}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return OutcomeUnknown(f"server {self._name}: {str(error) or type(error).__name__}")
        return None

    def _turned_away(self, code: int) -> HoldfastError:
        text = f"server {self._name} answered with {code}"
        # It was refused as a whole, before any of it was read.
        return Unavailable(text) if 400 <= code < 500 else OutcomeUnknown(text)


async def _read(response: aiohttp.ClientResponse, batch: list[_Waiting]) -> None:
    """Distribute verdicts as they arrive, in the order of the requests."""
    rest = b""
    verdicts = iter(batch)
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line, waiting in zip(lines, verdicts, strict=False):
            waiting.settle(decode_verdict(line))
        if len(rest) > VERDICT_BYTES_MAX:
            return
