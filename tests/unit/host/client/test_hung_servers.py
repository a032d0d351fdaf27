"""A server that hangs is avoided by watches, by requests, and by all identities together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.client import Listed, Present, follow
from holdfast.host.client import transport as reachable_module
from holdfast.host.client.list_watch import WatchLines
from holdfast.host.client.transport import AVOID_MAX_S, AVOID_S, Reachable
from holdfast.model.encoding.resource_versions import complete_version
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.observe.watch_events import WITHIN
from tests.patience import PATIENCE_S
from tests.unit.host.client.scripted import Scripted, stays_open
from tests.unit.host.client.test_list_watch import event, tenants

FIRST, SECOND, THIRD = "https://a", "https://b", "https://c"


class _Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    found = _Clock()
    monkeypatch.setattr(reachable_module, "time", found)
    return found


def test_a_server_that_fails_again_is_avoided_for_twice_as_long(clock: _Clock) -> None:
    """The pause has a limit; requests in flight together count as one failure. [C7.5]"""
    servers, reachable = (FIRST, SECOND), Reachable()
    avoided_s = []
    for _ in range(8):
        for _ in range(5):
            reachable.failed(FIRST)
        began_s = clock.now_s
        while reachable.choose(servers) == SECOND:
            clock.now_s += 0.5
        avoided_s.append(clock.now_s - began_s)
    assert avoided_s[:4] == [AVOID_S, 2 * AVOID_S, 4 * AVOID_S, 8 * AVOID_S]
    assert max(avoided_s) == AVOID_MAX_S == avoided_s[-1]
    reachable.answered(FIRST)
    reachable.failed(FIRST)
    clock.now_s += AVOID_S
    assert reachable.choose(servers) == FIRST, "after an answer it begins with the shortest time"


def test_where_all_servers_fail_the_one_that_failed_longest_ago_is_asked(clock: _Clock) -> None:
    """[C7.5]"""
    reachable = Reachable()
    for server in (SECOND, THIRD, FIRST):
        reachable.failed(server)
        clock.now_s += 0.1
    assert reachable.choose((FIRST, SECOND, THIRD)) == SECOND


def _bookmark(revision: int, within_ms: int) -> str:
    version = complete_version(revision)
    metadata = f'{{"resourceVersion":"{version}","annotations":{{"{WITHIN}":"{within_ms}"}}}}'
    return f'{{"type":"BOOKMARK","object":{{"kind":"Tenant","metadata":{metadata}}}}}'


async def _next(news: AsyncIterator[Any], kind: type) -> Any:
    async for piece in news:
        if isinstance(piece, kind):
            return piece
    raise AssertionError("the story ended")


def test_a_watch_leaves_a_server_that_is_silent_for_twice_what_it_said(tmp_path: Path) -> None:
    """The watch continues at the other one, although the connection is open. [C7.6]"""

    async def story() -> tuple[list[tuple[str, str, str]], Any]:
        hung = Scripted(tmp_path, tenants(5, "a"), stays_open(_bookmark(6, within_ms=50)))
        well = Scripted(tmp_path, stays_open(event("ADDED", "b", 7)))
        async with hung, well:
            async with asyncio.timeout(PATIENCE_S), well.client(before=(hung.url,)) as client:
                news = follow(client, Tenant)
                async with contextlib.aclosing(news):
                    await _next(news, Listed)
                    found = await _next(news, Present)
            return well.seen, found

    seen, found = asyncio.run(story())
    assert found.object.name == "b"
    assert "bookmarkSeconds=" in seen[0][1], "it asks for bookmarks that come often"
    assert f"resourceVersion={complete_version(6)}" in seen[0][1], "and goes on where it was"


def test_the_longest_silence_is_for_servers_that_do_not_say_when_they_speak_next() -> None:
    """A bookmark without a time cancels that of an earlier one. [C7.6]"""
    lines = WatchLines(None)  # type: ignore[arg-type]  # Nothing is read.
    longest_s = lines.silence_s
    lines.expect_within(2_500)
    assert lines.silence_s == 5.0
    lines.expect_within(None)
    assert lines.silence_s == longest_s > 30


def test_requests_go_to_the_server_that_answers_once_one_has_hung(tmp_path: Path) -> None:
    """A kept connection stays with the server that works, and does not return to the one that hung
    as soon as that is not avoided any more. [C7.5]
    """

    async def asked() -> tuple[int, int]:
        hung = Scripted(tmp_path, stays_open())
        well = Scripted(tmp_path, tenants(5, "a"))
        async with hung, well:
            async with asyncio.timeout(60), well.client(before=(hung.url,)) as client:
                with contextlib.suppress(Unavailable):
                    await client.transport.send("GET", "/a", timeout_s=0.2)
                hung_before = len(hung.seen)
                for _ in range(5):
                    await client.transport.send("GET", "/a", timeout_s=5.0)
                    client.transport.reachable.answered(hung.url)
            return len(hung.seen) - hung_before, len(well.seen)

    assert asyncio.run(asked()) == (0, 5)
