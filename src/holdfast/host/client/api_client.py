"""The HTTPS client of a component's shell: its requests to the servers and its watches.

A scheduler, a controller or an agent reaches nothing else. Each request is tried once and ends with
a verdict, Unavailable (it did not happen) or OutcomeUnknown (it may have): the machine knows what a
second try would mean, this client does not. Only if a server certainly did not receive the request
is the next one tried. Every identity of the machine has its own connections, since the certificate
of a connection is the identity of its requests.

An overloaded server says for how long not to send. Until then only lifelines of that identity are
sent: the machine gets Unavailable for all others at once, and pauses.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.list_watch import watch_events
from holdfast.host.client.request_batches import RequestBatches
from holdfast.host.client.request_calls import (
    JSON,
    PROMPT,
    RECORDS_PATH,
    REQUESTS_PATH,
    ApiCall,
    api_call,
    is_batched,
)
from holdfast.host.client.server_access import Access
from holdfast.host.client.transport import Reachable, Transport
from holdfast.host.pki.revoked_servers import RevokedServers
from holdfast.model.access.identity import Identity
from holdfast.model.errors import (
    HoldfastError,
    Invalid,
    InvariantBroken,
    Rejected,
    Unavailable,
    invariant,
)
from holdfast.model.machine import Rng
from holdfast.observe.watch_events import SERVERS, Follow

# Concurrent requests of one identity; the others wait. More would not be answered sooner, and a
# connection for each would cost the server a handshake for each.
ERRANDS_MAX = 16
_JSON_BODY = {"Content-Type": JSON}
# Machines watch what they bind and create.
_TERSE = {"results": "terse"}


class ApiClient:
    """Peers and sources of a component. `accesses` are by the name of the identity that asks."""

    def __init__(self, accesses: Mapping[str, Access], rng: Rng | None = None) -> None:
        if not accesses:
            raise Invalid("a component needs the credentials of at least one identity")
        for access in accesses.values():
            access.check()
        # Revoked servers: connections to them end, and none is made.
        self.revoked = RevokedServers(self._turn_away)
        self.on_revoked: Callable[[], None] = lambda: None
        self.reconnects: set[asyncio.Task[None]] = set()
        self._accesses = {name: self._guarded(it) for name, it in accesses.items()}
        self._rng: Rng = rng if rng is not None else random.SystemRandom()
        self._ways: dict[tuple[str, str], _Connections] = {}
        # All identities share what one learns about the reachability of a server.
        self._reachable = Reachable()
        # Servers that were not configured but discovered.
        self._learnt: tuple[str, ...] = ()

    def learn(self, servers: Sequence[str]) -> None:
        """Add discovered servers; see `server_discovery`."""
        self._learnt = tuple(servers)
        for (_, to), way in self._ways.items():
            if to == SERVERS:
                way.transport.learn(servers)

    def servers(self) -> tuple[str, ...]:
        """Return the addresses of all servers, configured and discovered."""
        access = next(iter(self._accesses.values()))
        given = (server.rstrip("/") for server in access.servers)
        return tuple(dict.fromkeys((*given, *self._learnt)))

    def each_server(self) -> tuple[str, ...]:
        """Return one address of each server, for requests that each must get.

        A configured address may stand for several servers. So discovered ones are used, unless
        there are none yet or none of them answers.
        """
        if any(not self._reachable.has_failed(it) for it in self._learnt):
            return self._learnt
        access = next(iter(self._accesses.values()))
        return tuple(server.rstrip("/") for server in access.servers)

    def submit(
        self, sender: Identity, to: str, body: Any, timeout_s: float
    ) -> asyncio.Future[Any] | None:
        """See `Peers`."""
        if not is_batched(body):
            return None
        return self.connections(sender, to).bundles.submit(body, timeout_s)

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        """Return the answer of the servers, or of the one with this address."""
        way = self.connections(sender, to)
        if is_batched(body):
            return await way.bundles.ask(body, timeout_s)
        wanted = api_call(sender, body)
        # A renewal does not wait for its turn: running work depends on it.
        send = way.send if isinstance(body, PROMPT) else way.send_in_turn
        verdict = wanted.read(await send(wanted, timeout_s))
        if isinstance(verdict, HoldfastError):
            raise verdict
        return verdict

    async def run(self, sender: Identity, to: str, wanted: ApiCall, timeout_s: float) -> Any:
        """Make a call of the shell itself. Return what its reader makes of the answer."""
        return wanted.read(await self.connections(sender, to).send(wanted, timeout_s))

    def follow(self, sender: Identity, to: str, body: Any) -> AsyncGenerator[Any, None]:
        """Yield the servers' events of a kind."""
        invariant(isinstance(body, Follow), f"servers cannot watch {type(body).__name__}")
        return watch_events(self.connections(sender, to).transport, body)

    def access(self, name: str) -> Access:
        """Return the present credentials of this identity."""
        return self._accesses[name]

    async def take(self, name: str, access: Access) -> None:
        """Use another certificate for this identity from now on."""
        access = self._accesses[name] = self._guarded(access)
        for (holder, _), way in list(self._ways.items()):
            if holder == name:
                await way.transport.take(access)

    async def hand_in(
        self, sender: Identity, to: str, body: bytes, timeout_s: float, path: str = RECORDS_PATH
    ) -> None:
        """Send one server something to store. Raises Unavailable, or Rejected if it never will."""
        wanted = ApiCall("POST", path, _unread, body, headers=_JSON_BODY)
        answer = await self.connections(sender, to).send(wanted, timeout_s)
        if 400 <= answer.code < 500 and answer.code not in (408, 429):
            raise Rejected(f"{to} refused the records: {answer.code} {answer.reason}")
        if not answer.is_good:
            raise Unavailable(f"{to} did not store the records: {answer.code} {answer.reason}")

    def _guarded(self, access: Access) -> Access:
        return msgspec.structs.replace(access, refuses=self.revoked.refusal)

    def _turn_away(self) -> None:
        """Reconnect after another server was revoked: open connections may lead to it."""
        self.on_revoked()
        task = asyncio.get_running_loop().create_task(self._connect_again())
        self.reconnects.add(task)
        task.add_done_callback(self.reconnects.discard)

    async def _connect_again(self) -> None:
        for (name, _), way in list(self._ways.items()):
            # Watches end with the second call.
            for _ in range(2):
                await way.transport.take(self._accesses[name])

    async def close(self) -> None:
        """Close all connections."""
        ways, self._ways = list(self._ways.values()), {}
        for way in ways:
            await way.close()

    def connections(self, sender: Identity, to: str) -> _Connections:
        found = self._ways.get((sender.name, to))
        if found is None:
            access = self._accesses.get(sender.name)
            if access is None:
                known = ", ".join(self._accesses)
                raise InvariantBroken(f"{sender.name} has no certificate here, only {known}")
            found = self._ways[sender.name, to] = _Connections(
                self._to(access, to), self._reachable
            )
            if to == SERVERS:
                found.transport.learn(self._learnt)
        return found

    def _to(self, access: Access, to: str) -> Access:
        """Return the access to all servers, in a different order per component, or to one."""
        servers = tuple(server.rstrip("/") for server in access.servers)
        if to == SERVERS:
            first = int(self._rng.random() * len(servers))
            return msgspec.structs.replace(access, servers=servers[first:] + servers[:first])
        if to.rstrip("/") not in (*servers, *self._learnt):
            raise Unavailable(f"{to} is not one of the servers {', '.join(servers)}")
        return msgspec.structs.replace(access, servers=(to.rstrip("/"),))


