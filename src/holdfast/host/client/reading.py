"""Reading from any of a plane's servers: get, list in pages, and whatever lies behind a path.

Writes stand on this (`writing`), and so does whoever looks for the trace of a lost answer
(`looking`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Self

import msgspec

from holdfast.host.client import paths
from holdfast.host.client.access import Access
from holdfast.host.client.retrying import Performer, demand_good
from holdfast.host.client.transport import Transport
from holdfast.model.encoding.resource_versions import complete_revision
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.errors import Expired, Invalid, Missing, Unavailable
from holdfast.model.machine import Rng
from holdfast.model.meta import AnyObject
from holdfast.model.registry import kind_of_struct
from holdfast.observe.retry import DEFAULT_POLICY, Nature, RetryPolicy, Send

PAGE = 500
# A list whose history was compacted away between two pages begins anew so often.
LIST_TRIES_MAX = 3


class ObjectList(msgspec.Struct, Generic[AnyObject], frozen=True):
    """Objects, all as of one revision."""

    objects: tuple[AnyObject, ...]
    revision: int


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[msgspec.Raw] = []


_LISTS = msgspec.json.Decoder(_List)


def decode_object(cls: type[AnyObject], body: bytes) -> AnyObject:
    """The object in a body. Raises Unavailable for what no server of this version sends."""
    try:
        return decode_trusted(cls, body)
    except msgspec.DecodeError as error:
        raise Unavailable(f"an answer that cannot be read: {error}") from error


def _list(body: bytes) -> tuple[_List, int]:
    """The list in a body, and as of which revision it is."""
    try:
        found = _LISTS.decode(body)
        return found, complete_revision(found.metadata.resource_version)
    except (msgspec.DecodeError, Invalid) as error:
        raise Unavailable(f"an answer that cannot be read: {error}") from error


class ReadingClient:
    """The reading half of a client. Use as an async context manager."""

    def __init__(
        self,
        access: Access,
        *,
        policy: RetryPolicy = DEFAULT_POLICY,
        agent: str = "holdfast",
        rng: Rng | None = None,
        transport: Transport | None = None,
    ) -> None:
        """`transport` is for whoever reaches servers in a way of its own; the client closes it."""
        self.access = access
        self.transport = transport if transport is not None else Transport(access, agent=agent)
        self.performer = Performer(policy, rng)

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def get(self, cls: type[AnyObject], name: str, namespace: str = "") -> AnyObject:
        """One object as it is now. Raises Missing."""
        path = paths.one(kind_of_struct(cls), namespace, name)
        return decode_object(cls, await self.read(path))

    async def find(self, cls: type[AnyObject], name: str, namespace: str = "") -> AnyObject | None:
        """One object as it is now, or None."""
        try:
            return await self.get(cls, name, namespace)
        except Missing:
            return None

    async def list(
        self,
        cls: type[AnyObject],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        page: int = PAGE,
    ) -> ObjectList[AnyObject]:
        """All objects of a kind, of one moment, fetched in pages; at once with `page` 0."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        query = {key: value for key, value in query.items() if value}
        if page:
            query["limit"] = str(page)
        path = paths.collection(kind_of_struct(cls), namespace)
        for _ in range(LIST_TRIES_MAX - 1):
            try:
                return await self._pages(cls, path, query)
            except Expired:
                continue
        return await self._pages(cls, path, query)

    async def _pages(
        self, cls: type[AnyObject], path: str, query: dict[str, str]
    ) -> ObjectList[AnyObject]:
        objects: list[AnyObject] = []
        token = ""
        while True:
            more = {**query, "continue": token} if token else query
            found, revision = _list(await self.read(path, more))
            objects += [decode_object(cls, bytes(item)) for item in found.items]
            token = found.metadata.continue_
            if not token:
                return ObjectList(tuple(objects), revision)

    async def read(self, path: str, query: dict[str, str] | None = None) -> bytes:
        """The body behind any path, read as often as it takes."""

        async def send(effect: Send) -> bytes:
            return await self.fetch(path, query, effect.timeout_ms / 1_000)

        body: bytes = await self.performer.perform(Nature.READ, send)
        return body

    async def fetch(self, path: str, query: dict[str, str] | None, timeout_s: float) -> bytes:
        """The body behind any path, tried once."""
        answer = await self.transport.send("GET", path, query=query, timeout_s=timeout_s)
        return demand_good(answer, is_write=False).body
