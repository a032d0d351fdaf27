"""What became of requests at a gate, by class and by tenant: what operators are shown."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.commit.classes import Flow, RequestClass
from holdfast.commit.overload import Refused

# Tenants beyond these are counted together.
TENANTS_COUNTED_MAX = 1_000
OTHERS = "(others)"


class Tally(msgspec.Struct, gc=False):
    """What became of requests so far: of a class, or of a tenant in it."""

    begun: int = 0
    waited: int = 0
    refused: int = 0


class Standing(msgspec.Struct, frozen=True):
    """How many of a class are under way and wait, since when the first one does, and what was."""

    executing: int
    waiting: int
    oldest_ms: int
    tally: Tally
    refused: Mapping[Refused, int]


class TenantTallies:
    """One tally for each class of each tenant, as long as there are not too many."""

    def __init__(self) -> None:
        self.all: dict[tuple[RequestClass, str], Tally] = {}

    def of(self, flow: Flow) -> Tally:
        key = (flow.request_class, flow.tenant)
        found = self.all.get(key)
        if found is None:
            if len(self.all) >= TENANTS_COUNTED_MAX:
                key = (flow.request_class, OTHERS)
            found = self.all.setdefault(key, Tally())
        return found
