"""How the servers tell of objects: what a component asks for, and what it is told.

A component opens a stream to the servers with `Follow` and is pushed tuples of news, in order. It
may ask for single objects with `Get`, which is answered linearizably. `host/client` and the
simulator's servers make both from the same lines of text (`read_line`).
"""

from __future__ import annotations

from typing import Any, Generic

import msgspec

from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.meta import AnyObject, Object
from holdfast.model.versions import complete_revision, object_revision
from holdfast.model.wire import decode_trusted

# The address that stands for any of the plane's servers.
SERVERS = "servers"


class Follow(msgspec.Struct, frozen=True):
    """The story of one kind. `since` None tells of everything as it is first.

    `fields` is the text of a field selector, such as status.binding.node=n1. `is_list` wants that
    first part alone, and may be told more.
    """

    plural: str
    namespace: str = ""
    fields: str = ""
    since: int | None = None
    is_list: bool = False


class Get(msgspec.Struct, frozen=True, gc=False):
    """Ask for one object as it is now."""

    plural: str
    name: str
    namespace: str = ""


class Found(msgspec.Struct, frozen=True):
    """The object as of a revision not older than the question, or None."""

    object: Object | None
    revision: int


class Present(msgspec.Struct, Generic[AnyObject], frozen=True):
    """The object is there, or has changed."""

    object: AnyObject
    revision: int


class Departed(msgspec.Struct, Generic[AnyObject], frozen=True):
    """The object is gone, or not selected any more. This is how it was at last."""

    object: AnyObject
    revision: int


class Reached(msgspec.Struct, frozen=True, gc=False):
    """Nothing else has changed up to this revision.

    `ends_list` says that all objects which were there at first have been told; `listed` says how
    many these were, so that a reader notices when some were lost on the way.
    """

    revision: int
    ends_list: bool = False
    listed: int | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


LIST_ENDS = "k8s.io/initial-events-end"
# On the bookmark that ends a list: how many objects were in it.
LISTED = "holdfast.dev/listed"

_EVENTS = msgspec.json.Decoder(_Event)
_VERSIONS = msgspec.json.Decoder(_Versioned)

_CHANGES: dict[str, type[Present[Any] | Departed[Any]]] = {
    "ADDED": Present,
    "MODIFIED": Present,
    "DELETED": Departed,
}

News = Present[Any] | Departed[Any] | Reached


# How the lines of our servers begin. Others may write the same differently; that is read as well.
_OPENINGS: dict[bytes, type[Present[Any] | Departed[Any]]] = {
    b'{"type":"%b","object":' % kind.encode(): made for kind, made in _CHANGES.items()
}
_OPENING_BYTES = tuple(dict.fromkeys(len(opening) for opening in _OPENINGS))


def read_line(cls: type[Object], line: bytes) -> News | bytes:
    """One line of a watch as news; the Status of an ERROR as its bytes.

    Raises Unavailable when it cannot be read: whoever sends such lines is not one of our servers,
    or was cut in the middle.
    """
    try:
        made = _opening(line)
        if made is not None:
            return _change(cls, made[0], line[made[1] : -1])
        event = _EVENTS.decode(line)
        body = bytes(event.object)
        if event.type == "ERROR":
            return body
        if event.type == "BOOKMARK":
            return _reached(body)
        if event.type not in _CHANGES:
            raise ValueError(f"an event of type {event.type[:40]!r}")
        return _change(cls, _CHANGES[event.type], body)
    except (msgspec.DecodeError, ValueError, Invalid) as error:
        raise Unavailable(f"the server sent an event that cannot be read: {error}") from error


def _opening(line: bytes) -> tuple[type[Present[Any] | Departed[Any]], int] | None:
    """What a line begins, and where its object does; a line is as long as its object and one."""
    if not line.endswith(b"}}"):
        return None
    for size in _OPENING_BYTES:
        made = _OPENINGS.get(line[:size])
        if made is not None:
            return made, size
    return None


def _change(cls: type[Object], made: Any, body: bytes) -> News:
    obj: Any = decode_trusted(cls, body)
    news: News = made(obj, object_revision(obj.metadata.resource_version))
    return news


def _reached(body: bytes) -> Reached:
    meta = _VERSIONS.decode(body).metadata
    listed = meta.annotations.get(LISTED)
    return Reached(
        complete_revision(meta.resource_version),
        LIST_ENDS in meta.annotations,
        int(listed) if listed is not None else None,
    )
