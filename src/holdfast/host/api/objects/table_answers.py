"""Tables: what `kubectl get` prints, with columns that answer the first question about each kind.

A column with priority 1 shows with `-o wide` only. Ages are computed when the table is made, since
clients print the cells unchanged.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any

import msgspec

from holdfast.model.kind_declaration import Column, Kind
from holdfast.model.meta import Object

TABLE_API_VERSION = "meta.k8s.io/v1"
# What a row carries of its object, as the client asked: nothing, the metadata, or all of it.
NONE, METADATA, OBJECT = "None", "Metadata", "Object"

_NAME = Column("Name", lambda obj, now: obj.metadata.name, "the name of the object", format="name")
_AGE = Column(
    "Age", lambda obj, now: age(obj.metadata.creation_timestamp, now), "how long it has existed"
)


@cache
def columns(kind: Kind) -> tuple[Column, ...]:
    """The columns of a kind, the name first and the age last of those always shown."""
    shown = tuple(column for column in kind.columns if column.priority == 0)
    wide = tuple(column for column in kind.columns if column.priority > 0)
    return (_NAME, *shown, _AGE, *wide)


def age(since: datetime | None, now: datetime) -> str:
    """The age of an object as kubectl prints it: the two largest significant units."""
    if since is None:
        return "<unknown>"
    return duration(int((now - since).total_seconds()))


def duration(seconds: int) -> str:
    """Seconds in the short form of Kubernetes: 45s, 3m20s, 15m, 5h30m, 9h, 2d4h, 30d, 2y10d."""
    if seconds < 0:
        # A clock that is a little behind must not show a negative age.
        return "0s" if seconds > -2 else "<invalid>"
    if seconds < 120:
        return f"{seconds}s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, rest = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, rest = divmod(hours, 24)
    if days < 8:
        return f"{days}d{rest}h" if rest else f"{days}d"
    if days < 730:
        return f"{days}d"
    years, rest = divmod(days, 365)
    return f"{years}y{rest}d" if years < 8 and rest else f"{years}y"


def opening(
    definitions: list[dict[str, Any]],
    version: str,
    more_from: str = "",
    remaining: int | None = None,
) -> bytes:
    """The beginning of a table, up to its rows; `ENDING` follows them."""
    metadata: dict[str, Any] = {"resourceVersion": version}
    if more_from:
        metadata["continue"] = more_from
    if remaining is not None:
        metadata["remainingItemCount"] = remaining
    body = _ENCODER.encode(
        {
            "kind": "Table",
            "apiVersion": TABLE_API_VERSION,
            "metadata": metadata,
            "columnDefinitions": definitions,
        }
    )
    return body.removesuffix(b"}") + b',"rows":['


ENDING = b"]}"
_ENCODER = msgspec.json.Encoder()


@cache
def definitions(kind: Kind) -> list[dict[str, Any]]:
    """The columns of a kind as a table declares them."""
    return [
        definition(it.name, it.type, it.format, it.description, it.priority) for it in columns(kind)
    ]


def definition(
    name: str, type_: str, format_: str, description: str, priority: int
) -> dict[str, Any]:
    """One column as a table declares it."""
    return {
        "name": name,
        "type": type_,
        "format": format_,
        "description": description,
        "priority": priority,
    }


def row(kind: Kind, obj: Object, now: datetime, include: str) -> bytes:
    """The row of an object."""
    return row_of([column.cell(obj, now) for column in columns(kind)], obj, obj, include)


def row_of(cells: list[Any], whole: Any, obj: Object, include: str) -> bytes:
    """A row of these cells, with the part of the object that the client asked for."""
    made: dict[str, Any] = {"cells": cells}
    if include == OBJECT:
        made["object"] = whole
    elif include == METADATA:
        made["object"] = partial(obj)
    return _ENCODER.encode(made)


def partial(obj: Object) -> dict[str, Any]:
    """Only the metadata, for clients that need no more."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": TABLE_API_VERSION,
        "metadata": obj.metadata,
    }
