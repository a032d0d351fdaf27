"""A real server that was revoked says so, and components hear it on both ways and leave it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.server_access import Access
from holdfast.host.client.server_discovery import ServerDiscovery
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.tunnel.agent_end import AgentTunnel
from holdfast.model.access.credential_life import revocation_name
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.access import Revocation, RevocationSpec
from holdfast.model.meta import ObjectMeta
from tests.live.plane_process import PlaneProcess
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("accesses")]

SERVER = "system:server:one"
SCHEDULER, AGENT = Identity(name="system:scheduler:main"), Identity(name="system:node:n1")


def remote_of(server: PlaneProcess, identity: Identity) -> ApiClient:
    authority = CertificateAuthority.open(server.data / "pki")
    issued = authority.issue(identity.name)
    access = Access(
        servers=(server.url,),
        ca=authority.pem,
        certificate=issued.certificate,
        key=issued.key,
    )
    return ApiClient({identity.name: access})


def test_components_leave_a_server_that_was_revoked(tmp_path: Path) -> None:
    """A scheduler by the list of servers, an agent on the line on which it waits."""

    async def story() -> None:
        server = await PlaneProcess(tmp_path / "data", "--name", "one").start()
        remotes = {it.name: remote_of(server, it) for it in (SCHEDULER, AGENT)}
        left = {name: asyncio.Event() for name in remotes}
        for name, remote in remotes.items():
            remote.on_revoked = left[name].set
        agent = remotes[AGENT.name]
        nothing_to_show: Any = None
        attending = AgentTunnel(
            "n1",
            lambda: agent.access(AGENT.name),
            nothing_to_show,
            agent.each_server,
            lambda text: agent.revoked.learn(text, agent.access(AGENT.name).ca),
        )
        discovering = ServerDiscovery(remotes[SCHEDULER.name], SCHEDULER)
        try:
            attending.start()
            discovering.start()
            async with server.client() as admin:
                meta = ObjectMeta(name=revocation_name(SERVER))
                await admin.create(Revocation(metadata=meta, spec=RevocationSpec(user=SERVER)))
            async with asyncio.timeout(PATIENCE_S):
                for event in left.values():
                    await event.wait()
        finally:
            await attending.stop()
            await discovering.stop()
            for remote in remotes.values():
                await asyncio.gather(*remote.reconnects)
                await remote.close()
            server.kill()

    asyncio.run(story())
