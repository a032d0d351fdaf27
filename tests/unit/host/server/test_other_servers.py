"""Servers that ask each other over real TLS: order, proof of identity, and exact errors."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.host.api.app import Api
from holdfast.host.api.objects.presentation import Forms
from holdfast.host.pki.first_trust import Trust, establish
from holdfast.host.process.metrics import Metrics
from holdfast.host.process.shell import Shell
from holdfast.host.server import other_servers
from holdfast.host.server.authenticator import Authenticator
from holdfast.host.server.forwarding import (
    BODY_BYTES_MAX,
    LINES_MAX,
    PATH,
    encode_forward,
    handlers,
)
from holdfast.host.server.other_servers import OtherServers
from holdfast.host.server.settings import ServerSettings, peer_host
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.machine import Answer, Asked
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Forward, Remove
from holdfast.model.time import Instant
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.memory import MemoryStore

ANN = Identity("ann", ("devs",), ("acme",))
ONE, TWO = who.server("one"), who.server("two")
PATIENCE_S = 60.0


def wish(number: int, padding: str = "") -> Forward:
    return Forward(ANN, Remove("workloads", "acme", f"w{number}", operation=padding))


class Decider:
    """Records requests and answers each with its own number, or not at all."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.is_silent = False

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        if not isinstance(stimulus, Asked):
            return []
        self.asked.append(stimulus)
        if self.is_silent:
            return []
        name = stimulus.body.request.name
        if name == "w13":
            return [Answer(stimulus.call, Refusal(Reason.MISSING, "there is no w13"))]
        return [Answer(stimulus.call, Accepted(int(name[1:])))]

    @property
    def names(self) -> list[str]:
        return [asked.body.request.name for asked in self.asked]


class Pair:
    """Server `one` listens; server `two` has a connection to it."""

    def __init__(self, folder: Path) -> None:
        self.machine = Decider()
        self.metrics = Metrics()
        self.bodies = 0
        self.trusts = {
            name: establish(ServerSettings(data=folder / name, name=name, pki=folder / "pki"))
            for name in ("one", "two")
        }
        self.address = ""

    async def __aenter__(self) -> Pair:
        store, hub = MemoryStore(), WatchHub(Forms())
        self.shell = Shell(self.machine, ONE)
        await self.shell.start()
        authenticator = Authenticator(hub)
        self.api = Api(
            store=store,
            authority=self.shell,
            hub=hub,
            hub_shell=Shell(hub, ONE, store=store),
            authenticate=authenticator,
            extras=handlers(self.shell, self.metrics, authenticator.peer_identity),
            observer=self._count,
        )
        self.port = await self.api.start(tls=self.trusts["one"].context())
        self.address = f"https://127.0.0.1:{self.port}"
        self.way = self.neighbours(self.trusts["two"])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.way.close()
        await self.api.stop()
        await self.shell.stop()

    def neighbours(self, trust: Trust) -> OtherServers:
        return OtherServers(lambda name: self.address, trust.peer_context())

    async def ask(self, number: int, timeout_s: float = 5.0) -> Any:
        return await self.way.ask(TWO, "one", wish(number), timeout_s)

    async def post(self, tls: ssl.SSLContext, body: bytes) -> int:
        """Return the code for a body that is sent by hand."""
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
            session.post(
                self.address + PATH, data=io.BytesIO(body), server_hostname=peer_host("one")
            ) as response,
        ):
            return response.status

    def _count(self, *_: object) -> None:
        self.bodies += 1


def play(folder: Path, story: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), Pair(folder) as pair:
            await story(pair)

    asyncio.run(run())


def test_many_at_once_go_together_in_order_and_each_gets_its_own_verdict(tmp_path: Path) -> None:
    count = 2 * LINES_MAX + 100

    async def story(pair: Pair) -> None:
        verdicts = await asyncio.gather(*(pair.ask(number) for number in range(count)))
        for number, verdict in enumerate(verdicts):
            if number == 13:
                assert verdict == Refusal(Reason.MISSING, "there is no w13")
            else:
                assert verdict == Accepted(number)
        assert pair.machine.names == [f"w{number}" for number in range(count)]
        assert pair.bodies < 10
        assert pair.metrics.forwards_taken.value() == count

    play(tmp_path, story)


