"""Overload on servers of three speeds: what is served, who is served first, and when it is over.

The same gates before a processor at a quarter of a speed, at that speed and at four times it, over
the same store. First every connection is busy, which tells the peak and with it the service time of
this server; then a calm time at 60 % of it, a storm at five times the peak, a calm time, a store
that stands still for 30 s, and a calm time again. Every bound is so many service times of the same
run, so many transactions of the store, and a fixed time for the network and for the least that a
turn is allowed to take. In a fourth world the store is slow by nature, so that much has to be under
way at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.overload_plane import (
    AFTER_S,
    ANSWERED,
    BACK_S,
    CALM_S,
    DECIDED,
    END_S,
    HOLDERS,
    LEASE,
    READ,
    REFUSED,
    RENEW_MS,
    SERVED,
    STALL_S,
    STORM_S,
    TAKEN_IN,
    WRITE,
    WRITES_SHARE,
    Plane,
    Sample,
)
from holdfast.sim.scenarios.run_log import RunLog
from holdfast.sim.scenarios.sentences import Sentence, SentenceChecks, demand
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.ledger_oracle import StoreCopy

# One request at the usual speed, one transaction of the usual store and of a slow one.
SERVICE_US = 1_600
STORE_US, SLOW_STORE_US = 3_000, 25_000
# A write waits for the transaction before its own, and for its own; so may whoever waits for it.
TXNS = 5
GOODPUT_MIN = 0.8
USED_MIN = 0.85
# What the first moments of a part bring is not judged.
SETTLE_S = 3
# A stall of 30 s is to be over after a minute; here it is far sooner.
RECOVERED_S = 15


def _p99_ms(samples: Sequence[Sample], *, from_sent: bool = False) -> float:
    took = sorted(it.done_us - (it.sent_us if from_sent else it.due_us) for it in samples)
    return took[min(len(took) - 1, int(0.99 * len(took)))] / 1_000 if took else 0.0


def _share(samples: Sequence[Sample], outcome: str) -> float:
    return sum(it.outcome == outcome for it in samples) / max(1, len(samples))


class _Judge:
    """The sentences of one run."""

    def __init__(self, plane: Plane) -> None:
        self._plane, self._meter = plane, plane.meter

    def _within(self, took_ms: float, fixed_ms: float, services: float, what: str) -> str:
        service_ms = self._meter.service_ms
        most_ms = fixed_ms + TXNS * self._plane.store_us / 1_000 + services * service_ms
        told = f"99 % of {what} within {took_ms:.0f} ms, {took_ms / service_ms:.0f} service times"
        demand(took_ms <= most_ms, f"{told} of {service_ms:.2f} ms, more than {most_ms:.0f} ms")
        return told

    def peak(self, story: RunLog) -> str:
        """Of the processor, nothing stays unused while somebody waits for it."""
        write = TAKEN_IN + DECIDED + ANSWERED
        request = WRITES_SHARE * write + (1 - WRITES_SHARE) * (TAKEN_IN + ANSWERED)
        second = 1e6 / self._plane.service_us - HOLDERS * 1_000 / RENEW_MS * write
        used = self._meter.peak * request / second
        demand(used >= USED_MIN, f"only {used:.0%} of the processor is used")
        return f"{self._meter.peak:.0f} requests/s, {used:.0%} of what the processor can do"

    def calm(self, story: RunLog) -> str:
        tenants = self._meter.of((READ, WRITE), CALM_S + 1, STORM_S)
        served = _share(tenants, SERVED)
        demand(served >= 0.999, f"only {served:.2%} were served")
        writes = [it for it in tenants if it.kind == WRITE]
        return self._within(_p99_ms(writes), 25, 24, "writes")

    def goodput(self, story: RunLog) -> str:
        good = self._meter.served_per_s(STORM_S + SETTLE_S, AFTER_S) / self._meter.peak
        demand(good >= GOODPUT_MIN, f"only {good:.0%} of the peak")
        return f"{good:.0%} of the peak"

    def lifeline(self, story: RunLog) -> str:
        leases = self._meter.of((LEASE,), STORM_S + SETTLE_S, AFTER_S)
        served = _share(leases, SERVED)
        demand(served == 1.0, f"only {served:.1%} of the renewals were served")
        return self._within(_p99_ms(leases), 45, 60, "renewals")

    def refusals(self, story: RunLog) -> str:
        tenants = self._meter.of((READ, WRITE), STORM_S + SETTLE_S, AFTER_S)
        refused = [it for it in tenants if it.outcome == REFUSED]
        demand(refused, "nobody was refused: it was no overload")
        return self._within(_p99_ms(refused, from_sent=True), 45, 80, "refusals")

    def recovered(self, story: RunLog) -> str:
        begin_s, end_s = BACK_S + RECOVERED_S, END_S - 1
        tenants = self._meter.of((READ, WRITE), begin_s, end_s)
        served = _share(tenants, SERVED)
        demand(served >= 0.99, f"only {served:.1%} are served {RECOVERED_S} s after the stall")
        before = self._meter.of((READ, WRITE), CALM_S + 1, STORM_S)
        usual_ms, took_ms = _p99_ms(before), _p99_ms(tenants)
        demand(took_ms <= 2 * usual_ms + 20, f"{took_ms:.0f} ms instead of {usual_ms:.0f}")
        return f"{served:.1%} are served within {took_ms:.0f} ms, as within {usual_ms:.0f} before"

    def stalled(self, story: RunLog) -> str:
        """Writes wait for the store; whoever only reads does not notice."""
        reads = self._meter.of((READ,), STALL_S + 1, BACK_S - 1)
        served = _share(reads, SERVED)
        demand(reads and served >= 0.9, f"only {served:.1%} of the reads were served")
        return f"{served:.1%} of {len(reads)} reads were served"

    def all(self) -> tuple[Sentence, ...]:
        return (
            Sentence("overload.peak", "The whole processor is used at the peak.", self.peak),
            Sentence("overload.calm", "At 60 % of the peak all is served soon.", self.calm),
            Sentence(
                "overload.goodput", "At five times the peak, 80 % of it is left.", self.goodput
            ),
            Sentence("overload.lifeline", "Leases come first whoever else asks.", self.lifeline),
            Sentence("overload.refusals", "Whoever is refused hears so soon.", self.refusals),
            Sentence("overload.stalled", "Reads pass while the store stands still.", self.stalled),
            Sentence("overload.recovered", "After the stall all is as before.", self.recovered),
        )


def _scenario(attribute: str, speed: float, store_us: int = STORE_US) -> Scenario:
    def build(world: World) -> None:
        plane = Plane(world, int(SERVICE_US / speed), store_us)
        books = StoreCopy()
        story = RunLog(books)
        world.check(books, story, plane.meter)
        world.check(SentenceChecks(story, _Judge(plane).all()))

    return Scenario(
        name=f"holdfast.sim.scenarios.overload_speeds:{attribute}",
        build=build,
        faults_ms=END_S * 1_000,
        settle_ms=1_000,
    )


QUARTER = _scenario("QUARTER", 0.25)
SCENARIO = _scenario("SCENARIO", 1.0)
FOURFOLD = _scenario("FOURFOLD", 4.0)
SLOW_STORE = _scenario("SLOW_STORE", 2.0, SLOW_STORE_US)
