"""How many requests a gate lets in at once, and how long others wait, from what is measured.

`commit/flow/flow_control` has one for each gate and multiplies its seats by `scale`. The right
number depends on the machine, its disk, its store and what else runs there, so none is configured.
Two measurements stand for "too many":

- **The turn of the event loop.** Whatever has been begun is worked on before the next request is
  even read, a lease among them. So seats are given away until a turn takes about TURN_MS, or half
  of what a write takes alone if that is longer: where the store is slow anyway, groups must be
  large. A machine too slow for that has the fewest seats, and its turns last as long as those few
  take.
- **The time inside**, from begin to end. It is compared with what it is when next to nothing is
  under way, for a store may be slow by nature: more than SLOWDOWN times that (and more than
  INSIDE_MS) is a queue behind the gate, where nobody keeps an order. It shrinks from what is under
  way, not from seats that are empty.

As in CoDel, the least of several measurements counts: a queue that stands delays all of them, a
pause of the garbage collector or one large list only a few. As in TCP, too much makes the limit
shrink by a factor, at once, and a request that waits for a seat makes it grow slowly. As in BBR,
the least time inside is measured at first and again from time to time, with few requests under
way: under a load that never ends it would not be seen otherwise, and the limit would follow its own
queue upwards.

How long somebody may wait follows as well. A seat becomes free once per turn, or once per group
that the store commits. Whoever is refused sooner than that is refused although the server has room,
and while somebody is refused others are refused sooner: a slow server would never recover.
"""

from __future__ import annotations

import math

# A turn of the event loop is to last no longer.
TURN_MS = 10
# And so many turns in a row have to be longer before anybody is kept out for it.
TURNS = 3
# A request inside is to take no longer, or no longer than so many times what it takes alone.
INSIDE_MS = 50
SLOWDOWN = 3
# Bounds on the limit, as multiples of the seats that a gate begins with.
SCALE_MIN = 1 / 32
SCALE_MAX = 8.0
# The limit while the least time inside is measured, and the least for the sake of short turns. What
# queues behind the gate may make it smaller than this, down to a single seat: a store far slower
# than this machine has a long queue already with the few of each of its servers.
FEW_SCALE = 1 / 8
# One measurement never takes away more than this leaves.
SHRINK_MIN = 0.7
# The fastest of so many requests tells whether all of them waited.
SAMPLES = 8
# The least time inside is measured again after so long.
PROBE_EVERY_MS = 10_000
# No store is taken to need longer than this alone. A probe makes the own requests few and not those
# of other servers, so behind their queue it finds the queue, and would let more in for it. Leases
# wait there as well, up to five times one after the other (for the group before, to read, to be
# refused, to read, to commit) within the two seconds that a controller waits for one.
ALONE_MAX_MS = 80
# How long somebody may wait while others are refused, in turns and in times inside; and when
# nobody is.
WAIT_TURNS, WAIT_INSIDE = 3, 1.5
CALM_FACTOR = 2
# A single measurement says no more than this: a store that stood still for a minute is no reason
# to let people wait for one.
MEASURED_MAX_MS = 1_000
_SMOOTHING = 1 / 16


