"""The store slows tenfold and then refuses everything for a minute, below thousands of agents.

Everybody whose request fails would like to try again, at once and more often; if they did, the
store that comes back would find a plane that is busy with refusing. Nobody is told what to do: two
servers behind their gates, all controllers, a scheduler, the agents with their work and the
programs of some tenants are the machines that ship. When the store comes back its history is gone,
so that the servers read everything anew and end all their streams at once: everybody reconnects.

`SCENARIO` has 5,000 agents; `SMALL` a hundred, on machines that are as much slower, so that they
are as busy. The gates are the same: they find out how slow a machine is.
"""

from __future__ import annotations

from holdfast.model.kinds.node import NodePhase
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.run_log import NodeChanged, RunLog
from holdfast.sim.scenarios.sc14_meter import (
    AUDIT_AGAIN,
    LEASE,
    REFUSED,
    RENEWAL,
    SERVED,
    STREAM,
    SYSTEM,
    TENANT,
)
from holdfast.sim.scenarios.sc14_plane import (
    BACK_S,
    CALM_S,
    END_S,
    REFUSES_S,
    RENEW_S,
    SLOW_S,
    TIMING,
    Storm,
    StormSize,
)
from holdfast.sim.scenarios.sentences import Sentence, SentenceChecks, demand
from holdfast.sim.world import World

FIRST_ROUND_S = RENEW_S
WITHIN_S = 60
AT_ONCE_US = 10_000
# Tenants feel an overload when half of their requests take so many times longer, or are refused.
FELT = 4


def _again(storm: Storm, begin_s: int, end_s: int) -> float:
    """Requests a second that would not have been sent if the ones before had been answered.

    Of tenants, what is more than their wishes; of components, what is more than usual; of streams,
    all: none would have ended; of the lists of resyncs, those that their rhythm does not explain.
    """
    meter = storm.meter
    found = meter.offered_per_s(begin_s, end_s, TENANT) - meter.wishes_per_s(begin_s, end_s)
    for kinds in ((RENEWAL,), (LEASE, SYSTEM)):
        usual = meter.offered_per_s(CALM_S, SLOW_S, *kinds)
        found += max(0.0, meter.offered_per_s(begin_s, end_s, *kinds) - usual)
    return found + meter.offered_per_s(begin_s, end_s, STREAM, AUDIT_AGAIN)


def _expects(storm: Storm) -> tuple[Sentence, ...]:
    return (*_first(storm), *_of_retries(storm), *_of_nodes(storm), *_afterwards(storm))


def _first(storm: Storm) -> tuple[Sentence, ...]:
    """What is served before the storm, and first of all when it begins."""
    meter = storm.meter

    def normal(log: RunLog) -> str:
        served = meter.share(TENANT, SERVED, CALM_S, SLOW_S)
        renewed = meter.share(RENEWAL, SERVED, CALM_S, SLOW_S)
        demand(served >= 0.999, f"only {served:.2%} of what tenants ask is served")
        demand(renewed >= 0.999, f"only {renewed:.2%} of the renewals are served")
        rate = meter.offered_per_s(CALM_S, SLOW_S)
        p99 = meter.wish_latency_ms(0.99, CALM_S, SLOW_S)
        return f"{rate:.0f} requests/s, all served, 99 % of wishes within {p99} ms"

    def leases(log: RunLog) -> str:
        worst = min(
            (meter.share(kind, SERVED, SLOW_S + 1, REFUSES_S - 3), kind)
            for kind in (RENEWAL, LEASE)
        )
        demand(worst[0] >= 0.999, f"only {worst[0]:.1%} of each {worst[1]} were served")
        p99 = meter.latency_ms(RENEWAL, 0.99, SLOW_S + 1, REFUSES_S - 3)
        demand(p99 <= TIMING.ack_window_ms, f"renewals took {p99} ms")
        turned = meter.share(TENANT, REFUSED, SLOW_S + 1, REFUSES_S - 3)
        usual_ms = meter.latency_ms(TENANT, 0.5, CALM_S, SLOW_S)
        slow_ms = meter.latency_ms(TENANT, 0.5, SLOW_S + 1, REFUSES_S - 3)
        is_felt = turned > 0 or slow_ms >= FELT * usual_ms
        demand(is_felt, f"tenants wait {slow_ms} ms instead of {usual_ms}: it was no overload")
        told = f"{turned:.0%} are turned away, half of the others wait {slow_ms} ms instead of"
        return f"every renewal and lease, 99 % within {p99} ms; of tenants {told} {usual_ms}"

    return (
        Sentence("sc14.normal", "Before it, everything is served.", normal),
        Sentence("sc14.leases", "While the store is slow, renewals and leases come first.", leases),
    )


