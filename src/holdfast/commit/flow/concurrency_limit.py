"""The concurrency limit of a flow controller, and how long requests may wait, from measurements.

`commit/flow/flow_control` has one for each flow controller and multiplies its seats by `scale`. The
right number depends on the machine, its disk, its store and what else runs there, so none is
configured. Two measurements mean "too many":

- **The event loop's turn.** Everything that has started is processed before the next request is
  even read, a lease among them. So seats are given out until a turn takes about TURN_MS, or half
  the time of a single write if that is longer: where the store is slow anyway, groups must be
  large. A machine too slow for that has the fewest seats, and its turns last as long as those few
  take.
- **The time inside**, from start to end. It is compared with the time when almost nothing is
  running, because a store may be slow by nature: more than SLOWDOWN times that (and more than
  INSIDE_MS) means a queue behind the flow controller, where no fair order is kept. The limit
  shrinks from the requests that are running, not from empty seats.

As in CoDel, the minimum of several measurements counts: a standing queue delays all of them, a
garbage collection or one large list only a few. As in TCP, overload shrinks the limit by a factor,
at once, and a request that waits for a seat makes it grow slowly. As in BBR, the minimum time
inside is measured at first and again periodically, with few requests running: under a permanent
load it would not be seen otherwise, and the limit would follow its own queue upwards.

The maximum waiting time follows as well. A seat becomes free once per turn, or once per group that
the store commits. A request that is refused sooner than that is refused although the server has
capacity. While requests are refused, others are refused sooner: a slow server would never recover.
"""

from __future__ import annotations

import math

# The target duration of an event loop turn.
TURN_MS = 10
# This many consecutive turns must be longer before the limit shrinks.
TURNS = 3
# The target time inside, as an absolute time and as a multiple of the time when alone.
INSIDE_MS = 50
SLOWDOWN = 3
# Bounds on the limit, as multiples of a flow controller's initial seats.
SCALE_MIN = 1 / 32
SCALE_MAX = 8.0
# The limit while the minimum time inside is measured, and the lowest limit for the sake of short
# turns. A queue behind the flow controller may make it smaller than this, down to a single seat: a
# store far slower than this machine has a long queue already with the few requests of each server.
FEW_SCALE = 1 / 8
# One measurement never shrinks the limit below this factor.
SHRINK_MIN = 0.7
# The fastest of this many requests shows whether all of them waited.
SAMPLES = 8
# The interval between measurements of the minimum time inside.
PROBE_EVERY_MS = 10_000
# The longest accepted time of a single request alone. A probe reduces only this server's requests
# and not those of other servers, so behind their queue it would measure the queue, and admit more
# because of it. Leases wait there as well, up to five times in sequence (for the previous group, to
# read, to be refused, to read, to commit) within the two seconds that a controller waits for one.
ALONE_MAX_MS = 80
# The waiting time while others are refused, in turns and in times inside; and its factor while none
# are.
WAIT_TURNS, WAIT_INSIDE = 3, 1.5
CALM_FACTOR = 2
# The cap on a single measurement: a store that stalled for a minute is no reason to let requests
# wait that long.
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
        # The first requests show what one takes alone.
        self.scale, self._is_probing = FEW_SCALE, True
        # Whether a request had to wait since the limit was last evaluated.
        self.is_short = False
        # Smoothed: a turn of the event loop, and the time inside.
        self.turn_ms = self._inside_ms = 0.0
        # Whether the last turn was too long, and the turns that have not changed the limit yet.
        self._is_turn_long = False
        self._turns: list[int] = []
        # Since the limit was last evaluated: how many ended, and the fastest of them.
        self._ended = self._most = 0
        self._fastest_ms = MEASURED_MAX_MS
        # Requests that started before this measured an earlier limit.
        self._shrunk_ms = -1
        # The minimum time inside, and when it was last seen.
        self._least_ms: int | None = None
        self._least_at_ms = 0
        # The limit to restore after a probe.
        self._unprobed = 1.0

    @property
    def wait_ms(self) -> int:
        """How long a request may wait while others are refused."""
        # A time beyond the target does not count: no request waits for a store that stalls.
        inside_ms = min(self._inside_ms, self.inside_max_ms)
        return math.ceil(max(WAIT_TURNS * self.turn_ms, WAIT_INSIDE * inside_ms))

    @property
    def inside_max_ms(self) -> int:
        """How long a request may take inside before too many are running."""
        return max(INSIDE_MS, SLOWDOWN * (self._least_ms or 0))

    @property
    def turn_max_ms(self) -> int:
        """How long a turn may take as far as these requests are concerned."""
        return max(TURN_MS, (self._least_ms or 0) // 2)

    def observe_turn(self, took_ms: int, most_ms: int) -> None:
        """Note one turn of the event loop while it had work to do."""
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

    def observe_end(self, began_ms: int, now_ms: int, under_way: int) -> None:
        """Note the end of a request, whatever its result. `under_way` counts those running until
        then, itself included.
        """
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
            # Empty seats cause no queue, and removing them ends none.
            used = min(self.scale, self._most / self._seats)
            self._shrink(used, self.inside_max_ms / self._fastest_ms, SCALE_MIN)
            self._shrunk_ms = now_ms
            self._begin_again(now_ms)
        elif self._ended >= max(SAMPLES, self.scale * self._seats):
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        """As many have ended as may run at once, and none of them waited: grow if seats were
        short.
        """
        if self.is_short and not self._is_turn_long:
            seats = self.scale * self._seats
            self.scale = min(SCALE_MAX, (seats + math.sqrt(seats)) / self._seats)
        self._begin_again(now_ms)

    def _shrink(self, used: float, factor: float, least: float) -> None:
        self.scale = max(least, used * max(SHRINK_MIN, factor))

    def _begin_again(self, now_ms: int) -> None:
        """Restart the measurement, with a probe of the time alone if the last one is old."""
        if now_ms - self._least_at_ms >= PROBE_EVERY_MS:
            self._begin_probe(now_ms)
        self._again()

    def _again(self) -> None:
        self._ended = self._most = 0
        self._fastest_ms, self.is_short = MEASURED_MAX_MS, False

    def _begin_probe(self, now_ms: int) -> None:
        """Start a probe: only requests that start with few others running show the time alone."""
        self._is_probing, self._shrunk_ms = True, now_ms
        self._unprobed, self.scale = self.scale, min(self.scale, FEW_SCALE)

    def _end_probe(self, now_ms: int) -> None:
        if self._fastest_ms < MEASURED_MAX_MS:
            self._least_ms = min(self._fastest_ms, ALONE_MAX_MS)
        # Otherwise the store stalls, which says nothing about its normal speed.
        self._least_at_ms = now_ms
        self._is_probing = False
        self.scale = max(self.scale, self._unprobed)
        self._again()
