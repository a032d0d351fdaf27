"""The inputs of a decision besides the records: the caller, the time and the plane's settings."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.commit.ages import Ages, RevisionAges
from holdfast.model.access.credential_life import TOKEN_LIFE_MAX_MS
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.errors import Invalid
from holdfast.model.kinds.template import Resources
from holdfast.model.lifecycle import Actor
from holdfast.model.machine import Rng
from holdfast.model.nodes.fence import FenceTiming, short_of_fence_ms
from holdfast.model.nodes.heartbeat import ZONE_SILENCE_MAX_MS
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS
from holdfast.model.plane import Plane
from holdfast.model.time import Instant, timestamp, wall_ms
from holdfast.model.transaction import ABSENT

_BITS = 1 << 32


class PlaneSettings(msgspec.Struct, frozen=True):
    """The configuration of one plane. All servers of a plane must have the same."""

    # Which plane it is: its name, and what it is responsible for.
    plane: Plane = Plane()
    # Deadlines are by the authority's wall clock; holders stop this much early, reclaimers act this
    # much late.
    skew_ms: int = 2_000
    # The longest reservation; a holder that needs more renews it.
    reservation_max_ms: int = 86_400_000
    # An object remembers at least this many of its last operations, each for at least this long.
    operations_kept: int = 8
    operations_kept_ms: int = 600_000
    # Beyond this number the oldest go even if they are young; otherwise a busy client grows an
    # object.
    operations_max: int = 32
    transitions_kept: int = 10
    workloads_per_tenant_max: int = 10_000
    objects_per_tenant_max: int = 200_000
    # The byte limit for all objects of a tenant without a cap of its own: every server holds them
    # in memory, and etcd's usual quota is 2 GiB for all tenants.
    bytes_per_tenant_max: int = 256 << 20
    # The default and the minimum resources of each replica whose work does not state them and whose
    # tenant has no rule of its own. Work without resources is charged nothing.
    default_resources: Resources = Resources()
    minimum_resources: Resources = Resources()
    fence: FenceTiming = FenceTiming()
    # The greatest age of an observation that a request may rest on; its module has the reasons.
    observation_age_max_ms: int = OBSERVATION_AGE_MAX_MS
    # For how long a zone of which most nodes are silent is held back.
    zone_silence_max_ms: int = ZONE_SILENCE_MAX_MS
    # The longest lives of certificates and tokens. A revocation is kept for the longer of the two.
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
        """How long after its issue the longest-lived credential is still valid."""
        return max(self.certificate_life_ms, self.token_life_ms)


class ReplayableRng:
    """The random numbers of one request: each new decision draws the same ones.

    A request is decided several times, each time on more or fresher records. A name that the server
    generates is looked up in the store, so it must be the same name every time.
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
    # None where there is a single wall clock that is never set, so that subtracting is right.
    ages: Ages | None = None
    # The default knows the age of no revision; an authority passes its own.
    revisions: RevisionAges = msgspec.field(default_factory=RevisionAges)

    @property
    def plane(self) -> Plane:
        """The plane in which it is decided."""
        return self.settings.plane

    @property
    def at(self) -> datetime:
        """The authority's wall clock, as objects carry it."""
        return timestamp(self.now.wall_ms)

    def age_ms(self, stamp: datetime) -> int:
        """How long ago an authority made this timestamp."""
        if self.ages is None:
            return self.now.wall_ms - wall_ms(stamp)
        return self.ages.likely_ms(stamp, self.now)

    def is_surely_older(self, revision: int, age_ms: int) -> bool:
        """Whether a revision is certainly at least this old, whatever any wall clock says.

        Nothing is certain of a revision that is not committed yet, or absent.
        """
        return revision > ABSENT and self.revisions.least_ms(revision, self.now) >= age_ms

    def actors(self) -> tuple[Actor, ...]:
        return acts_as(self.identity)

    def is_actor(self, *actors: Actor) -> bool:
        """Whether the caller may act as one of these."""
        # Every request calls this a few times, and a generator takes longer than the answer.
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
        # Every new replica draws one, and an f-string takes twice the time.
        return "%08x-%04x-%04x-%04x-%04x%08x" % (a, b >> 16, high, low, c & 0xFFFF, d)  # noqa: UP031
