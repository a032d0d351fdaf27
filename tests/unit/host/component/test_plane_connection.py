"""A component with connections to a second plane, each plane with a server of its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from holdfast.host.client import Access
from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.plane_clients import PlaneAccount, PlaneClients
from holdfast.host.component import build
from holdfast.host.component.build import ComponentSettings, OtherPlane
from holdfast.host.pki.certificates import CertificateAuthority, IssuedCertificate
from holdfast.host.pki.component_credentials import CONTROLLERS, file_name, provide
from holdfast.model.access.identity import ADMINS, Identity, controller
from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.heartbeat import server_scope
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Reason
from holdfast.model.requests import AcquireLease, Create
from holdfast.observe.watch_events import SERVERS, Follow, Present
from tests.inner_plane import InnerPlane, inner_plane
from tests.patience import PATIENCE_S, STORY_S
from tests.unit.correct.copies import GLOBE, THERE, Copies

HOME = controller("workload")
GUEST = "guest-of-main"


def access(plane: InnerPlane, pki: Path, name: str, *groups: str) -> Access:
    authority = CertificateAuthority.open(pki)
    issued = authority.issue(name, groups=groups)
    return Access(
        servers=(plane.url,),
        ca=authority.pem,
        certificate=issued.certificate,
        key=issued.key,
    )


async def two_planes(stack: AsyncExitStack, folder: Path) -> tuple[InnerPlane, InnerPlane]:
    own = await stack.enter_async_context(inner_plane(folder / "own"))
    return own, await stack.enter_async_context(inner_plane(folder / "globe"))


def test_each_plane_is_asked_under_the_identity_that_the_component_has_there(
    tmp_path: Path,
) -> None:
    """Also for streams. What a server of one plane may do, its name may not do in another."""

    async def story() -> None:
        async with AsyncExitStack() as stack:
            own, globe = await two_planes(stack, tmp_path)
            await globe.tenant("acme")
            me = Identity(name="system:server:one")
            at_home = ApiClient({me.name: access(own, tmp_path / "own" / "pki", me.name)})
            there = ApiClient({GUEST: access(globe, tmp_path / "globe" / "pki", GUEST, ADMINS)})
            clients = PlaneClients(at_home, {GLOBE: PlaneAccount(there, Identity(name=GUEST))})
            stack.push_async_callback(at_home.close)
            stack.push_async_callback(there.close)
            lease = AcquireLease(server_scope("two"), 10_000)
            found = [
                await clients.ask(me, to, Get("tenants", "acme"), 5.0) for to in (SERVERS, THERE)
            ]
            assert [it.object is not None for it in found] == [False, True]
            mine = AcquireLease(server_scope("one"), 10_000)
            refused = await clients.ask(me, THERE, mine, 5.0)
            assert refused.reason is Reason.NOT_OWNER
            assert GUEST in refused.message
            made = Create(Tenant(ObjectMeta(name="made")), operation="test/1")
            submitted = clients.submit(me, THERE, made, 5.0)
            assert submitted is not None
            assert (await submitted).revision > 0
            events = clients.follow(me, THERE, Follow("tenants"))
            listed = [it.object.name for it in await anext(events) if isinstance(it, Present)]
            assert sorted(listed) == ["acme", "default", "made"]
            await events.aclose()
            with pytest.raises(Unavailable, match=r"no credentials for plane mars; .*: globe"):
                await clients.ask(me, "mars/servers", lease, 5.0)
            with pytest.raises(Unavailable, match="not one of the servers"):
                await clients.ask(me, globe.url, lease, 5.0)

    asyncio.run(asyncio.wait_for(story(), STORY_S))


def credentials(folder: Path, globe_pki: Path) -> tuple[Path, Path]:
    """The directories with the controllers' certificates at home and in the other plane."""
    own, guest = folder / "certificates", folder / "guest"
    provide(folder / "own" / "pki", own, (HOME.name,))
    guest.mkdir()
    authority = CertificateAuthority.open(globe_pki)
    issued: IssuedCertificate = authority.issue(GUEST, groups=(ADMINS,))
    (guest / "ca.crt").write_bytes(authority.pem)
    (guest / f"{file_name(GUEST)}.crt").write_bytes(issued.certificate)
    (guest / f"{file_name(GUEST)}.key").write_bytes(issued.key)
    return own, guest


def test_a_controller_works_in_two_planes(tmp_path: Path) -> None:
    """It takes its lease at home, reads both planes, and writes to the other one."""

    async def story() -> None:
        async with AsyncExitStack() as stack:
            own, globe = await two_planes(stack, tmp_path)
            pki, guest = credentials(tmp_path, tmp_path / "globe" / "pki")
            await own.tenant("acme")
            other = OtherPlane(plane=GLOBE, servers=(globe.url,), pki=guest, identity=GUEST)
            settings = ComponentSettings(servers=(own.url,), pki=pki, name="main", planes=(other,))
            component = await build.controllers(settings, [Copies()])
            await component.start()
            stack.push_async_callback(component.stop)
            reader = ApiClient({GUEST: access(globe, tmp_path / "globe" / "pki", GUEST, ADMINS)})
            stack.push_async_callback(reader.close)
            events = reader.follow(Identity(name=GUEST), SERVERS, Follow("tenants"))
            stack.push_async_callback(events.aclose)
            async with asyncio.timeout(PATIENCE_S):
                async for told in events:
                    if any(isinstance(it, Present) and it.object.name == "acme" for it in told):
                        return
            raise AssertionError("the stream ended")

    asyncio.run(asyncio.wait_for(story(), STORY_S))


def test_the_key_of_another_planes_authority_is_refused(tmp_path: Path) -> None:
    """A component has no more of another plane than of its own."""

    async def story() -> None:
        async with AsyncExitStack() as stack:
            own, globe = await two_planes(stack, tmp_path)
            pki, _ = credentials(tmp_path, tmp_path / "globe" / "pki")
            other = OtherPlane(
                plane=GLOBE, servers=(globe.url,), pki=tmp_path / "globe" / "pki", identity=GUEST
            )
            settings = ComponentSettings(servers=(own.url,), pki=pki, name="main", planes=(other,))
            with pytest.raises(Invalid, match=f"which no {CONTROLLERS} has"):
                await build.controllers(settings, [Copies()])

    asyncio.run(asyncio.wait_for(story(), STORY_S))
