"""Request counts of a flow controller, by class and by tenant, as operators see them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.commit.flow.overload import RejectionReason

# Tenants of one class beyond this number are counted together.
TENANTS_COUNTED_MAX = 1_000


class RequestCounts(msgspec.Struct, gc=False):
    """The outcomes of requests so far: of a class, or of a tenant in it."""

    begun: int = 0
    waited: int = 0
    refused: int = 0
    # Of all of them, those that their clients mark as retries.
    retried: int = 0


class ClassLoad(msgspec.Struct, frozen=True):
    """The running and waiting requests of a class, the age of the oldest, and its counts."""

    executing: int
    waiting: int
    oldest_ms: int
    tally: RequestCounts
    refused: Mapping[RejectionReason, int]
