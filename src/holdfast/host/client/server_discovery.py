"""Which servers there are, as each of them knows by the leases: one address is enough to begin.

A component asks from time to time (`ServerDiscovery`) and updates its `ApiClient`, which uses
discovered servers when no configured one answers, and for requests that every server must get. A
discovered address is not trusted: the server behind it proves its identity by its certificate.
"""

from __future__ import annotations

import asyncio

from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.known_servers import PATH, servers_in
from holdfast.host.client.request_calls import ApiCall
from holdfast.host.pki.trust_follower import TrustFollower
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError
from holdfast.observe.watch_events import SERVERS

# Servers come and go rarely, and configured ones are asked first.
FIRST_S, EVERY_S, TIMEOUT_S = 1.0, 10.0, 3.0


class ServerDiscovery:
    """See the module's docstring. Call `start` and `stop` on the event loop.

    `trust` gets the generation of the servers' trust bundle, and takes the bundle if it is newer.
    With `in_turn` each server is asked, one after the other: a revoked server would not announce
    itself. It is for components that have connections to all servers anyway.
    """

    def __init__(
        self,
        api_client: ApiClient,
        sender: Identity,
        trust: TrustFollower | None = None,
        *,
        in_turn: bool = False,
    ) -> None:
        self._api_client, self._sender, self._trust = api_client, sender, trust
        self._in_turn, self._turn = in_turn, 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = FIRST_S
        while True:
            try:
                wanted = ApiCall("GET", PATH, servers_in)
                found = await self._api_client.run(self._sender, self._next(), wanted, TIMEOUT_S)
                self._api_client.learn([it.address for it in found])
                ca = self._api_client.access(self._sender.name).ca
                for it in found:
                    self._api_client.revoked.learn(it.revoked, ca)
                generation = max((it.generation for it in found), default=0)
                is_new = self._trust is not None and await self._trust.follow(generation)
                # The next request tells the servers that the bundle was accepted.
                pause_s = FIRST_S if is_new else EVERY_S
            except HoldfastError:
                # No answer, or one of another version: configured servers are used meanwhile.
                pause_s = min(EVERY_S, pause_s * 2)
            await asyncio.sleep(pause_s)

    def _next(self) -> str:
        """Return whom to ask: any server, or every other time the next one of all."""
        self._turn += 1
        servers = self._api_client.servers()
        if not self._in_turn or self._turn % 2 or len(servers) < 2:
            return SERVERS
        return servers[self._turn // 2 % len(servers)]
