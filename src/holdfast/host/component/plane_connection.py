"""The connection of a component to another plane, and what keeps it usable.

`build` makes one for each plane in the settings, and `component_process` runs it beside the
component. Its certificate is renewed and its servers are discovered as those of the own plane are.
"""

from __future__ import annotations

from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.plane_clients import PlaneAccount
from holdfast.host.client.server_discovery import ServerDiscovery
from holdfast.host.pki.component_credentials import CertificateRenewal
from holdfast.host.pki.trust_follower import TrustFollower
from holdfast.model.access.identity import Identity


class PlaneConnection:
    """See the module's docstring. Call `start` and `stop` on the event loop."""

    def __init__(
        self,
        plane: str,
        client: ApiClient,
        identity: Identity,
        rotation: CertificateRenewal,
        trust: TrustFollower,
    ) -> None:
        self.plane, self.rotation = plane, rotation
        self.account = PlaneAccount(client, identity)
        self._discovery = ServerDiscovery(client, identity, trust, in_turn=True)

    def start(self) -> None:
        self._discovery.start()

    async def stop(self) -> None:
        await self._discovery.stop()
        await self.account.client.close()

    @property
    def trouble(self) -> str:
        """Return a problem that a person must solve; empty if there is none."""
        return f"plane {self.plane}: {self.rotation.trouble}" if self.rotation.trouble else ""