def test_the_other_side_knows_who_forwards_and_for_whom(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        await pair.ask(1)
        (asked,) = pair.machine.asked
        assert asked.sender == TWO
        assert asked.body == wish(1)

    play(tmp_path, story)


def test_large_requests_travel_in_bodies_of_their_own(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        large = [wish(number, "x" * (BODY_BYTES_MAX // 2)) for number in range(3)]
        asks = [pair.way.ask(TWO, "one", forward, 5.0) for forward in large]
        assert await asyncio.gather(*asks) == [Accepted(0), Accepted(1), Accepted(2)]
        with pytest.raises(Unavailable, match="too large"):
            await pair.way.ask(TWO, "one", wish(4, "x" * BODY_BYTES_MAX), 5.0)

    play(tmp_path, story)


def test_a_refused_connection_has_taken_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left alone for a while, since an unreachable server usually stays so."""
    # However long this process rests between the two requests, the second comes soon enough.
    monkeypatch.setattr(other_servers, "AVOID_S", 3_600.0)

    async def story(pair: Pair) -> None:
        await pair.api.stop()
        with pytest.raises(Unavailable, match="cannot be reached"):
            await pair.ask(1)
        with pytest.raises(Unavailable, match="a moment ago"):
            await pair.ask(2)

    play(tmp_path, story)


def test_an_unpublished_address_is_nowhere(tmp_path: Path) -> None:
    async def story(pair: Pair) -> None:
        pair.address = ""
        with pytest.raises(Unavailable, match="address of server one is not known"):
            await pair.ask(1)

    play(tmp_path, story)


def test_a_request_without_verdict_may_have_happened(tmp_path: Path) -> None:
    """[N1.1]"""

    async def story(pair: Pair) -> None:
        pair.machine.is_silent = True
        with pytest.raises(OutcomeUnknown, match="no answer to a request to server one within"):
            await pair.ask(1, timeout_s=0.2)
        assert pair.machine.names == ["w1"]

    play(tmp_path, story)


def test_a_request_that_was_not_sent_in_time_never_is(tmp_path: Path) -> None:
    """The first body is never received, so what waits behind it stays here. [N1.1]"""

    async def story(pair: Pair) -> None:
        held: list[asyncio.StreamWriter] = []
        connected = asyncio.Event()

        async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held.append(writer)
            connected.set()
            await reader.read()

        tls = pair.trusts["one"].context()
        server = await asyncio.start_server(never, "127.0.0.1", ssl=tls)
        pair.address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        first = asyncio.create_task(pair.ask(1, timeout_s=0.4))
        await connected.wait()
        with pytest.raises(Unavailable):
            await pair.ask(2, timeout_s=0.1)
        with pytest.raises(OutcomeUnknown):
            await first
        for writer in held:
            writer.close()
        server.close()

    play(tmp_path, story)


def test_a_connection_that_breaks_after_sending_leaves_the_outcome_open(tmp_path: Path) -> None:
    """[N1.1]"""

    async def story(pair: Pair) -> None:
        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"}\n")
            writer.transport.abort()

        tls = pair.trusts["one"].context()
        server = await asyncio.start_server(cut, "127.0.0.1", ssl=tls)
        pair.address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(OutcomeUnknown):
            await pair.ask(1)
        server.close()

    play(tmp_path, story)


def test_another_server_at_that_address_is_sent_nothing(tmp_path: Path) -> None:
    """An address proves nothing; a certificate does."""

    async def story(pair: Pair) -> None:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await pair.way.ask(TWO, "three", wish(1), 5.0)
        stranger = pair.neighbours(establish(ServerSettings(data=tmp_path / "other", name="two")))
        with pytest.raises(Unavailable, match="cannot be reached"):
            await stranger.ask(TWO, "one", wish(2), 5.0)
        await stranger.close()
        assert pair.machine.asked == []

    play(tmp_path, story)


def test_only_a_server_may_speak_for_others(tmp_path: Path) -> None:
    """Neither an administrator, nor a component, nor an anonymous caller."""

    async def story(pair: Pair) -> None:
        authority = pair.trusts["one"].authorities.signer
        anonymous = ssl.create_default_context(cadata=authority.pem.decode())
        assert await pair.post(anonymous, encode_forward(wish(1))) == 401
        for name, groups in (("admin", (who.ADMINS,)), ("system:controller:workload", ())):
            issued = authority.issue(name, groups=groups)
            (tmp_path / "both.pem").write_bytes(issued.certificate + issued.key)
            tls = ssl.create_default_context(cadata=authority.pem.decode())
            tls.load_cert_chain(tmp_path / "both.pem")
            assert await pair.post(tls, encode_forward(wish(1))) == 403
        assert pair.machine.asked == []

    play(tmp_path, story)


@pytest.mark.parametrize(
    "body, code",
    [
        (encode_forward(wish(1))[:-1], 400),
        (encode_forward(wish(1)) * (LINES_MAX + 1), 400),
        (b"x" * (BODY_BYTES_MAX + 1), 413),
    ],
    ids=["half a line", "too many", "too large"],
)
def test_a_body_that_is_turned_away_is_turned_away_whole(
    tmp_path: Path, body: bytes, code: int
) -> None:
    async def story(pair: Pair) -> None:
        assert await pair.post(pair.trusts["two"].peer_context(), body) == code
        assert pair.machine.asked == []

    play(tmp_path, story)


def test_a_request_of_a_newer_server_goes_back_to_it(tmp_path: Path) -> None:
    """The other requests of its body are decided all the same."""

    async def story(pair: Pair) -> None:
        newer = b'{"identity":{"name":"ann"},"request":{"struct":"Teleport"}}\n'
        tls = pair.trusts["two"].peer_context()
        assert await pair.post(tls, newer + encode_forward(wish(2))) == 200
        assert pair.machine.names == ["w2"]

    play(tmp_path, story)
