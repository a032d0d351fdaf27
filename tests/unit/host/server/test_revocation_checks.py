"""Revoked components at a server that does not know of the revocation yet."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.commit.heartbeat_intake import Renewals
from holdfast.commit.record_encoding import encode
from holdfast.host.api.app import Api
from holdfast.host.api.objects.presentation import Forms
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.first_trust import Trust, establish
from holdfast.host.pki.join_admission import JoinAdmission
from holdfast.host.pki.join_protocol import JoinRequest
from holdfast.host.pki.node_join import signing_request
from holdfast.host.pki.trust_bundle import first_bundle
from holdfast.host.process.metrics import Metrics
from holdfast.host.process.shell import Shell
from holdfast.host.server.authentication import CertificateEnded, ClientCertificate
from holdfast.host.server.authenticator import Authenticator
from holdfast.host.server.caller_rights import TRUST_S
from holdfast.host.server.forwarding import PATH as FORWARD_PATH
from holdfast.host.server.forwarding import handlers
from holdfast.host.server.revocation_checks import StoredRevocations
from holdfast.host.server.settings import ServerSettings, peer_host
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.credential_life import revocation_name
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.access import Revocation, RevocationSpec
from holdfast.model.kinds.node import Node, NodeStatus
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import Renew
from holdfast.model.read_requests import Reach
from holdfast.model.time import wall_ms
from holdfast.model.transaction import Put, Transaction
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.memory import MemoryStore
from tests.patience import STORY_S

ONE = who.server("one")
GROUP = "/apis/holdfast.dev/v1"
SECOND = timedelta(seconds=1)


class Cut(MemoryStore):
    """A store that becomes unavailable on demand."""

    is_cut = False

    async def range(self, *given: Any, **more: Any) -> Any:
        if self.is_cut:
            raise Unavailable("the store does not answer")
        return await super().range(*given, **more)


async def put(store: MemoryStore, obj: Object) -> int:
    outcome = await store.txn(Transaction((), (Put(keys.key_of(obj), encode(obj)),)))
    return outcome.revision  # type: ignore[union-attr]


def node(name: str) -> Node:
    return Node(ObjectMeta(name=name, uid=f"uid-{name}"), status=NodeStatus(incarnation=3))


def revocation(user: str, before: datetime) -> Revocation:
    spec = RevocationSpec(user=user, before=before)
    return Revocation(ObjectMeta(name=revocation_name(user)), spec=spec)


class Rig:
    """A server under TLS whose hub can be cut off from the store."""

    def __init__(self, folder: Path) -> None:
        self.store, self.hub = Cut(), WatchHub(Forms())
        self.trust: Trust = establish(ServerSettings(data=folder, name="one"))
        self.hub_shell = Shell(self.hub, ONE, store=self.store)
        renewals = Renewals("one", FenceTiming())
        self.renewals = Shell(renewals, ONE, store=self.store)
        self.decider = Shell(Renewals("two", FenceTiming()), ONE, store=self.store)
        authenticator = Authenticator(self.hub)

        async def demand_unrevoked(request: Any) -> None:
            await self.api.demand_unrevoked(request)

        self.api = Api(
            store=self.store,
            authority=self.decider,
            hub=self.hub,
            hub_shell=self.hub_shell,
            authenticate=authenticator,
            extras=handlers(self.decider, Metrics(), authenticator.peer_identity, demand_unrevoked),
            renewals=self.renewals,
            demand_current=StoredRevocations(authenticator, self.store).demand_current,
        )
        self.port = 0

    async def __aenter__(self) -> Rig:
        for shell in (self.hub_shell, self.renewals, self.decider):
            await shell.start()
        for name in ("n1", "n2"):
            revision = await put(self.store, node(name))
        await self.hub_shell.ask("test", Reach(revision), STORY_S)
        self.port = await self.api.start(tls=self.trust.context())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.api.stop()
        for shell in (self.renewals, self.decider, self.hub_shell):
            await shell.stop()

    async def go_deaf(self) -> None:
        """Cut the hub off from the store, which the server notices after a while."""
        await self.hub_shell.stop()
        rights = self.api.services.rights
        rights.now_s = lambda: time.monotonic() + TRUST_S + 60
        assert not rights.is_trusted

    async def send(self, user: str, method: str, path: str, body: Any = None) -> int:
        issued = self.trust.authorities.signer.issue(user)
        tls = ssl.create_default_context(cadata=self.trust.authorities.pem.decode())
        pair = self.folder_of(user)
        pair[0].write_bytes(issued.certificate)
        pair[1].write_bytes(issued.key)
        tls.load_cert_chain(*pair)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
            session.request(
                method,
                f"https://127.0.0.1:{self.port}{path}",
                data=msgspec.json.encode(body) if body is not None else None,
                headers={"Content-Type": "application/json"},
                server_hostname=peer_host("one"),
            ) as response,
        ):
            return response.status

    def folder_of(self, user: str) -> tuple[Path, Path]:
        directory = self.trust.server[0].parent
        name = user.replace(":", "_")
        return directory / f"{name}.test.crt", directory / f"{name}.test.key"

    async def renew(self, name: str) -> int:
        wanted = Renew(node=name, uid=f"uid-{name}", incarnation=3)
        return await self.send(
            f"system:node:{name}", "POST", f"{GROUP}/nodes/{name}/renewals", wanted
        )


def play(folder: Path, story: Callable[[Rig], Awaitable[None]]) -> None:
    async def played() -> None:
        async with Rig(folder) as rig:
            await story(rig)

    asyncio.run(asyncio.wait_for(played(), STORY_S))


def later() -> datetime:
    """Return a moment after all that is issued in a test."""
    return datetime.now(UTC) + timedelta(hours=1)


def test_a_revoked_node_is_not_renewed_by_a_server_that_did_not_learn_of_it(tmp_path: Path) -> None:
    """Its work would run beside its replacement. Others are renewed all the same. [B5]"""

    async def story(rig: Rig) -> None:
        assert (await rig.renew("n1"), await rig.renew("n2")) == (200, 200)
        await rig.go_deaf()
        await put(rig.store, revocation("system:node:n1", later()))
        assert (await rig.renew("n1"), await rig.renew("n2")) == (401, 200)

    play(tmp_path, story)


@pytest.mark.parametrize(
    "user, path",
    [
        ("system:scheduler:main", f"{GROUP}/requests"),
        ("system:controller:nodes", f"{GROUP}/requests"),
        ("system:server:two", FORWARD_PATH),
    ],
)
def test_nothing_of_a_revoked_component_is_committed_over_such_a_server(
    tmp_path: Path, user: str, path: str
) -> None:
    """[B5]"""

    async def story(rig: Rig) -> None:
        await rig.go_deaf()
        assert await rig.send(user, "POST", path, []) != 401
        await put(rig.store, revocation(user, later()))
        assert await rig.send(user, "POST", path, []) == 401

    play(tmp_path, story)


def test_a_change_that_no_server_can_vouch_for_waits_and_reads_go_on(tmp_path: Path) -> None:
    """What can be read is older than the revocation that may have been missed. [B5]"""

    async def story(rig: Rig) -> None:
        await rig.go_deaf()
        rig.store.is_cut = True
        assert await rig.send("system:scheduler:main", "POST", f"{GROUP}/requests", []) == 503
        listed = f"{GROUP}/nodes?resourceVersion=0"
        assert await rig.send("system:scheduler:main", "GET", listed) == 200

    play(tmp_path, story)


def test_a_revocation_that_cannot_be_read_ends_everything(tmp_path: Path) -> None:
    """It may concern this credential. [B5]"""

    async def story(rig: Rig) -> None:
        await rig.go_deaf()
        key = keys.key_of(revocation("system:node:n1", later()))
        await rig.store.txn(Transaction((), (Put(key, b"no revocation"),)))
        assert await rig.renew("n1") == 401

    play(tmp_path, story)


# Renewing a certificate ---------------------------------------------------------------------------


def request_of(name: str) -> JoinRequest:
    return JoinRequest(name, signing_request(name, ec.generate_private_key(ec.SECP256R1())), "")


def shown_of(name: str, issued: datetime) -> ClientCertificate:
    return ClientCertificate(who.agent(name), time.time() + 3_600, wall_ms(issued))


def admitting(store: MemoryStore, issuer: CertificateAuthorities) -> JoinAdmission:
    unused: Any = None
    return JoinAdmission(ONE, unused, store, issuer, unused)


def test_a_revoked_certificate_gets_no_next_one(tmp_path: Path) -> None:
    """It would outlive the revocation. A certificate issued since does renew."""

    async def story() -> None:
        store = MemoryStore()
        gate = admitting(store, CertificateAuthorities.open(tmp_path))
        await put(store, node("n1"))
        before = datetime.now(UTC) - 60 * SECOND
        await put(store, revocation("system:node:n1", before))
        for early in (before - SECOND, before):
            with pytest.raises(CertificateEnded, match="was revoked"):
                await gate.join(shown_of("n1", early), request_of("n1"))
        joined = await gate.join(shown_of("n1", before + SECOND), request_of("n1"))
        assert "CERTIFICATE" in joined.certificate

    asyncio.run(asyncio.wait_for(story(), STORY_S))


def test_a_certificate_that_is_revoked_while_it_is_made_is_not_handed_out(tmp_path: Path) -> None:
    """It is dated after the revocation, which would not end it."""

    async def story() -> None:
        store, loop = MemoryStore(), asyncio.get_running_loop()

        class Slow(CertificateAuthority):
            def certify(self, *given: Any, **more: Any) -> bytes:
                revoked = put(store, revocation("system:node:n1", datetime.now(UTC)))
                asyncio.run_coroutine_threadsafe(revoked, loop).result(STORY_S)
                return super().certify(*given, **more)

        await put(store, node("n1"))
        slow = Slow.open(tmp_path)
        gate = admitting(
            store, CertificateAuthorities(first_bundle(slow.pem), {slow.fingerprint: slow})
        )
        with pytest.raises(Unavailable, match="was revoked while"):
            await gate.join(shown_of("n1", datetime.now(UTC) - SECOND), request_of("n1"))

    asyncio.run(asyncio.wait_for(story(), STORY_S))
