"""What a decision is given besides the records: who asks, what time it is,
and the plane's settings.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.model.errors import Invalid
from holdfast.model.fence import FenceTiming, short_of_fence_ms
from holdfast.model.identity import Identity, acts_as
from holdfast.model.lifecycle import Actor
from holdfast.model.machine import Rng
from holdfast.model.time import Instant, timestamp

_BITS = 1 << 32


class Settings(msgspec.Struct, frozen=True):
    """What one plane is configured to. All servers of a plane must have the same."""

    # Deadlines are the authority's wall clock; holders stop so much early, reclaimers act so much
    # late.
    skew_ms: int = 2_000
    # An accepted operation is remembered on its object at least so long, and at least so many of
    # them.
    operations_kept: int = 8
    operations_kept_ms: int = 600_000
    # Beyond this many, the oldest go even when they are young; otherwise a chatty client grows an
    # object.
    operations_max: int = 32
    transitions_kept: int = 10
    workloads_per_tenant_max: int = 10_000
    objects_per_tenant_max: int = 200_000
    fence: FenceTiming = FenceTiming()
    # No certificate lives longer, so that long a revocation is kept.
    certificate_life_ms: int = 366 * 86_400_000

    def __post_init__(self) -> None:
        short_ms = short_of_fence_ms(self.fence)
        if short_ms:
            raise Invalid(
                f"fence.fence_after_ms: {self.fence.fence_after_ms}: is {short_ms} ms too short: a "
                "replacement could start while its predecessor still runs"
            )


class Luck:
    """The randomness of one request: what was drawn for it is drawn again.

    A request is decided several times, each time on more or fresher records. A name that the server
    makes up is looked for in the store, so it must be the same name every time.
    """

    __slots__ = ("_drawn", "_next", "_rng")

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._drawn: list[float] = []
        self._next = 0

    def again(self) -> Luck:
        """Start over with the first draw."""
        self._next = 0
        return self

    def random(self) -> float:
        at, drawn = self._next, self._drawn
        if at == len(drawn):
            drawn.append(self._rng.random())
        self._next = at + 1
        return drawn[at]


class Context(msgspec.Struct, frozen=True):
    """Everything outside the store that a decision may use."""

    identity: Identity
    now: Instant
    rng: Rng
    settings: Settings = Settings()

    @property
    def at(self) -> datetime:
        """The authority's wall clock, as objects carry it."""
        return timestamp(self.now.wall_ms)

    def actors(self) -> tuple[Actor, ...]:
        return acts_as(self.identity)

    def is_actor(self, *actors: Actor) -> bool:
        """Whether the caller may act as one of these."""
        # Every request asks a few times, and a generator takes longer than the answer.
        for actor in acts_as(self.identity):  # noqa: SIM110
            if actor in actors:
                return True
        return False

    def new_uid(self) -> str:
        """A random identifier in the form of a UUID of version 4."""
        draw = self.rng.random
        a, b = int(draw() * _BITS), int(draw() * _BITS)
        c, d = int(draw() * _BITS), int(draw() * _BITS)
        high, low = b & 0x0FFF | 0x4000, c >> 16 & 0x3FFF | 0x8000
        # Every birth draws one, and an f-string takes twice the time.
        return "%08x-%04x-%04x-%04x-%04x%08x" % (a, b >> 16, high, low, c & 0xFFFF, d)  # noqa: UP031
