"""Reads that one machine asks of another, and their answers.

A component reads one object from the servers with `Get`, to learn what became of a request whose
answer was lost. A server asks its watch hub with `Reach` whether it has seen a revision.
"""

from __future__ import annotations

import msgspec

from holdfast.model.meta import Object


class Get(msgspec.Struct, frozen=True, gc=False):
    """Read one object as it is now."""

    plural: str
    name: str
    namespace: str = ""


class GetResult(msgspec.Struct, frozen=True):
    """The object at a revision not older than the request, or None."""

    object: Object | None
    revision: int


class Reach(msgspec.Struct, frozen=True, gc=False):
    """Answered with its revision once the hub has seen everything up to this one."""

    revision: int