def _of_retries(storm: Storm) -> tuple[Sentence, ...]:
    """How much is sent again while the store is slow, and while it refuses."""

    def first_round(log: RunLog) -> str:
        usual = storm.meter.offered_per_s(CALM_S, SLOW_S)
        more = max(_again(storm, at_s, at_s + FIRST_ROUND_S) for at_s in (SLOW_S, REFUSES_S))
        demand(more <= usual, f"{more:.0f} requests/s were sent again, usual are {usual:.0f}")
        return f"{more / usual:.0%} of the usual {usual:.0f} requests/s were sent again"

    def retries(log: RunLog) -> str:
        usual = storm.meter.offered_per_s(CALM_S, SLOW_S)
        windows = [
            at_s
            for begin_s, end_s in ((SLOW_S, REFUSES_S), (REFUSES_S, BACK_S))
            for at_s in range(begin_s + FIRST_ROUND_S, end_s - RENEW_S + 1)
        ]
        worst, at_s = max((_again(storm, at, at + RENEW_S), at) for at in windows)
        demand(
            worst < 0.10 * usual,
            f"{worst / usual:.0%} of the usual load was sent again from second {at_s} on",
        )
        return f"at most {worst / usual:.1%} of the usual load in any {RENEW_S} s"

    return (
        Sentence(
            "sc14.first-round", "In the first round nobody asks more than once again.", first_round
        ),
        Sentence(
            "sc14.retries",
            "Beyond the first round, retries stay below 10 % of the normal load.",
            retries,
        ),
    )


def _of_nodes(storm: Storm) -> tuple[Sentence, ...]:
    """What becomes of those who only could not be heard."""

    def unfenced(log: RunLog) -> str:
        fenced = log.all(NodeChanged, lambda it: it.phase in (NodePhase.FENCED, NodePhase.LOST))
        demand(not fenced, f"{len(fenced)} nodes were fenced")
        marked = log.all(NodeChanged, lambda it: it.phase is NodePhase.UNKNOWN)
        return f"of {storm.size.agents} nodes {len(marked)} were marked and none was fenced"

    def spread(log: RunLog) -> str:
        streams = 2 * storm.size.agents
        most = storm.meter.opened_at_once(BACK_S, AT_ONCE_US)
        demand(most, "no stream was ended")
        demand(most <= 2 * streams // 5, f"{most} of {streams} streams were opened at once")
        return f"of {streams} streams at most {most} were opened within {AT_ONCE_US // 1_000} ms"

    return (
        Sentence("sc14.unfenced", "Nothing is fenced for our own deafness.", unfenced),
        Sentence(
            "sc14.spread", "Those who lose their streams at once do not come back at once.", spread
        ),
    )


def _afterwards(storm: Storm) -> tuple[Sentence, ...]:
    """That it is over when its cause is."""
    meter = storm.meter

    def recovered(log: RunLog) -> str:
        late = {at: why for at, why in meter.unwell.items() if at >= BACK_S + WITHIN_S}
        demand(not late, f"{len(late)} s of trouble, such as {next(iter(late.items()), None)}")
        last = max(meter.unwell, default=BACK_S)
        return f"all is as before {last + 1 - BACK_S} s after the store's return, and stays so"

    def stable(log: RunLog) -> str:
        usual = meter.offered_per_s(CALM_S, SLOW_S)
        after = (BACK_S + WITHIN_S, END_S - 5)
        more = _again(storm, *after)
        demand(more < 0.05 * usual, f"{more:.1f} requests/s are still sent again")
        before_ms = meter.wish_latency_ms(0.99, CALM_S, SLOW_S)
        after_ms = meter.wish_latency_ms(0.99, *after)
        demand(after_ms <= 2 * before_ms + 50, f"wishes take {after_ms} ms instead of {before_ms}")
        return f"{more / usual:.1%} is sent again, wishes take {after_ms} ms as {before_ms} before"

    return (
        Sentence("sc14.recovered", "All is well within 60 s of the store's return.", recovered),
        Sentence("sc14.stable", "There is no metastable state: it stays as it was before.", stable),
    )


def _scenario(attribute: str, size: StormSize) -> Scenario:
    return Scenario(
        name=f"holdfast.sim.scenarios.sc14_retry_storm:{attribute}",
        build=lambda world: _build(world, size),
        faults_ms=END_S * 1_000,
        settle_ms=1_000,
    )


def _build(world: World, size: StormSize) -> None:
    storm = Storm(world, size)
    world.check(storm.store_copy, storm.log, storm.meter)
    world.check(SentenceChecks(storm.log, _expects(storm)))


SCENARIO = _scenario("SCENARIO", StormSize(5_000, store_us=120))
SMALL = _scenario("SMALL", StormSize(100, store_us=92))
