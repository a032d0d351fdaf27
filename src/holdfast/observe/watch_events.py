"""The watch protocol between components and servers: what a component asks for, and the events.

A component opens a stream to the servers with `Follow` and receives tuples of events, in order.
`host/client` and the simulator's servers make them from the same lines of text (`read_line`).
"""

from __future__ import annotations

from typing import Any, Generic

import msgspec

from holdfast.model.encoding.resource_versions import complete_revision, object_revision
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.meta import AnyObject, Object

# The address that stands for any server of the plane.
SERVERS = "servers"
_OF_PLANE = f"/{SERVERS}"
# How often components and agents ask for a bookmark on a stream. A server with too many streams
# sends it less often, and says so.
COMPONENT_BOOKMARK_MS, AGENT_BOOKMARK_MS = 2_000, 3_000


def servers_of(plane: str) -> str:
    """The address that stands for any server of a plane; of the own one if the name is empty."""
    return plane + _OF_PLANE if plane else SERVERS


def plane_of(address: str) -> str:
    """The other plane that an address leads to; empty for an address in the own plane."""
    return address.removesuffix(_OF_PLANE) if address.endswith(_OF_PLANE) else ""


class Follow(msgspec.Struct, frozen=True):
    """Opens a watch of one kind. With `since` None the stream starts with all current objects.

    `fields` is a field selector, such as status.binding.node=n1. `is_list` asks for the initial
    objects only; the server may send more. `bookmark_ms` is how often a bookmark is wanted.
    """

    plural: str
    namespace: str = ""
    fields: str = ""
    since: int | None = None
    is_list: bool = False
    bookmark_ms: int = COMPONENT_BOOKMARK_MS


class Present(msgspec.Struct, Generic[AnyObject], frozen=True):
    """The object exists, or has changed."""

    object: AnyObject
    revision: int


class Departed(msgspec.Struct, Generic[AnyObject], frozen=True):
    """The object is gone, or no longer selected. `object` is its last state."""

    object: AnyObject
    revision: int


class Opaque(msgspec.Struct, frozen=True, gc=False):
    """The object exists, or has changed, and this version cannot decode it.

    A newer version wrote it, or it is damaged. Only what was known of it before remains.
    """

    namespace: str
    name: str
    revision: int
    why: str
    # Whether the object is gone.
    departed: bool = False


class Reached(msgspec.Struct, frozen=True, gc=False):
    """Nothing else has changed up to this revision.

    `ends_list` says that all initial objects have been sent; `listed` says how many there were, so
    that a reader notices when some were lost. `within_ms` says within which time the server sends
    something again, if it announces that.
    """

    revision: int
    ends_list: bool = False
    listed: int | None = None
    within_ms: int | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


LIST_ENDS = "k8s.io/initial-events-end"
# On the bookmark that ends a list: the number of objects in it.
LISTED = "holdfast.dev/listed"
# On each bookmark of a stream that asked for an interval: when the next bookmark comes.
WITHIN = "holdfast.dev/next-within-ms"


def bookmark_annotations(listed: int | None, within_ms: int | None) -> dict[str, str]:
    """The annotations of a bookmark."""
    found = {} if listed is None else {LIST_ENDS: "true", LISTED: str(listed)}
    return found if within_ms is None else found | {WITHIN: str(within_ms)}


_EVENTS = msgspec.json.Decoder(_Event)
_VERSIONS = msgspec.json.Decoder(_Versioned)

_CHANGES: dict[str, type[Present[Any] | Departed[Any]]] = {
    "ADDED": Present,
    "MODIFIED": Present,
    "DELETED": Departed,
}

WatchEvent = Present[Any] | Departed[Any] | Opaque | Reached


# How the lines of our servers begin. Other spellings of the same JSON are read as well.
_OPENINGS: dict[bytes, type[Present[Any] | Departed[Any]]] = {
    b'{"type":"%b","object":' % kind.encode(): made for kind, made in _CHANGES.items()
}
_OPENING_BYTES = tuple(dict.fromkeys(len(opening) for opening in _OPENINGS))


def read_line(cls: type[Object], line: bytes) -> WatchEvent | bytes:
    """The event in one line of a watch, or the bytes of the Status of an ERROR.

    An object that cannot be decoded is an event too: it must not end the stream of all others.
    Raises Unavailable when the line itself cannot be read: then the sender is not one of our
    servers, or the line was cut.
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
            raise ValueError(f"unknown event type {event.type[:40]!r}")
        return _change(cls, _CHANGES[event.type], body)
    except (msgspec.DecodeError, ValueError, Invalid) as error:
        raise Unavailable(f"the server sent an event that cannot be read: {error}") from error


def is_bookmark(line: bytes) -> bool:
    """Whether a line of our servers is a bookmark."""
    return line.startswith(b'{"type":"BOOKMARK"')


def within_ms(line: bytes) -> int | None:
    """Within which time the server sends something again, as a bookmark in any form says."""
    try:
        found = _VERSIONS.decode(_EVENTS.decode(line).object).metadata.annotations.get(WITHIN)
        return int(found) if found is not None else None
    except (msgspec.DecodeError, ValueError) as error:
        raise Unavailable(f"the server sent a bookmark that cannot be read: {error}") from error


def _opening(line: bytes) -> tuple[type[Present[Any] | Departed[Any]], int] | None:
    """The event type of a line and the offset of its object, which ends before the last byte."""
    if not line.endswith(b"}}"):
        return None
    for size in _OPENING_BYTES:
        made = _OPENINGS.get(line[:size])
        if made is not None:
            return made, size
    return None


def _change(cls: type[Object], made: Any, body: bytes) -> WatchEvent:
    try:
        obj: Any = decode_trusted(cls, body)
    except msgspec.ValidationError as error:
        meta = _VERSIONS.decode(body).metadata
        revision = object_revision(meta.resource_version)
        return Opaque(meta.namespace, meta.name, revision, str(error), made is Departed)
    event: WatchEvent = made(obj, object_revision(obj.metadata.resource_version))
    return event


def _reached(body: bytes) -> Reached:
    meta = _VERSIONS.decode(body).metadata
    listed, within_ms = meta.annotations.get(LISTED), meta.annotations.get(WITHIN)
    return Reached(
        complete_revision(meta.resource_version),
        LIST_ENDS in meta.annotations,
        int(listed) if listed is not None else None,
        int(within_ms) if within_ms is not None else None,
    )
