"""Looking for the trace of a write whose answer was lost.

An object remembers the operations that were accepted on it. A deletion may leave no object, and a
generated name is not known to who asked for it; both are looked for in their own way. Finding
nothing never proves that nothing will happen: the next try goes under the same id.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast.host.client.performing import Refused
from holdfast.model.errors import Missing
from holdfast.model.meta import AnyObject, Object
from holdfast.model.wire import decode_trusted, readable


class Fetching(Protocol):
    """Whoever can read the body behind a path once."""

    async def fetch(self, path: str, query: dict[str, str] | None, timeout_s: float) -> bytes: ...


class _Items(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] = []


def is_remembered(obj: Object, operation: str) -> bool:
    """Whether this operation was accepted on the object."""
    return any(past.id == operation for past in obj.metadata.operations)


async def fetched(
    client: Fetching, cls: type[AnyObject], path: str, timeout_s: float
) -> AnyObject | None:
    """The object as it is now, or None. Anything but a clear answer is an error."""
    try:
        return decode_trusted(cls, await client.fetch(path, None, timeout_s))
    except Refused as refused:
        if isinstance(refused.error, Missing):
            return None
        raise


async def remembers(
    client: Fetching, cls: type[AnyObject], path: str, operation: str, timeout_s: float
) -> AnyObject | None:
    """The object, if it remembers the operation."""
    obj = await fetched(client, cls, path, timeout_s)
    return obj if obj is not None and is_remembered(obj, operation) else None


async def trace_of_generated(
    client: Fetching, cls: type[AnyObject], collection: str, operation: str, timeout_s: float
) -> AnyObject | None:
    """The object that was created under a name of the server's choice, if one was."""
    body = await client.fetch(collection, None, timeout_s)
    for item in msgspec.json.decode(body, type=_Items).items:
        obj = readable(cls, bytes(item))
        if obj is not None and is_remembered(obj, operation):
            return obj
    return None


class Vanished(msgspec.Struct, frozen=True, gc=False):
    """The object that was meant is not there."""


async def trace_of_delete(
    client: Fetching,
    cls: type[AnyObject],
    path: str,
    operation: str,
    uid: str,
    timeout_s: float,
) -> AnyObject | Vanished | None:
    """The object if it remembers that its deletion was asked for, or that it is gone.

    Somebody else may have deleted it; whoever wanted it gone has what he wanted either way.
    """
    obj = await fetched(client, cls, path, timeout_s)
    if obj is None or (uid and obj.metadata.uid != uid):
        return Vanished()
    return obj if is_remembered(obj, operation) else None
