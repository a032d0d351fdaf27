"""What became of requests at a gate, by class and by tenant: what operators are shown."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.commit.flow.overload import RejectionReason

# Tenants of one class beyond these are counted together.
TENANTS_COUNTED_MAX = 1_000
OTHERS = "(others)"


class RequestCounts(msgspec.Struct, gc=False):
    """What became of requests so far: of a class, or of a tenant in it."""

    begun: int = 0
    waited: int = 0
    refused: int = 0
    # Of all of them those that were sent before, as far as clients say so.
    retried: int = 0


class ClassLoad(msgspec.Struct, frozen=True):
    """How many of a class are under way and wait, since when the first one does, and what was."""

    executing: int
    waiting: int
    oldest_ms: int
    tally: RequestCounts
    refused: Mapping[RejectionReason, int]
