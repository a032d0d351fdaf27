"""What takes longer than one answer: waiting, watching, commands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import WSMsgType, web

from holdfast.host.client import AsyncClient, Departed, Listed, Present, async_client
from holdfast.host.client.exec_session import CLOSE, STATUS, STDERR, STDIN, STDOUT
from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.errors import Forbidden, Invalid, OutcomeUnknown, Rejected, Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload
from tests.unit.host.client.scripted import Reply, Scripted, refuses, stays_open
from tests.unit.host.client.test_client import document, play
from tests.unit.host.client.test_list_watch import event, list_end, tenants


def state(kind: str, generation: int, **status: Any) -> str:
    version = object_version(10 + generation)
    found = document(resourceVersion=version, generation=generation)
    return msgspec.json.encode({"type": kind, "object": {**found, "status": status}}).decode()


def available(value: str, generation: int) -> dict[str, Any]:
    of = {"type": "Available", "status": value, "observedGeneration": generation, "message": "m"}
    return {"conditions": [of]}


async def until(server: Scripted, until: Any, timeout_s: float = 10.0) -> Workload:
    async with server, server.client() as client:
        return await client.wait(Workload, "web", until, "acme", timeout_s=timeout_s)


def test_a_wait_ends_with_a_condition_of_the_present_spec(tmp_path: Path) -> None:
    """Neither with one that is false, nor with one that is about an earlier generation."""
    server = Scripted(
        tmp_path,
        stays_open(
            list_end(5, 0),
            state("ADDED", 1, **available("False", 1)),
            state("MODIFIED", 2, **available("True", 1)),
            state("MODIFIED", 3, **available("True", 3)),
        ),
    )
    found = asyncio.run(until(server, "Available"))
    assert found.metadata.generation == 3
    assert "fieldSelector=metadata.name%3Dweb" in server.seen[0][1]


def test_a_wait_takes_a_function_and_the_other_value(tmp_path: Path) -> None:
    events = (list_end(5, 0), state("ADDED", 1, **available("False", 1)))
    server = Scripted(tmp_path, stays_open(*events))
    assert asyncio.run(until(server, "Available=False")).metadata.generation == 1
    server = Scripted(tmp_path, stays_open(*events))
    assert asyncio.run(until(server, lambda it: bool(it.status.conditions))).name == "web"


def test_a_wait_in_vain_says_what_there_is(tmp_path: Path) -> None:
    nothing = Scripted(tmp_path, stays_open(list_end(5, 0)))
    with pytest.raises(Unavailable, match="workload/acme/web did not exist within") as caught:
        asyncio.run(until(nothing, "Available", 0.3))
    assert caught.value.code == "WaitTimedOut"
    events = (list_end(5, 0), state("ADDED", 1, **available("False", 1)))
    with pytest.raises(Unavailable, match=r"is not Available after .*: Available is False \(m\)"):
        asyncio.run(until(Scripted(tmp_path, stays_open(*events)), "Available", 0.5))
    with pytest.raises(Invalid, match=r"^until: 'Available=Yes'"):
        asyncio.run(until(nothing, "Available=Yes"))


def test_a_wait_for_what_may_not_be_read_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(Forbidden):
        asyncio.run(until(Scripted(tmp_path, refuses(403, "NotAllowed")), "Available", 600.0))


def test_an_object_is_gone_when_it_is_or_when_another_has_its_name(tmp_path: Path) -> None:
    async def gone(uid: str, *events: str) -> None:
        server = Scripted(tmp_path, stays_open(*events))
        async with server, server.client() as client:
            await client.wait_gone(Workload, "web", "acme", uid=uid, timeout_s=0.5)

    asyncio.run(gone("", list_end(5, 0)))
    there = (state("ADDED", 1), list_end(20, 1))
    asyncio.run(gone("", *there, state("DELETED", 20)))
    asyncio.run(gone("an earlier one", *there))
    with pytest.raises(Unavailable, match="still exists after"):
        asyncio.run(gone("u-1", *there))


def test_a_watch_that_is_closed_leaves_its_server(tmp_path: Path) -> None:
    """It yields lists and changes, no bookmarks; closing it closes the connection. [C8]"""

    async def story() -> None:
        closed = asyncio.Event()

        class Watched(web.StreamResponse):
            async def write_eof(self, data: bytes = b"") -> None:
                events = (
                    *(event("ADDED", "a", 3), list_end(5, 1), event("ADDED", "b", 6)),
                    *(event("BOOKMARK", "", 7), event("DELETED", "b", 8)),
                )
                await self.write("".join(f"{it}\n" for it in events).encode())
                try:
                    await asyncio.Event().wait()
                finally:
                    closed.set()

        async with (
            Scripted(tmp_path, lambda request: Watched()) as server,
            server.client() as client,
        ):
            changes = client.watch(Tenant)
            found = [await anext(changes) for _ in range(3)]
            assert [type(it) for it in found] == [Listed, Present, Departed]
            assert not closed.is_set()
            await changes.aclose()
            await closed.wait()

    play(story())


def test_a_list_with_a_lost_object_is_not_believed(tmp_path: Path) -> None:
    """[INV10, C8]"""

    async def story() -> None:
        short = stays_open(event("ADDED", "a", 3), list_end(5, 2))
        server = Scripted(tmp_path, short, tenants(6, "a", "b"))
        async with server, server.client() as client:
            changes = client.watch(Tenant)
            first = await anext(changes)
            assert isinstance(first, Listed)
            assert [it.name for it in first.objects] == ["a", "b"]
            await changes.aclose()

    play(story())


# Commands ----------------------------------------------------------------------------------------


class Shell(web.WebSocketResponse):
    """The other end of an exec: echoes its input, then ends as it was told."""

    def __init__(self, *frames: bytes, reads: bool = False) -> None:
        super().__init__(protocols=("v5.channel.k8s.io",))
        self._frames, self._reads = frames, reads

    async def write_eof(self, data: bytes = b"") -> None:
        if self._reads:
            async for message in self:
                if message.type is not WSMsgType.BINARY or message.data[0] == CLOSE:
                    break
                assert message.data[0] == STDIN
                await self.send_bytes(bytes((STDOUT,)) + message.data[1:])
        for frame in self._frames:
            await self.send_bytes(frame)
        await self.close()


@contextlib.asynccontextmanager
async def talks(folder: Path, *frames: bytes, reads: bool = False) -> AsyncIterator[AsyncClient]:
    """A client of a server that accepts commands."""
    server = Scripted(folder, lambda request: Shell(*frames, reads=reads))
    async with server, server.client() as client:
        yield client


def frame(channel: int, data: bytes) -> bytes:
    return bytes((channel,)) + data


EXITED = frame(
    STATUS,
    b'{"status":"Failure","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}',
)


def test_a_command_gets_its_input_and_its_outputs_stay_apart(tmp_path: Path) -> None:
    async def story() -> None:
        said = b"x" * 100_000
        async with talks(tmp_path, frame(STDERR, b"no"), EXITED, reads=True) as client:
            found = await client.exec("web-0-0", ["cat"], "acme", stdin=said)
        assert (found.exit_code, found.stdout, found.stderr) == (3, said, b"no")

    play(story())


@pytest.mark.parametrize(
    "frames, error",
    [
        ((frame(STATUS, b'{"status":"Failure","message":"no such file"}'),), Rejected),
        ((frame(STDOUT, b"half"),), OutcomeUnknown),
        ((frame(STATUS, b"<html>"),), OutcomeUnknown),
        ((frame(STATUS, b'{"status":"\xff"}'),), OutcomeUnknown),
        ((frame(STDOUT, b"x" * 600),) * 2, Rejected),
    ],
    ids=["never ran", "no end", "odd end", "not text", "too much"],
)
def test_a_command_without_a_known_end_is_no_success(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frames: tuple[bytes, ...],
    error: type[Exception],
) -> None:
    monkeypatch.setattr(async_client, "OUTPUT_BYTES_MAX", 1_000)

    async def story() -> None:
        async with talks(tmp_path, *frames) as client:
            with pytest.raises(error):
                await client.exec("web-0-0", ["true"], "acme")

    play(story())


def test_a_refused_command_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        refused: Reply = refuses(403, "NotAllowed", "you may not run commands here")
        async with Scripted(tmp_path, refused) as server, server.client() as client:
            with pytest.raises(Forbidden, match="you may not run commands here"):
                await client.exec("web-0-0", ["true"], "acme")
            with pytest.raises(Invalid, match=r"^command: 'date' must be a list of words"):
                await client.exec("web-0-0", "date", "acme")

    play(story())
