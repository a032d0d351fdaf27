"""Servers that were not configured are discovered, and an expired server lease is reported."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.known_servers import KnownServer, live_servers
from holdfast.host.client.server_discovery import ServerDiscovery
from holdfast.host.server.digest_exchange import ServerLeaseAlarm
from holdfast.model.access.identity import Identity
from holdfast.model.errors import Unavailable
from holdfast.model.nodes.heartbeat import ServerLease, ServerRoster
from holdfast.observe.watch_events import SERVERS
from tests.patience import PATIENCE_S
from tests.unit.host.client.scripted import Scripted, refuses, says

ME = Identity(name="system:scheduler:main")


def test_only_servers_that_live_and_have_an_address_are_reported() -> None:
    """Neither those that stopped in order nor those whose lease has expired."""
    leases = [
        ServerLease("gone", "a", 1, 1, 15_000, "https://gone"),
        ServerLease("here", "a", 1, 1, 15_000, "https://here/"),
        ServerLease("stopped", "", 1, 1, 15_000, "https://stopped"),
        ServerLease("new", "a", 1, 1, 15_000),
    ]
    idle_ms = {"gone": 15_000, "here": 14_999, "stopped": 0, "new": 0}
    assert live_servers(ServerRoster(0, tuple(leases), idle_ms)) == (
        KnownServer("here", "https://here"),
    )
    assert live_servers(None) == ()


async def _learnt(remote: ApiClient, count: int) -> None:
    discovering, is_known, learn = ServerDiscovery(remote, ME), asyncio.Event(), remote.learn

    def learnt(servers: Sequence[str]) -> None:
        learn(servers)
        if len(remote.servers()) == count:
            is_known.set()

    remote.learn = learnt  # type: ignore[method-assign]
    discovering.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await is_known.wait()
    finally:
        await discovering.stop()


def test_a_server_that_was_found_is_used_when_none_that_was_given_answers(tmp_path: Path) -> None:
    """It gets what all servers get; before that it is not asked for anything. [C7.5]"""

    async def story() -> tuple[list[str], list[str]]:
        other = Scripted(tmp_path, says([]))
        async with other:
            known = [
                {"server": "one", "address": "https://127.0.0.1:1/"},
                {"server": "two", "address": other.url},
                {"server": "odd", "address": "http://plain"},
            ]
            given = Scripted(tmp_path, refuses(503, "Unavailable"), says(known))
            async with given:
                remote = ApiClient({ME.name: given.client_access()})
                with pytest.raises(Unavailable):
                    await remote.hand_in(ME, other.url, b"[]", 5.0, "/told")
                await _learnt(remote, 3)
                await remote.hand_in(ME, other.url, b"[]", 5.0, "/told")
                asked_before = [path for _, path, _ in other.seen]
            # The given one is gone now.
            transport = remote.connections(ME, SERVERS).transport
            with contextlib.suppress(Unavailable):
                await transport.send("GET", "/first", timeout_s=5.0)
            for _ in range(3):
                with contextlib.suppress(Unavailable):
                    await transport.send("GET", "/later", timeout_s=5.0)
            await remote.close()
        return asked_before, [path for _, path, _ in other.seen]

    before, after = asyncio.run(story())
    assert before == ["/told"], "what was given is asked first"
    assert "/later" in after


def test_an_alarm_is_sounded_once_for_each_server_that_no_longer_counts() -> None:
    """Its end is reported too. [H3]"""
    alarm = ServerLeaseAlarm()
    assert alarm.messages({}) == []
    (lost,) = alarm.messages({"two": 16_000})
    assert lost.startswith("server two has not renewed its lease for 16 s and no longer counts")
    assert alarm.messages({"two": 17_000}) == []
    three, back = alarm.messages({"three": 15_000})
    assert three.startswith("server three has not")
    assert back.startswith("server two is back")
