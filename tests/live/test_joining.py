"""How nodes join a real server over TLS, and which must not."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.cli.processes.local_plane import LocalPlane, LocalPlanePlan
from holdfast.host.client import Access, AsyncClient
from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.transport import Transport
from holdfast.host.pki import node_join
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.join_protocol import JOIN_PATH, JoinRequest
from holdfast.host.pki.join_tokens import create_token, new_token, parse
from holdfast.host.pki.node_join import NodeFiles, join_or_load
from holdfast.model.errors import Forbidden, Invalid, Missing, Unavailable
from holdfast.model.kinds.access import Token
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import RegisterNode
from tests.canaries import plant
from tests.live.plane_process import PATIENT, PlaneProcess
from tests.patience import STORY_S

HOUR = timedelta(hours=1)
Story = Callable[[PlaneProcess, Path], Awaitable[None]]


def play(tmp_path: Path, story: Story) -> None:
    async def played() -> None:
        plane = await PlaneProcess(tmp_path / "plane").start()
        try:
            await story(plane, tmp_path)
        finally:
            plane.kill()

    asyncio.run(asyncio.wait_for(played(), STORY_S))


async def token_for(plane: PlaneProcess, node: str, ttl: timedelta = HOUR) -> str:
    async with plane.client() as admin:
        token = await create_token(admin, node, ttl)
        plant(parse(token).secret)
        return token


async def register(access: Access, node: str) -> None:
    spec = NodeSpec(region="eu", zone="eu-a")
    async with AsyncClient(access, policy=PATIENT) as agent:
        metadata = ObjectMeta(name=node)
        for known in (await agent.list(Node)).objects:
            seen = known.metadata
            metadata = ObjectMeta(name=node, uid=seen.uid, resource_version=seen.resource_version)
        await agent.ask(RegisterNode(Node(metadata, spec=spec)))


def signing_request(key: Any) -> str:
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


async def post(plane: PlaneProcess, wanted: JoinRequest | bytes, **shown: bytes) -> HttpAnswer:
    access = Access(servers=(plane.url,), ca=plane.access().ca, **shown)
    body = wanted if isinstance(wanted, bytes) else msgspec.json.encode(wanted)
    async with Transport(access) as transport:
        return await transport.send("POST", JOIN_PATH, body=body)


def test_a_node_joins_once_and_later_starts_need_no_token(tmp_path: Path) -> None:
    """Its key never leaves it, and no other user may read it."""

    async def story(plane: PlaneProcess, folder: Path) -> None:
        token, files = await token_for(plane, "n1"), NodeFiles(folder / "agent")
        access = await join_or_load((plane.url,), "n1", files.directory, token)
        await register(access, "n1")
        for path in (files.key, files.certificate, files.authority):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert await join_or_load((plane.url,), "n1", files.directory) == access
        certificate = x509.load_pem_x509_certificate(access.certificate)
        assert certificate.subject.rfc4514_string() == "CN=system:node:n1"
        async with plane.client() as admin:
            used = await admin.get(Token, parse(token).name, SYSTEM_NAMESPACE)
            assert used.status.used_by == "n1"
            assert parse(token).secret.encode() not in msgspec.json.encode(used)

    play(tmp_path, story)


def test_a_token_lets_in_one_key_however_many_hurry(tmp_path: Path) -> None:
    """Also when all ask at once; the one who got in may ask again."""

    async def story(plane: PlaneProcess, folder: Path) -> None:
        token = await token_for(plane, "")
        agents = [folder / f"agent-{n}" for n in range(6)]
        tries = await asyncio.gather(
            *(join_or_load((plane.url,), f"n{n}", agent, token) for n, agent in enumerate(agents)),
            return_exceptions=True,
        )
        winners = [n for n, it in enumerate(tries) if isinstance(it, Access)]
        assert len(winners) == 1, tries
        losers = [it for it in tries if not isinstance(it, Access)]
        assert all(isinstance(it, Forbidden) and "was used by node" in it.message for it in losers)
        # Its answer was lost, as it were.
        NodeFiles(agents[winners[0]]).certificate.unlink()
        again = await join_or_load((plane.url,), f"n{winners[0]}", agents[winners[0]], token)
        await register(again, f"n{winners[0]}")

    play(tmp_path, story)


def test_two_tokens_for_any_node_do_not_make_one_node_of_two_machines(tmp_path: Path) -> None:
    """Neither is registered yet, and both would be the same node to all others."""

    async def story(plane: PlaneProcess, folder: Path) -> None:
        tokens = [await token_for(plane, "") for _ in range(3)]
        hurry = (
            join_or_load((plane.url,), "n1", folder / f"agent-{n}", token)
            for n, token in enumerate(tokens)
        )
        tries = await asyncio.gather(*hurry, return_exceptions=True)
        winners = [n for n, it in enumerate(tries) if isinstance(it, Access)]
        assert len(winners) == 1, tries
        for loser in {0, 1, 2} - set(winners):
            # The token is used up, and asking again does not help.
            with pytest.raises(Forbidden, match="another machine is joining as node n1"):
                await join_or_load((plane.url,), "n1", folder / f"agent-{loser}", tokens[loser])
        # The node that the token names gets in.
        await join_or_load((plane.url,), "n1", folder / "meant", await token_for(plane, "n1"))

    play(tmp_path, story)


def test_a_token_that_is_wrong_old_revoked_or_for_another_node_is_refused(
    tmp_path: Path,
) -> None:
    """Who knows the secret hears what is wrong; who does not hears one sentence. [B5]"""

    async def story(plane: PlaneProcess, folder: Path) -> None:
        async def refusal(token: str, node: str = "n1") -> Any:
            with pytest.raises((Forbidden, Missing)) as refused:
                await join_or_load((plane.url,), node, folder / node, token)
            return refused.value

        good = await token_for(plane, "n1")
        wrong = msgspec.structs.replace(parse(good), secret="x" * 43).text
        unknown = msgspec.structs.replace(parse(good), name="join-none").text
        for token in (wrong, unknown):
            error = await refusal(token)
            assert (error.code, error.message) == (
                "Unauthenticated",
                "the join token is not valid here",
            )
        assert "is for node n1, not for n2" in (await refusal(good, "n2")).message
        async with plane.client() as admin:
            old, text = new_token(plane.access().ca, "n1", HOUR)
            spec = msgspec.structs.replace(
                old.spec, expires=datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
            )
            await admin.create(msgspec.structs.replace(old, spec=spec))
            await admin.patch(
                Token, parse(good).name, SYSTEM_NAMESPACE, {"spec": {"revoked": True}}
            )
        assert "was revoked" in (await refusal(good)).message
        await asyncio.sleep(1.1)
        assert "has expired" in (await refusal(text.text)).message

    play(tmp_path, story)


def test_a_token_for_any_node_replaces_no_node(tmp_path: Path) -> None:
    """A node that is known joins again only with a token of its own name."""

    async def story(plane: PlaneProcess, folder: Path) -> None:
        servers = (plane.url,)
        first = await join_or_load(servers, "n1", folder / "first", await token_for(plane, "n1"))
        await register(first, "n1")
        with pytest.raises(Forbidden, match="node n1 exists already"):
            await join_or_load(servers, "n1", folder / "thief", await token_for(plane, ""))
        await join_or_load(servers, "n1", folder / "mended", await token_for(plane, "n1"))
        # A bearer's token and a join token are not the same thing.
        async with AsyncClient(
            Access(servers=servers, ca=first.ca, token=f"{SYSTEM_NAMESPACE}.x.y")
        ) as client:
            with pytest.raises(Forbidden):
                await client.list(Node)

    play(tmp_path, story)


def test_a_joiner_shows_its_token_only_to_the_plane_that_it_is_for(tmp_path: Path) -> None:
    """A server in between has another authority, whatever else it sends along."""

    async def story(plane: PlaneProcess, folder: Path) -> None:
        foreign = CertificateAuthority.open(folder / "foreign")
        _, text = new_token(foreign.pem, "n1", HOUR)
        with pytest.raises(Invalid, match="does not belong to the plane of the join token"):
            await join_or_load((plane.url,), "n1", folder / "agent", text.text)
        sent = foreign.pem + plane.access().ca
        pinned = node_join.verified_authorities(sent, b"", parse(text.text))
        assert pinned == (foreign.pem, b"")
        with pytest.raises(Unavailable):
            await join_or_load(("https://127.0.0.1:1",), "n1", folder / "agent", text.text)
        with pytest.raises(Invalid, match="give it a join token"):
            await join_or_load((plane.url,), "n1", folder / "nobody")
        with pytest.raises(Invalid, match="this is not a join token"):
            await join_or_load((plane.url,), "n1", folder / "nobody", "hello")

    play(tmp_path, story)


def test_what_is_no_request_to_join_is_refused_and_uses_nothing_up(tmp_path: Path) -> None:
    async def story(plane: PlaneProcess, folder: Path) -> None:
        token = await token_for(plane, "")
        good = signing_request(ec.generate_private_key(ec.SECP256R1()))
        weak = signing_request(ec.generate_private_key(ec.SECP192R1()))
        other = signing_request(rsa.generate_private_key(65_537, 2_048))
        for wanted, code in (
            (b"", 400),
            (b"[" * 10_000, 400),
            (b'{"node":"n1"}', 400),
            (b"x" * 100_000, 413),
            (JoinRequest("n1", "", token), 422),
            (JoinRequest("n1", weak, token), 422),
            (JoinRequest("n1", other, token), 422),
            (JoinRequest("N1", good, token), 422),
            (JoinRequest("n1/../n2", good, token), 422),
            (JoinRequest("n" * 60, good, token), 422),
            (JoinRequest("n1", good), 401),
        ):
            answer = await post(plane, wanted)
            assert answer.code == code, (wanted, answer)
            assert parse(token).secret.encode() not in answer.body
        assert (await plane.fetch(JOIN_PATH, known=False))[0] == 405
        assert (await post(plane, JoinRequest("n1", good, token))).code == 200

    play(tmp_path, story)


def test_a_node_gets_a_new_certificate_by_the_one_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For itself alone, and as long as its node is known."""

    async def story(plane: PlaneProcess, folder: Path) -> None:
        agent, servers = folder / "agent", (plane.url,)
        first = await join_or_load(servers, "n1", agent, await token_for(plane, "n1"))
        monkeypatch.setattr(node_join, "RENEW_FROM", 0)
        said: list[str] = []
        assert await join_or_load(servers, "n1", agent, say=said.append) == first
        assert "node n1 does not exist" in said[0]
        await register(first, "n1")
        second = await join_or_load(servers, "n1", agent, say=said.append)
        assert (second.key, len(said)) == (first.key, 1)
        assert second.certificate != first.certificate
        await register(second, "n1")
        key = signing_request(ec.generate_private_key(ec.SECP256R1()))
        shown = {"certificate": first.certificate, "key": first.key}
        assert (await post(plane, JoinRequest("n2", key), **shown)).code == 401

    play(tmp_path, story)


