"""Where a watch resumes after a break, and which events are left out because they are known."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from holdfast.host.client import Departed, Listed, Present, Reached, follow
from holdfast.model.encoding.resource_versions import complete_version, object_version
from holdfast.model.kinds.tenant import Tenant
from holdfast.observe.watch_events import LIST_ENDS, LISTED
from tests.patience import PATIENCE_S
from tests.unit.host.client.scripted import Scripted, refuses

EXPIRED = '{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}'


def lines(*texts: str) -> Any:
    def reply(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="".join(f"{text}\n" for text in texts))

    return reply


def event(kind: str, name: str, revision: int) -> str:
    version = complete_version(revision) if kind == "BOOKMARK" else object_version(revision)
    metadata = f'{{"name":"{name}","resourceVersion":"{version}"}}'
    body = f'{{"kind":"Tenant","apiVersion":"holdfast.dev/v1","metadata":{metadata}}}'
    return f'{{"type":"{kind}","object":{body}}}'


def list_end(revision: int, listed: int) -> str:
    version = complete_version(revision)
    annotations = f'{{"{LIST_ENDS}":"true","{LISTED}":"{listed}"}}'
    metadata = f'{{"resourceVersion":"{version}","annotations":{annotations}}}'
    return f'{{"type":"BOOKMARK","object":{{"kind":"Tenant","metadata":{metadata}}}}}'


def tenants(revision: int, *names: str) -> Any:
    """A stream that ends after its list."""
    return lines(*(event("ADDED", name, 3) for name in names), list_end(revision, len(names)))


async def told(server: Scripted, count: int) -> list[Any]:
    story: list[Any] = []
    async with asyncio.timeout(PATIENCE_S), server, server.client() as client:
        news = follow(client, Tenant)
        async for piece in news:
            story.append(piece)
            if len(story) == count:
                break
        await news.aclose()
    return story


def test_a_story_is_a_list_and_then_what_changes_over_broken_streams(tmp_path: Path) -> None:
    """[C8, C7.5]"""
    server = Scripted(
        tmp_path,
        tenants(5, "a"),
        lines(event("ADDED", "b", 6), event("MODIFIED", "a", 7)),
        refuses(503, "Unavailable"),
        lines(event("MODIFIED", "a", 7), event("DELETED", "b", 8), event("BOOKMARK", "", 9)),
    )
    listed, first, second, third, fourth = asyncio.run(told(server, 5))
    assert isinstance(listed, Listed)
    assert [t.name for t in listed.objects] == ["a"]
    assert [(type(n), n.revision) for n in (first, second)] == [(Present, 6), (Present, 7)]
    assert (type(third), third.revision) == (Departed, 8)
    assert fourth == Reached(9)
    since = [
        path.partition("resourceVersion=")[2].partition("&")[0] for _, path, _ in server.seen[1:4]
    ]
    assert since == ["11", "13", "13"], "revision 7 was not known to be whole"


def test_a_history_that_is_gone_leads_to_a_new_list(tmp_path: Path) -> None:
    """[C8]"""
    server = Scripted(
        tmp_path,
        tenants(5, "a"),
        lines(EXPIRED),
        tenants(50, "a", "z"),
        refuses(410, "Expired"),
        tenants(60, "z"),
        lines(),
    )
    story = asyncio.run(told(server, 3))
    assert [(type(n), n.revision) for n in story] == [(Listed, 5), (Listed, 50), (Listed, 60)]


def test_no_version_is_believed_that_a_server_of_ours_would_not_send(tmp_path: Path) -> None:
    """Neither a bookmark with an object's version nor an object with a bookmark's. [INV10]"""
    mark = '{"type":"BOOKMARK","object":{"kind":"Tenant","metadata":{"resourceVersion":"18"}}}'
    odd = event("ADDED", "b", 6).replace('"resourceVersion":"12"', '"resourceVersion":"13"')
    server = Scripted(
        tmp_path,
        lines(list_end(5, 1).replace('"11"', '"10"')),
        tenants(5, "a"),
        lines(mark, event("ADDED", "z", 7)),
        lines(odd),
        lines(event("ADDED", "b", 6)),
    )
    listed, first = asyncio.run(told(server, 2))
    assert (type(listed), listed.revision) == (Listed, 5)
    assert (first.object.name, first.revision) == ("b", 6)
    since = [
        path.partition("resourceVersion=")[2].partition("&")[0] for _, path, _ in server.seen[2:5]
    ]
    assert since == ["11", "11", "11"]