def _unread(answer: HttpAnswer) -> HttpAnswer:
    """Return the answer as it is: the batch decodes it."""
    return answer


class _Connections:
    """The connections of one identity to all servers, or to a certain one."""

    def __init__(self, access: Access, reachable: Reachable) -> None:
        self.transport = Transport(access, reachable=reachable)
        self.bundles = RequestBatches(self._bundle)
        self._turns = asyncio.Semaphore(ERRANDS_MAX)

    async def send_in_turn(self, wanted: ApiCall, timeout_s: float) -> HttpAnswer:
        """Send when a slot is free. A request that got none was not sent."""
        self.transport.demand_welcome()
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._turns.acquire()
        except TimeoutError:
            raise Unavailable(f"not sent: {ERRANDS_MAX} other requests are in flight") from None
        try:
            left_s = max(0.001, deadline_s - asyncio.get_running_loop().time())
            return await self.send(wanted, left_s)
        finally:
            self._turns.release()

    async def send(self, wanted: ApiCall, timeout_s: float) -> HttpAnswer:
        """Try one server; try the next if it certainly did not receive the request."""
        return await self.transport.send(
            wanted.method,
            wanted.path,
            query=wanted.query,
            body=wanted.body,
            headers=wanted.headers,
            timeout_s=timeout_s,
        )

    async def _bundle(self, body: bytes, timeout_s: float) -> HttpAnswer:
        self.transport.demand_welcome()
        wanted = ApiCall("POST", REQUESTS_PATH, _unread, body, _TERSE, _JSON_BODY)
        return await self.send(wanted, timeout_s)

    async def close(self) -> None:
        await self.bundles.close()
        await self.transport.close()