class ConcurrencyLimit:
    """See the module's docstring. Times are readings of the owner's monotonic clock."""

    __slots__ = (
        "_ended",
        "_fastest_ms",
        "_inside_ms",
        "_is_probing",
        "_is_turn_long",
        "_least_at_ms",
        "_least_ms",
        "_most",
        "_seats",
        "_shrunk_ms",
        "_turns",
        "_unprobed",
        "is_short",
        "scale",
        "turn_ms",
    )

    def __init__(self, seats: int) -> None:
        self._seats = seats
        # The first requests tell what one takes alone.
        self.scale, self._is_probing = FEW_SCALE, True
        # Whether somebody had to wait since the limit was last looked at.
        self.is_short = False
        # Smoothed: a turn of the event loop, and the time inside.
        self.turn_ms = self._inside_ms = 0.0
        # Whether the last turn was too long, and those for which the limit was not changed yet.
        self._is_turn_long = False
        self._turns: list[int] = []
        # Since the limit was last looked at: how many ended, and the fastest of them.
        self._ended = self._most = 0
        self._fastest_ms = MEASURED_MAX_MS
        # Who began before this tells of a limit that is no more.
        self._shrunk_ms = -1
        # The least time inside, and when it was last seen.
        self._least_ms: int | None = None
        self._least_at_ms = 0
        # The limit that follows a probe: the one from before.
        self._unprobed = 1.0

    @property
    def wait_ms(self) -> int:
        """How long somebody may wait while others are refused."""
        # What takes longer than it should is no measure: nobody waits for a store that stalls.
        inside_ms = min(self._inside_ms, self.inside_max_ms)
        return math.ceil(max(WAIT_TURNS * self.turn_ms, WAIT_INSIDE * inside_ms))

    @property
    def inside_max_ms(self) -> int:
        """How long a request may take inside before too many are under way."""
        return max(INSIDE_MS, SLOWDOWN * (self._least_ms or 0))

    @property
    def turn_max_ms(self) -> int:
        """How long a turn may take as far as these requests are concerned."""
        return max(TURN_MS, (self._least_ms or 0) // 2)

    def turned(self, took_ms: int, most_ms: int) -> None:
        """The event loop has gone round once, while it had something to do."""
        took_ms = min(took_ms, MEASURED_MAX_MS)
        self.turn_ms += (took_ms - self.turn_ms) * _SMOOTHING
        self._is_turn_long = took_ms > most_ms
        turns = self._turns
        turns.append(took_ms)
        if len(turns) > TURNS:
            del turns[0]
        if len(turns) == TURNS and min(turns) > most_ms:
            self._shrink(self.scale, most_ms / min(turns), min(self.scale, FEW_SCALE))
            turns.clear()

    def ended(self, began_ms: int, now_ms: int, under_way: int) -> None:
        """A request is done, well or not; so many were under way until then, itself included."""
        self._most = max(self._most, under_way)
        if began_ms < self._shrunk_ms:
            return
        took_ms = min(now_ms - began_ms, MEASURED_MAX_MS)
        self._inside_ms += (took_ms - self._inside_ms) * _SMOOTHING
        self._ended += 1
        self._fastest_ms = min(self._fastest_ms, took_ms)
        if self._least_ms is None or took_ms <= self._least_ms:
            self._least_ms, self._least_at_ms = min(took_ms, ALONE_MAX_MS), now_ms
        is_enough = self._ended >= SAMPLES
        if self._is_probing:
            if is_enough:
                self._end_probe(now_ms)
        elif is_enough and self._fastest_ms > self.inside_max_ms:
            # Seats that stay empty make no queue, and to take them away ends none.
            used = min(self.scale, self._most / self._seats)
            self._shrink(used, self.inside_max_ms / self._fastest_ms, SCALE_MIN)
            self._shrunk_ms = now_ms
            self._begin_again(now_ms)
        elif self._ended >= max(SAMPLES, self.scale * self._seats):
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        """As many have ended as may be under way, and none of them waited: may there be more?"""
        if self.is_short and not self._is_turn_long:
            seats = self.scale * self._seats
            self.scale = min(SCALE_MAX, (seats + math.sqrt(seats)) / self._seats)
        self._begin_again(now_ms)

    def _shrink(self, used: float, factor: float, least: float) -> None:
        self.scale = max(least, used * max(SHRINK_MIN, factor))

    def _begin_again(self, now_ms: int) -> None:
        """Measure from here on, and what a request takes alone if that was long ago."""
        if now_ms - self._least_at_ms >= PROBE_EVERY_MS:
            self._begin_probe(now_ms)
        self._again()

    def _again(self) -> None:
        self._ended = self._most = 0
        self._fastest_ms, self.is_short = MEASURED_MAX_MS, False

    def _begin_probe(self, now_ms: int) -> None:
        """Only what begins with few others under way tells how long it takes alone."""
        self._is_probing, self._shrunk_ms = True, now_ms
        self._unprobed, self.scale = self.scale, min(self.scale, FEW_SCALE)

    def _end_probe(self, now_ms: int) -> None:
        if self._fastest_ms < MEASURED_MAX_MS:
            self._least_ms = min(self._fastest_ms, ALONE_MAX_MS)
        # Otherwise the store stands still, which tells nothing about how long it takes.
        self._least_at_ms = now_ms
        self._is_probing = False
        self.scale = max(self.scale, self._unprobed)
        self._again()
