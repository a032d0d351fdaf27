"""Overload of servers at three speeds: goodput, the order of service, and recovery.

The same flow controllers in front of a processor at a quarter of a speed, at that speed and at four
times that speed, over the same store. First every connection is busy, which gives the peak and with
it the service time of this server. Then follow a phase at 60 % of the peak, an overload at five
times the peak, 60 % again, a store that stalls for 30 s, and 60 % again. Each bound is a number of
service times of the same run, a number of transactions of the store, and a fixed time for the
network and for the shortest turn of the event loop.

In a fourth scenario the store is slow by nature. Its peak is computed and not judged: short turns
of the event loop come first there, so that 72 to 96 % of the processor is used, depending on how
writes happen to fall into groups. So a fifth scenario has only the peak, with a store so slow that
turns do not matter and more writes must run at once than there are seats at first; the limit gets
the time that it needs to grow. In a sixth, on the fastest server, the store does not stall, and in
the overload one tenant asks for fifty times its share and the others for exactly theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.commit.flow.concurrency_limit import WAIT_INSIDE
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.overload_plane import (
    AFTER_S,
    BACK_S,
    CALM_S,
    END_S,
    LEASE,
    PROBE,
    READ,
    REFUSED,
    SERVED,
    STALL_S,
    STORM_S,
    TENANTS,
    WRITE,
    LoadMeter,
    OverloadPlane,
    Sample,
    TenantDemand,
)
from holdfast.sim.scenarios.run_log import RunLog
from holdfast.sim.scenarios.sentences import Sentence, SentenceChecks, demand
from holdfast.sim.world import World

# The processor time of a request at the usual speed, and a transaction of the usual store.
SERVICE_US, STORE_US = 1_600, 3_000
SLOW_STORE_US = 25_000
# The store for which the limit must grow, the connections of each tenant that make it grow, and the
# time after which it has grown: two probes of the time alone are over by then.
GROWTH_STORE_US, GROWTH_CLIENTS, GROWTH_S = 50_000, 10, 14
# A write waits for the transaction before its own, and for its own; so may a request behind it.
TXNS = 5
# A refused request has waited this much longer than a request takes inside.
REFUSAL_TXNS = WAIT_INSIDE * TXNS
GOODPUT_MIN = 0.8
USED_MIN = 0.85
# The first seconds of a phase are not judged.
SETTLE_S = 3
# A stall of 30 s must be over after a minute; here it is over far sooner.
RECOVERED_S = 15
# The greedy tenant asks for this many times its share until then, and may get this much more than
# its share. One percent that each of nine others loses gives it nine.
GREEDY, GREED, GREED_END_S, EXCESS_MAX = TENANTS[0], 50.0, 30, 0.1


def _p99_ms(samples: Sequence[Sample], *, from_sent: bool = False) -> float:
    took = sorted(it.done_us - (it.sent_us if from_sent else it.due_us) for it in samples)
    return took[min(len(took) - 1, int(0.99 * len(took)))] / 1_000 if took else 0.0


def _share(samples: Sequence[Sample], outcome: str) -> float:
    return sum(it.outcome == outcome for it in samples) / max(1, len(samples))


def greedy_excess(meter: LoadMeter) -> float:
    """How much more than its share the greedy tenant got, as a ratio of that share.

    Its share is what every other gets, or what the others do not ask for.
    """
    begin_s, end_s = STORM_S + SETTLE_S, GREED_END_S
    total = meter.served_per_s(begin_s, end_s)
    left = total - meter.due_per_s(begin_s, end_s, TENANTS[1:])
    share = max(total / len(TENANTS), left)
    return meter.served_per_s(begin_s, end_s, (GREEDY,)) / share - 1


class _Judge:
    """The sentences about one run."""

    def __init__(self, plane: OverloadPlane) -> None:
        self._plane, self._meter = plane, plane.meter

    def _within(
        self, took_ms: float, fixed_ms: float, services: float, what: str, txns: float = TXNS
    ) -> str:
        service_ms = self._meter.service_ms
        most_ms = fixed_ms + txns * self._plane.store_us / 1_000 + services * service_ms
        text = f"99 % of {what} within {took_ms:.0f} ms, {took_ms / service_ms:.0f} service times"
        demand(took_ms <= most_ms, f"{text} of {service_ms:.2f} ms, more than {most_ms:.0f} ms")
        return text

    def peak(self, log: RunLog) -> str:
        """No processor time stays unused while requests wait for it."""
        used = self._meter.peak / self._plane.capacity
        demand(used >= USED_MIN, f"only {used:.0%} of the processor is used")
        return f"{self._meter.peak:.0f} requests/s, {used:.0%} of what the processor can do"

    def calm(self, log: RunLog) -> str:
        tenants = self._meter.of((READ, WRITE), CALM_S + 1, STORM_S)
        served = _share(tenants, SERVED)
        demand(served >= 0.999, f"only {served:.2%} were served")
        writes = [it for it in tenants if it.kind == WRITE]
        return self._within(_p99_ms(writes), 25, 24, "writes")

    def goodput(self, log: RunLog) -> str:
        good = self._meter.served_per_s(STORM_S + SETTLE_S, AFTER_S) / self._meter.peak
        demand(good >= GOODPUT_MIN, f"only {good:.0%} of the peak")
        return f"{good:.0%} of the peak"

    def lifeline(self, log: RunLog) -> str:
        leases = self._meter.of((LEASE,), STORM_S + SETTLE_S, AFTER_S)
        served = _share(leases, SERVED)
        demand(served == 1.0, f"only {served:.1%} of the renewals were served")
        return self._within(_p99_ms(leases), 45, 60, "renewals")

    def refusals(self, log: RunLog) -> str:
        tenants = self._meter.of((READ, WRITE), STORM_S + SETTLE_S, AFTER_S)
        refused = [it for it in tenants if it.outcome == REFUSED]
        demand(refused, "no request was refused: it was no overload")
        return self._within(_p99_ms(refused, from_sent=True), 45, 80, "refusals", REFUSAL_TXNS)

    def recovered(self, log: RunLog) -> str:
        begin_s, end_s = BACK_S + RECOVERED_S, END_S - 1
        tenants = self._meter.of((READ, WRITE), begin_s, end_s)
        served = _share(tenants, SERVED)
        demand(served >= 0.99, f"only {served:.1%} are served {RECOVERED_S} s after the stall")
        before = self._meter.of((READ, WRITE), CALM_S + 1, STORM_S)
        usual_ms, took_ms = _p99_ms(before), _p99_ms(tenants)
        demand(took_ms <= 2 * usual_ms + 20, f"{took_ms:.0f} ms instead of {usual_ms:.0f}")
        return f"{served:.1%} are served within {took_ms:.0f} ms, as within {usual_ms:.0f} before"

    def fair(self, log: RunLog) -> str:
        excess = greedy_excess(self._meter)
        text = f"a tenant that asks for {GREED:.0f} times its share gets {excess:+.1%}"
        demand(excess <= EXCESS_MAX, text)
        return text

    def stalled(self, log: RunLog) -> str:
        """Writes wait for the store; reads do not."""
        reads = self._meter.of((READ, PROBE), STALL_S + 1, BACK_S - 1)
        served = _share(reads, SERVED)
        demand(reads and served >= 0.9, f"only {served:.1%} of the reads were served")
        return f"{served:.1%} of {len(reads)} reads were served"

    def of_growth(self) -> tuple[Sentence, ...]:
        return (Sentence("overload.peak", "The whole processor is used at the peak.", self.peak),)

    def of_overload(self) -> tuple[Sentence, ...]:
        return (
            Sentence("overload.calm", "At 60 % of the peak all is served soon.", self.calm),
            Sentence(
                "overload.goodput", "At five times the peak, 80 % of it is left.", self.goodput
            ),
            self._lifeline(),
            Sentence("overload.refusals", "A refused client learns so soon.", self.refusals),
            Sentence("overload.stalled", "Reads pass while the store stalls.", self.stalled),
            Sentence("overload.recovered", "After the stall all is as before.", self.recovered),
        )

    def of_greed(self) -> tuple[Sentence, ...]:
        return (
            Sentence("overload.fair", "A greedy tenant gets no more than others.", self.fair),
            self._lifeline(),
        )

    def _lifeline(self) -> Sentence:
        return Sentence("overload.lifeline", "Leases come before all else.", self.lifeline)


def _greedy(tenant: str) -> TenantDemand:
    return TenantDemand(storm=GREED if tenant == GREEDY else 1.0, until_s=GREED_END_S)


def _stalled(
    attribute: str, speed: float, store_us: int = STORE_US, *, has_peak: bool = True
) -> Scenario:
    def build(world: World) -> None:
        service_us = int(SERVICE_US / speed)
        plane = OverloadPlane(world, service_us, store_us, is_peak_measured=has_peak)
        plane.schedule_stall()
        judge = _Judge(plane)
        _check(world, plane, (*(judge.of_growth() if has_peak else ()), *judge.of_overload()))

    return _scenario(attribute, build, END_S)


def _build_growth(world: World) -> None:
    plane = OverloadPlane(
        world, SERVICE_US // 2, GROWTH_STORE_US, warm_s=GROWTH_S, peak_clients=GROWTH_CLIENTS
    )
    _check(world, plane, _Judge(plane).of_growth())


def greedy_tenant(attribute: str, speed: float) -> Scenario:
    """The scenario of the greedy tenant, on a server at this speed."""

    def build(world: World) -> None:
        plane = OverloadPlane(world, int(SERVICE_US / speed), STORE_US, demand_of=_greedy)
        _check(world, plane, _Judge(plane).of_greed())

    return _scenario(attribute, build, GREED_END_S)


def _check(world: World, plane: OverloadPlane, sentences: Sequence[Sentence]) -> None:
    store_copy = plane.parts.store_copy
    log = RunLog(store_copy)
    world.check(store_copy, log, plane.meter)
    world.check(SentenceChecks(log, sentences))


def _scenario(attribute: str, build: Callable[[World], None], end_s: int) -> Scenario:
    return Scenario(
        name=f"holdfast.sim.scenarios.overload_speeds:{attribute}",
        build=build,
        faults_ms=end_s * 1_000,
        settle_ms=1_000,
    )


QUARTER = _stalled("QUARTER", 0.25)
SCENARIO = _stalled("SCENARIO", 1.0)
FOURFOLD = _stalled("FOURFOLD", 4.0)
SLOW_STORE = _stalled("SLOW_STORE", 2.0, SLOW_STORE_US, has_peak=False)
GROWTH = _scenario("GROWTH", _build_growth, GROWTH_S + CALM_S)
GREEDY_TENANT = greedy_tenant("GREEDY_TENANT", 4.0)
