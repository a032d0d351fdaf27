"""What a decision is given besides the records: who asks, what time it is,
and the plane's settings.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.commit.ages import Ages, RevisionAges
from holdfast.model.access.credential_life import TOKEN_LIFE_MAX_MS
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.errors import Invalid
from holdfast.model.fence import FenceTiming, short_of_fence_ms
from holdfast.model.kinds.template import Resources
from holdfast.model.lifecycle import Actor
from holdfast.model.machine import Rng
from holdfast.model.time import Instant, timestamp, wall_ms
from holdfast.model.transaction import ABSENT

_BITS = 1 << 32


class PlaneSettings(msgspec.Struct, frozen=True):
    """What one plane is configured to. All servers of a plane must have the same."""

    # Deadlines are the authority's wall clock; holders stop so much early, reclaimers act so much
    # late.
    skew_ms: int = 2_000
    # Nothing is reserved for longer at a time; who needs it longer renews it.
    reservation_max_ms: int = 86_400_000
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
    # What a tenant without a cap of its own may have written into all of its objects together:
    # every server holds them in memory, and etcd's usual quota is 2 GiB for all tenants.
    bytes_per_tenant_max: int = 256 << 20
    # What is set aside for each replica of work that does not state it, and what must be at least,
    # where a tenant has no rule of its own. Work for which nothing is set aside is charged nothing.
    default_resources: Resources = Resources()
    minimum_resources: Resources = Resources()
    fence: FenceTiming = FenceTiming()
    # No certificate and no token counts for longer after its issue, and a revocation is kept for
    # the longer of the two.
    certificate_life_ms: int = 366 * 86_400_000
    token_life_ms: int = TOKEN_LIFE_MAX_MS

    def __post_init__(self) -> None:
        short_ms = short_of_fence_ms(self.fence)
        if short_ms:
            raise Invalid(
                f"fence.fence_after_ms: {self.fence.fence_after_ms}: is {short_ms} ms too short: a "
                "replacement could start while its predecessor still runs"
            )

    @property
    def credential_life_ms(self) -> int:
        """How long after its issue the longest of all credentials may still count."""
        return max(self.certificate_life_ms, self.token_life_ms)


class ReplayableRng:
    """The randomness of one request: what was drawn for it is drawn again.

    A request is decided several times, each time on more or fresher records. A name that the server
    makes up is looked for in the store, so it must be the same name every time.
    """

    __slots__ = ("_drawn", "_next", "_rng")

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._drawn: list[float] = []
        self._next = 0

    def again(self) -> ReplayableRng:
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
    settings: PlaneSettings = PlaneSettings()
    # None where there is one calendar that nobody sets, so that subtracting is right.
    ages: Ages | None = None
    # Without one that its authority keeps, nothing is known of any revision.
    revisions: RevisionAges = msgspec.field(default_factory=RevisionAges)

    @property
    def at(self) -> datetime:
        """The authority's wall clock, as objects carry it."""
        return timestamp(self.now.wall_ms)

    def age_ms(self, stamp: datetime) -> int:
        """How long ago an authority wrote this moment down."""
        if self.ages is None:
            return self.now.wall_ms - wall_ms(stamp)
        return self.ages.likely_ms(stamp, self.now)

    def is_surely_older(self, revision: int, age_ms: int) -> bool:
        """Whether a revision was written so long ago, whatever any calendar says.

        Of what has no revision yet, or is said to have none, nothing is sure.
        """
        return revision > ABSENT and self.revisions.least_ms(revision, self.now) >= age_ms

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
