"""All that a server trusts and presents, for `server_process`. It changes while a server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from holdfast.host.audit.accesses import AccessRecorder
from holdfast.host.audit.refusals import record_own_certificates
from holdfast.host.client.known_servers import KnownServer
from holdfast.host.pki import ca_rotation
from holdfast.host.pki.ca_rotation import CaRotation, Handler
from holdfast.host.pki.first_trust import ServerTls, Trust, write_kubeconfig
from holdfast.host.pki.trust_seen import SeenClients
from holdfast.host.pki.trust_upkeep import TrustUpkeep
from holdfast.host.server.authenticator import Authenticator
from holdfast.host.server.other_servers import OtherServers
from holdfast.host.server.settings import ServerSettings
from holdfast.model.access.identity import Identity
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.contract import Store


class ServerTrust:
    """Call `start` before anything listens, `introduce` when it does, then `upkeep.run`."""

    def __init__(
        self,
        settings: ServerSettings,
        trust: Trust,
        store: Store,
        hub: WatchHub,
        peers: OtherServers,
        live: Callable[[], Iterable[KnownServer]],
        accesses: AccessRecorder,
        ended: Callable[[str], None],
    ) -> None:
        """`ended` is called with the reason why this server must stop."""
        self._settings, self._trust, self._peers = settings, trust, peers
        self._accesses, self._url = accesses, ""
        # Shared by all that check credentials; `apply` updates it.
        self.authorities = trust.authorities
        self.tls, self.seen = ServerTls(trust), SeenClients(trust.authorities)
        self.upkeep = TrustUpkeep(settings, trust, store, self._apply, ended)
        self._rotation = CaRotation(
            settings.server_name,
            settings.pki_directory,
            store,
            hub,
            self.upkeep,
            self.seen,
            peers,
            live,
        )

    async def start(self) -> None:
        """Take what was rotated while this server was away. Raises Invalid."""
        await self.upkeep.look()

    async def introduce(self, url: str) -> Path:
        """Write the administrator's kubeconfig, now and whenever it changes."""
        self._url = url
        record_own_certificates(self._accesses, self._trust)
        return await asyncio.to_thread(write_kubeconfig, self._settings, self._trust, url)

    def generation(self) -> int:
        """Return the generation of the bundle in use."""
        return self.authorities.bundle.generation

    def handlers(
        self,
        authenticator: Authenticator,
        may_path: Callable[[Identity, str, str], bool],
        is_current: Callable[[], Awaitable[bool]],
    ) -> dict[str, Handler]:
        """Return the handlers of a rotation by path."""
        self.seen.authenticator = authenticator
        return ca_rotation.handlers(
            self._rotation, authenticator, may_path, self._accesses, is_current
        )

    async def _apply(self, fresh: Trust) -> None:
        """Use this for all new connections. Open ones continue while they are valid."""
        tls, peer = await asyncio.to_thread(lambda: (fresh.context(), fresh.peer_context()))
        self._trust = fresh
        self.authorities.take(fresh.authorities)
        self.tls.take(tls)
        await self._peers.take(peer)
        if self._url:
            await self.introduce(self._url)
