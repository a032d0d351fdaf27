"""Who read Secrets, got certificates or was turned away is in the audit of a real server, over TLS;
auditors read it there, and a tenant's auditor sees its tenant alone."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.host.audit.records_route import PATH, RecordPage
from holdfast.host.audit.segments import FOLDER
from holdfast.host.audit.segments import records as read_records
from holdfast.host.component.options import duration
from holdfast.host.pki.certificates import CertificateAuthority, serial_of
from holdfast.host.pki.join_tokens import create_token
from holdfast.host.pki.node_join import join_or_load
from holdfast.model.audit.audit_records import Mutation, mutation_of
from holdfast.model.kinds.access import RoleBinding, RoleRef, Subject
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE
from tests.live.plane_process import PlaneProcess
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("accesses")]

SECRETS = "/apis/holdfast.dev/v1/namespaces/{}/secrets"
FLOOD = 300


@asynccontextmanager
async def serving(data: Path, *options: str) -> AsyncIterator[PlaneProcess]:
    server = await PlaneProcess(data, *options).start()
    try:
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def session_of(server: PlaneProcess, name: str, *groups: str) -> AsyncIterator[Any]:
    """A session with the certificate of a user; without a name one with none."""
    access = server.access()
    if name:
        issued = CertificateAuthority.open(server.data / "pki").issue(name, groups=groups)
        access = msgspec.structs.replace(access, certificate=issued.certificate, key=issued.key)
    else:
        access = msgspec.structs.replace(access, certificate=b"", key=b"")
    context: ssl.SSLContext = access.context()
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(server.url, connector=connector) as session:
        yield session


async def got(session: Any, path: str, **headers: str) -> tuple[int, bytes]:
    async with session.get(path, headers=headers) as answer:
        return answer.status, await answer.read()


async def told(
    server: PlaneProcess, wanted: Callable[[list[Mutation]], bool], query: str = ""
) -> list[Mutation]:
    """What the audit says, once it says what is wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        code, text = await server.fetch(f"{PATH}?limit=500{query}")
        assert code == 200, text
        page = msgspec.json.decode(text, type=RecordPage)
        found = [it.said for it in page.records if it.said is not None]
        if wanted(found):
            return found
        assert time.monotonic() < deadline, found[-20:]
        await asyncio.sleep(0.2)


def has(*verbs: str) -> Callable[[list[Mutation]], bool]:
    return lambda found: set(verbs) <= {it.verb for it in found}


def test_reads_of_secrets_are_reported_and_a_tenants_auditor_sees_its_own(tmp_path: Path) -> None:
    async def story() -> None:
        export = tmp_path / "export"
        async with serving(tmp_path / "data", "--audit-export", f"file:{export}") as server:
            async with server.client() as admin:
                for tenant in ("risk", "rival"):
                    await admin.create(Tenant(metadata=ObjectMeta(name=tenant)))
                    meta = ObjectMeta(name=f"{tenant}-db", namespace=tenant)
                    await admin.create(Secret(metadata=meta, data={"a": "Yg=="}))
                binding = RoleBinding(
                    metadata=ObjectMeta(name="audit", namespace="risk"),
                    role_ref=RoleRef(name="tenant-auditor", namespace=SYSTEM_NAMESPACE),
                    subjects=(Subject(kind="User", name="eve"),),
                )
                await admin.create(binding)
            for tenant in ("risk", "rival"):
                async with session_of(server, f"{tenant}-bot", f"tenant:{tenant}") as session:
                    path = SECRETS.format(tenant)
                    assert (await got(session, f"{path}/{tenant}-db"))[0] == 200
                    assert (await got(session, path))[0] == 200
                    watch = f"{path}?watch=true&timeoutSeconds=1"
                    assert (await got(session, watch))[0] == 200
                    # A patch that is only tried shows the object to who may not get it.
                    tried = f"{path}/{tenant}-db?dryRun=All"
                    kind = {"Content-Type": "application/merge-patch+json"}
                    async with session.patch(tried, data=b"{}", headers=kind) as answer:
                        assert answer.status == 200
            found = await told(server, has("Read", "List", "Watch"))
            reads = [it for it in found if it.kind == "secrets" and it.who == "risk-bot"]
            assert {it.verb for it in reads} == {"Read", "List", "Watch"}
            assert {it.reason for it in reads if it.verb == "Read"} >= {
                "",
                "in the answer to a write",
            }
            for it in reads:
                assert it.source == "127.0.0.1"
                assert it.credential.startswith("certificate 4846")
            async with session_of(server, "eve") as eve:
                assert (await got(eve, PATH))[0] == 403
                assert (await got(eve, f"{PATH}?namespace=rival"))[0] == 403
                code, body = await got(eve, f"{PATH}?namespace=risk")
                assert code == 200
                assert b"rival" not in body
                own = msgspec.json.decode(body, type=RecordPage)
                assert any(it.said and it.said.verb == "Read" for it in own.records)
            await exported(export, "Read")

    asyncio.run(story())


