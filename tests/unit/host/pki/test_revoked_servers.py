"""A component uses no revoked server, over real TLS, whatever that server says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.request_calls import ApiCall
from holdfast.host.client.server_access import Access
from holdfast.host.client.server_discovery import ServerDiscovery
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.revoked_servers import RevokedServers, statement
from holdfast.host.tunnel.protocol import RevocationNotice, decode_tunnel_request, revocation_notice
from holdfast.host.tunnel.server_end import Tunnels
from holdfast.model.access.identity import Identity
from holdfast.model.errors import Unavailable
from tests.patience import PATIENCE_S
from tests.unit.host.client.scripted import Scripted, says

ME = Identity(name="system:scheduler:main")
BAD, GOOD = "system:server:bad", "system:server:good"
HOUR_MS = 3_600_000


def told(folder: Path, name: str, before_ms: int) -> str:
    return statement({name: before_ms}, CertificateAuthorities.open(folder))


def now_ms() -> int:
    return int(time.time() * 1_000)


async def asked(remote: ApiClient, server: Scripted) -> int:
    wanted = ApiCall("GET", "/any", lambda answer: answer.code)
    return int(await remote.run(ME, server.url, wanted, 5.0))


def test_a_revoked_server_is_not_spoken_with_although_its_certificate_is_good(
    tmp_path: Path,
) -> None:
    """Neither on the open connection nor on a new one, and nothing is sent there."""

    async def story() -> None:
        async with (
            Scripted(tmp_path, says([]), name="bad") as bad,
            Scripted(tmp_path, says([]), name="good") as good,
        ):
            remote = ApiClient({ME.name: good.client_access((bad.url,))})
            assert await asked(remote, bad) == await asked(remote, good) == 200
            ca = remote.access(ME.name).ca
            remote.revoked.learn(told(tmp_path / "pki", BAD, now_ms()), ca)
            await asyncio.gather(*remote.reconnects)
            seen = len(bad.seen)
            with pytest.raises(Unavailable, match=f"the certificate of {BAD} was revoked"):
                await asked(remote, bad)
            assert len(bad.seen) == seen
            assert await asked(remote, good) == 200
            # Neither a later word nor silence brings it back.
            remote.revoked.learn(told(tmp_path / "pki", BAD, 1), ca)
            with pytest.raises(Unavailable, match="was revoked"):
                await asked(remote, bad)
            await remote.close()

    asyncio.run(story())


def test_a_server_with_a_certificate_of_after_the_revocation_is_spoken_with(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with Scripted(tmp_path, says([]), name="bad") as renewed:
            remote = ApiClient({ME.name: renewed.client_access()})
            ca = remote.access(ME.name).ca
            remote.revoked.learn(told(tmp_path / "pki", BAD, now_ms() - HOUR_MS), ca)
            await asyncio.gather(*remote.reconnects)
            assert await asked(remote, renewed) == 200
            await remote.close()

    asyncio.run(story())


def test_only_the_authority_of_the_plane_says_who_is_revoked(tmp_path: Path) -> None:
    """With a stolen server key an attacker cannot make others refuse good servers."""
    ours, theirs = tmp_path / "pki", tmp_path / "theirs"
    ca = CertificateAuthority.open(ours).pem
    CertificateAuthority.open(theirs)
    changes: list[None] = []
    known = RevokedServers(lambda: changes.append(None))
    genuine = told(ours, GOOD, now_ms())
    altered = genuine.replace(GOOD, "system:server:some")
    for forged in (told(theirs, GOOD, now_ms()), altered, "{}", "nonsense", ""):
        known.learn(forged, ca)
    assert not changes
    known.learn(genuine, ca)
    known.learn(genuine, ca)
    assert len(changes) == 1


@pytest.mark.parametrize("first", [0, 1])
def test_an_agent_of_another_server_learns_it_although_the_revoked_one_keeps_quiet(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revoked server hides it and is asked first, or second."""
    monkeypatch.setattr("holdfast.host.client.server_discovery.FIRST_S", 0.01)
    monkeypatch.setattr("holdfast.host.client.server_discovery.EVERY_S", 0.01)

    async def story() -> None:
        word: list[dict[str, str]] = []
        async with (
            Scripted(tmp_path, says([]), name="bad") as bad,
            Scripted(tmp_path, says(word), name="good") as good,
        ):
            word.append(
                {
                    "server": "good",
                    "address": good.url,
                    "revoked": told(tmp_path / "pki", BAD, now_ms()),
                }
            )
            access = good.client_access((bad.url,))
            if first:
                access = reversed_servers(access)
            remote = ApiClient({ME.name: access}, rng=First())
            learnt = asyncio.Event()
            remote.on_revoked = learnt.set
            discovering = ServerDiscovery(remote, ME, in_turn=True)
            discovering.start()
            async with asyncio.timeout(PATIENCE_S):
                await learnt.wait()
            await discovering.stop()
            await asyncio.gather(*remote.reconnects)
            with pytest.raises(Unavailable, match="was revoked"):
                await asked(remote, bad)
            await remote.close()

    asyncio.run(story())


class First:
    """Begins with the first server."""

    def random(self) -> float:
        return 0.0


def reversed_servers(access: Access) -> Access:
    return msgspec.structs.replace(access, servers=access.servers[::-1])


def test_agents_learn_it_on_the_tunnel_on_which_they_wait() -> None:
    """Connected agents and those that connect later; an earlier version ignores it."""
    board = Tunnels()

    def unsent(line_of: Callable[[], bytes | None]) -> str:
        line = line_of()
        assert line is not None
        with pytest.raises(Unavailable):
            decode_tunnel_request(line)
        return revocation_notice(line)

    early = board.connect("n1")
    board.announce("word")
    late = board.connect("n2")
    assert [unsent(it.unsent.get_nowait) for it in (early, late)] == ["word", "word"]
    assert revocation_notice(b"") == revocation_notice(b'{"id":"x"}') == ""
    assert revocation_notice(msgspec.json.encode(RevocationNotice("x"))) == "x"
