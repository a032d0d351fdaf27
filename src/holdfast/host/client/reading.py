"""Reads from any of a plane's servers: get, list in pages, and the body of any path.

Writes build on this (`writing`), and so does the search for the trace of a lost answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self

import msgspec

from holdfast.host.client import paths
from holdfast.host.client.answers import UNREADABLE, HttpAnswer
from holdfast.host.client.retrying import Performer, demand_good
from holdfast.host.client.server_access import Access, find_access
from holdfast.host.client.transport import Transport
from holdfast.model.encoding.resource_versions import complete_revision
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.errors import Expired, Invalid, Missing, Unavailable
from holdfast.model.machine import Rng
from holdfast.model.meta import AnyObject
from holdfast.model.registry import kind_of_struct
from holdfast.observe.operation import Nature, Send
from holdfast.observe.retry import DEFAULT_POLICY, RetryPolicy

PAGE = 500
_WARNING = re.compile(r'299 - "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
# How often a list starts again when its history was compacted between two pages.
LIST_TRIES_MAX = 3


class ObjectList(msgspec.Struct, Generic[AnyObject], frozen=True):
    """Objects, all at one revision."""

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
    """Decode an object. Raises Unavailable for what no server of this version sends."""
    try:
        return decode_trusted(cls, body)
    except UNREADABLE as error:
        raise Unavailable(f"the answer cannot be decoded: {error}") from error


def _list(body: bytes) -> tuple[_List, int]:
    """Decode a list. Return it and its revision."""
    try:
        found = _LISTS.decode(body)
        return found, complete_revision(found.metadata.resource_version)
    except (*UNREADABLE, Invalid) as error:
        raise Unavailable(f"the answer cannot be decoded: {error}") from error


class ReadingClient:
    """The reading half of a client. Use as an async context manager.

    A single object without a namespace is in that of the credentials; a list or a watch without one
    is of all namespaces.
    """

    def __init__(
        self,
        access: Access | None = None,
        *,
        policy: RetryPolicy = DEFAULT_POLICY,
        agent: str = "holdfast",
        rng: Rng | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """Without `access` it is that of `find_access`. Raises Invalid for one that cannot work.

        `policy` bounds tries and time, `agent` is the User-Agent. `warn` gets the warnings of the
        servers, such as of fields without effect.
        """
        self.access, self.warn = access if access is not None else find_access(), warn
        self.transport = Transport(self.access, agent=agent)
        self.performer = Performer(policy, rng)

    def namespace_of(self, cls: type[AnyObject], namespace: str) -> str:
        """Return the namespace of one object: by default that of the credentials."""
        return (namespace or self.access.namespace) if kind_of_struct(cls).namespaced else ""

    def path_of(
        self, cls: type[AnyObject], name: str, namespace: str, subresource: str = ""
    ) -> str:
        """Return the path of one object or of its subresource."""
        return paths.one(kind_of_struct(cls), self.namespace_of(cls, namespace), name, subresource)

    def pass_warnings(self, answer: HttpAnswer) -> None:
        """Give the warnings of an answer to `warn`."""
        if self.warn is not None:
            for text in _WARNING.findall(", ".join(answer.warnings)):
                self.warn(_ESCAPED.sub(lambda it: it[1], text))

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
        """Return one object as it is now. Raises Missing."""
        return decode_object(cls, await self.read(self.path_of(cls, name, namespace)))

    async def find(self, cls: type[AnyObject], name: str, namespace: str = "") -> AnyObject | None:
        """Return one object as it is now, or None."""
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
        """Return all objects of a kind at one moment, fetched in pages; at once with `page` 0."""
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

    async def read(
        self,
        path: str,
        query: dict[str, str] | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Return the body of any path, with retries."""

        async def send(effect: Send) -> bytes:
            return await self.fetch(path, query, effect.timeout_ms / 1_000, headers=headers)

        body: bytes = await self.performer.perform(Nature.READ, send)
        return body

    async def fetch(
        self,
        path: str,
        query: dict[str, str] | None,
        timeout_s: float,
        *,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Return the body of any path, with one try."""
        answer = await self.transport.send(
            "GET", path, query=query, headers=headers, timeout_s=timeout_s
        )
        return demand_good(answer, is_write=False).body