def content(folder: Path) -> bytes:
    return b"".join(it.read_bytes() for it in folder.glob("*.jsonl"))


async def exported(folder: Path, verb: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        if b'"verb":"%b"' % verb.encode() in await asyncio.to_thread(content, folder):
            return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


def test_failed_authentications_are_reported_and_cannot_flood(tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(tmp_path / "data") as server:
            async with session_of(server, "") as nobody:
                bearer = {"Authorization": "Bearer holdfast-system.bot.hidden-secret"}
                for _ in range(FLOOD):
                    assert (await got(nobody, SECRETS.format("default"), **bearer))[0] == 401
            found = await told(server, has("AuthenticationFailed"))
            failed = [it for it in found if it.verb == "AuthenticationFailed"]
            assert len(failed) <= 2
            assert failed[0].source == "127.0.0.1"
            assert failed[0].credential == "token holdfast-system/bot"
            everything = "".join(map(repr, found))
            assert "hidden-secret" not in everything
            # The server's own certificates were issued at this first start.
            issued = [it.name for it in found if it.verb == "IssueCertificate"]
            assert sorted(issued) == ["admin", "peer", "server"]

    asyncio.run(story())


def test_a_certificate_of_another_authority_is_reported(tmp_path: Path) -> None:
    """TLS refuses it before there is a request, and the audit has it all the same."""

    async def story() -> None:
        async with serving(tmp_path / "data") as server:
            foreign = CertificateAuthority.open(tmp_path / "foreign").issue(
                "admin", groups=("system:masters",)
            )
            access = msgspec.structs.replace(
                server.access(), certificate=foreign.certificate, key=foreign.key
            )
            for _ in range(3):
                connector = aiohttp.TCPConnector(ssl=access.context())
                async with aiohttp.ClientSession(server.url, connector=connector) as session:
                    with pytest.raises(aiohttp.ClientError):
                        await got(session, SECRETS.format("default"))
            found = await told(server, has("AuthenticationFailed"))
            (one,) = [it for it in found if it.verb == "AuthenticationFailed"]
            assert one.source == "127.0.0.1"
            assert one.credential.startswith("certificate refused: ")

    asyncio.run(story())


def test_certificates_of_nodes_are_reported(tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(tmp_path / "data") as server:
            async with server.client() as admin:
                token = await create_token(admin, "n1", duration("--ttl", "10m"))
            got = await join_or_load((server.url,), "n1", tmp_path / "n1", token, lambda text: None)
            serial = f"{serial_of(got.certificate):x}"
            found = await told(server, lambda all_: any(it.name == "system:node:n1" for it in all_))
            (one,) = [it for it in found if it.name == "system:node:n1"]
            assert (one.verb, one.who) == ("IssueCertificate", "system:node:n1")
            assert (one.credential, one.source) == (f"certificate {serial}", "127.0.0.1")
            await server.stop()
        said = [mutation_of(it) for it in read_records([server.data / FOLDER])]
        assert one in said

    asyncio.run(story())
