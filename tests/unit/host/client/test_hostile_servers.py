"""The client against what is no server of ours, or a broken one: it loses no credentials, reads
without limit nothing, and says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from holdfast.host.client import Access, AsyncClient, from_kubeconfig, http_session, paths
from holdfast.host.client.list_watch import follow
from holdfast.host.pki.kubeconfig import kubeconfig
from holdfast.model.errors import Forbidden, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.registry import kind_of_struct
from holdfast.observe.retry import RetryPolicy
from tests.unit.host.client.scripted import Reply, Scripted, refuses, says
from tests.unit.host.client.test_client import document, play
from tests.unit.host.client.test_client import web as workload

ONCE = RetryPolicy(tries_max=1, looks_max=1, deadline_ms=20_000, try_ms=5_000, pause_ms=1)
TOKEN = "a.b.a-secret-of-the-user"
Act = Callable[[AsyncClient], Awaitable[Any]]


def with_token(server: Scripted) -> AsyncClient:
    access = Access(servers=(server.url,), ca=server.trust.authorities.pem, token=TOKEN)
    return AsyncClient(access, policy=ONCE)


async def _get(client: AsyncClient) -> Any:
    return await client.get(Workload, "web", "acme")


async def _create(client: AsyncClient) -> Any:
    return await client.create(workload())


class NothingCame(Exception):
    """A watch brought nothing: it tries again without end."""


async def _watch(client: AsyncClient) -> Any:
    async with contextlib.aclosing(follow(client, Workload)) as events:
        try:
            async with asyncio.timeout(0.5):
                return await anext(events)
        except TimeoutError as error:
            raise NothingCame from error


async def _logs(client: AsyncClient) -> Any:
    return [line async for line in client.logs("web-0-0", "acme")]


async def _exec(client: AsyncClient) -> Any:
    return await client.exec("web-0-0", ["true"], "acme")


@pytest.mark.parametrize("act", [_get, _create, _watch, _logs, _exec])
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_leads_no_credentials_to_another_host(
    tmp_path: Path, act: Act, code: int
) -> None:
    """The other host has a certificate of this authority, and only the client can refuse."""

    async def story() -> None:
        other = Scripted(tmp_path, says(document()), name="two")
        async with other:

            def redirects(request: web.BaseRequest) -> web.StreamResponse:
                return web.Response(status=code, headers={"Location": other.url + "/elsewhere"})

            async with Scripted(tmp_path, redirects, name="one") as server:
                async with with_token(server) as client:
                    with pytest.raises((Unavailable, NothingCame)) as refused:
                        await act(client)
                if isinstance(refused.value, Unavailable):
                    assert f"redirects to '{other.url}/elsewhere'" in refused.value.message
                assert len(server.seen) >= 1
                assert other.seen == []

    play(story())


def cut(request: web.BaseRequest) -> web.StreamResponse:
    """Announces more than it sends."""

    class Response(web.StreamResponse):
        async def write_eof(self, data: bytes = b"") -> None:
            await self.write(b'{"kind":"Workload",')
            assert request.transport is not None
            request.transport.close()

    return Response(headers={"Content-Length": "1000", "Content-Type": "application/json"})


def sends(body: bytes, *, chunked: bool = False) -> Reply:
    def reply(request: web.BaseRequest) -> web.StreamResponse:
        response = web.Response(body=body)
        if chunked:
            response.enable_chunked_encoding()
        return response

    return reply


UNREADABLE = [
    sends(b"<html>hello</html>"),
    sends(b""),
    sends(b'{"kind":"\xff"}'),
    sends(b"[" * 200_000),
    sends(b'{"kind":"Workload","metadata":7}'),
    cut,
]
IDS = ["html", "nothing", "not text", "deep", "another type", "cut off"]


@pytest.mark.parametrize("reply", UNREADABLE, ids=IDS)
def test_an_answer_that_cannot_be_read_is_a_fault_of_a_read(tmp_path: Path, reply: Reply) -> None:
    """[E5]"""

    async def story() -> None:
        async with Scripted(tmp_path, reply) as server, with_token(server) as client:
            for act in (_get(client), client.list(Workload)):
                with pytest.raises(Unavailable):
                    await act

    play(story())


@pytest.mark.parametrize("reply", UNREADABLE, ids=IDS)
def test_a_write_whose_answer_cannot_be_read_is_looked_up(tmp_path: Path, reply: Reply) -> None:
    """[E5]"""

    async def story() -> None:
        found = says(document("web", "op-1"))
        async with Scripted(tmp_path, reply, found) as server, with_token(server) as client:
            made = await client.create(workload(), operation="op-1")
            assert made.metadata.uid == "u-1"
            assert [method for method, _, _ in server.seen] == ["POST", "GET"]

    play(story())


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "in chunks"])
def test_an_endless_answer_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunked: bool
) -> None:
    monkeypatch.setattr(http_session, "ANSWER_BYTES_MAX", 100_000)

    async def story() -> None:
        reply = sends(b" " * 300_000, chunked=chunked)
        async with Scripted(tmp_path, reply) as server, with_token(server) as client:
            with pytest.raises(Unavailable, match="more than 100000 bytes: ask for fewer"):
                await _get(client)
            with pytest.raises(OutcomeUnknown):
                await _create(client)

    play(story())


@pytest.mark.parametrize("name", ["", ".", "..", "\ud800"])
def test_a_name_that_leads_to_another_path_is_not_sent(name: str) -> None:
    async def story() -> None:
        async with AsyncClient(Access(servers=("https://127.0.0.1:1",)), policy=ONCE) as client:
            for act in (
                client.get(Workload, name, "acme"),
                client.delete(Workload, name, "acme"),
                client.scale(Workload, name, "acme", 1),
                client.patch(Workload, name, "acme", {}),
                client.wait(Workload, name, "Available", "acme"),
                client.exec(name, ["true"], "acme"),
            ):
                with pytest.raises(Invalid, match=r"^name: "):
                    await act
            if name:
                with pytest.raises(Invalid, match=r"^namespace: "):
                    await client.get(Workload, "web", name)

    play(story())


def test_other_names_stay_one_segment_of_the_path() -> None:
    kind = kind_of_struct(Workload)
    assert paths.one(kind, "a/b", "../c").endswith("/namespaces/a%2Fb/workloads/..%2Fc")
    assert paths.one(kind, "acme", "é?#%").endswith("/workloads/%C3%A9%3F%23%25")


def test_what_json_cannot_express_is_refused_before_it_is_sent() -> None:
    """[B4]"""

    async def story() -> None:
        async with AsyncClient(Access(servers=("https://127.0.0.1:1",)), policy=ONCE) as client:
            ring: dict[str, Any] = {}
            ring["spec"] = ring
            for odd in (float("nan"), {1, 2}, b"x", datetime.now(UTC), "\ud800", ring):
                for act in (client.apply, client.create):
                    wanted = {**document(), "spec": odd}
                    with pytest.raises(Invalid):
                        await act(wanted, manager="m")  # type: ignore[operator]
            with pytest.raises(Invalid, match="unknown kind 'Wokload'; did you mean Workload"):
                await client.create({**document(), "kind": "Wokload"})
            with pytest.raises(Invalid, match=r"spec\.replicaz"):
                await client.create({**document(), "spec": {"replicaz": 1}})

    play(story())


def test_what_cannot_be_reached_or_trusted_says_what_to_do(tmp_path: Path) -> None:
    """A server that is down, one of another authority, one of another name; our own expired
    certificate.
    """

    async def refusal(access: Access) -> HoldfastError:
        async with AsyncClient(access, policy=ONCE) as client:
            with pytest.raises(HoldfastError) as caught:
                await _get(client)
        return caught.value

    async def story() -> None:
        async with Scripted(tmp_path / "a", says(document())) as server:
            good, authority = server.client_access(), server.trust.authorities.signer
            down = await refusal(msgspec.structs.replace(good, servers=("https://127.0.0.1:1",)))
            assert down.message == (
                "https://127.0.0.1:1: Connection refused. Start the server, or correct the address"
            )
            other = Scripted(tmp_path / "b", says(document()))
            found = await refusal(msgspec.structs.replace(good, ca=other.trust.authorities.pem))
            assert "its certificate was rejected" in found.message
            assert "get a kubeconfig from a server again" in found.message
            async with Scripted(tmp_path / "a", says(document()), host="127.0.0.2") as second:
                elsewhere = second.url
                found = await refusal(msgspec.structs.replace(good, servers=(elsewhere,)))
            assert "Use an address that the server's certificate names" in found.message
            then = datetime.now(UTC) - timedelta(days=10)
            old = authority.issue("ann", life=timedelta(days=1), now=then)
            found = await refusal(
                msgspec.structs.replace(good, certificate=old.certificate, key=old.key)
            )
            assert "our certificate has expired on" in found.message
            assert server.seen == []

    play(story())


def test_a_token_that_was_replaced_in_its_file_is_read_again(tmp_path: Path) -> None:
    """A service token expires while the program runs; its file has the next one by then."""

    async def story() -> None:
        told: list[str] = []

        def judge(request: web.BaseRequest) -> web.StreamResponse:
            told.append(request.headers["Authorization"])
            is_new = told[-1] == "Bearer new"
            return (says(document()) if is_new else refuses(401, "Unauthenticated"))(request)

        async with Scripted(tmp_path, judge) as server:
            file, config = tmp_path / "token", tmp_path / "kubeconfig"
            file.write_text("old")
            ca = server.trust.authorities.pem
            config.write_bytes(kubeconfig(server.url, ca, file, user="me", namespace="acme"))
            async with AsyncClient(from_kubeconfig(config), policy=ONCE) as client:
                with pytest.raises(Forbidden):
                    await _get(client)
                assert told == ["Bearer old"]
                file.write_text("new")
                await asyncio.gather(*(_get(client) for _ in range(3)))
                assert told[-1] == "Bearer new"
                before = len(told)
                await _get(client)
                assert told[before:] == ["Bearer new"]

    play(story())


def test_a_log_that_breaks_off_is_not_a_whole_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scripted(tmp_path, cut) as server, with_token(server) as client:
            log = client.log_bytes("web-0-0", "acme")
            assert await anext(log) == b'{"kind":"Workload",'
            with pytest.raises(Unavailable):
                await anext(log)
        assert kind_of_struct(Replica).plural in server.seen[0][1]

    play(story())