def test_a_deleted_node_of_up_comes_back_with_its_agents_next_start(tmp_path: Path) -> None:
    """An operator who starts it there wants it; a life that goes on does not bring it back."""

    async def story(plane: PlaneProcess, folder: Path) -> None:
        plan = LocalPlanePlan(
            data=folder / "up", listen="", pki=plane.data / "pki", server=(), agents=1
        )
        local = LocalPlane(plan, print)
        local.url, (node,) = plane.url, plan.nodes

        async def started() -> Access:
            await local.provide(node)
            return await join_or_load((plane.url,), node, plan.certificates(node))

        first = await started()
        await register(first, node)
        assert await started() == first
        async with plane.client() as admin:
            await admin.delete(Node, node)
        with pytest.raises(Forbidden, match="was revoked"):
            await register(first, node)
        second = await started()
        assert second.key != first.key
        await register(second, node)

    play(tmp_path, story)


def test_a_directory_is_of_one_node(tmp_path: Path) -> None:
    """Two agents with one key would be one node twice."""

    async def story(plane: PlaneProcess, folder: Path) -> None:
        await join_or_load((plane.url,), "n1", folder / "agent", await token_for(plane, "n1"))
        with pytest.raises(Invalid, match="is for system:node:n1, not for node n2"):
            await join_or_load((plane.url,), "n2", folder / "agent", await token_for(plane, "n2"))

    play(tmp_path, story)
