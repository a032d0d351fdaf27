"""The store slows tenfold and then refuses everything for a minute, below thousands of agents.

Clients whose requests fail would retry at once and more often; then the returning store would find
a plane that is busy refusing requests. No component is scripted: two servers behind their flow
control, all controllers, a scheduler, the agents with their work and the programs of some tenants
are production machines. When the store returns, its history is compacted, so that the servers list
everything again and end all their streams at once: all clients reconnect.

`SCENARIO` has 5,000 agents; `SMALL` has a hundred, on machines that are slower in proportion, so
that they are as busy. The flow control is the same: it measures how slow a machine is.
"""

from __future__ import annotations

from holdfast.model.kinds.node import NodePhase
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.run_log import NodeChanged, RunLog
from holdfast.sim.scenarios.sc14_meter import (
    EARLY_LIST,
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
# An intent that begins this long before the storm is done when it comes, also after a refusal.
SETTLED_S = 7
# An overload affects tenants when the median latency grows by this factor, or requests are refused.
OVERLOAD_FACTOR = 4


def _retries_per_s(storm: Storm, begin_s: int, end_s: int) -> float:
    """Retries per second: requests that follow from earlier ones without an answer.

    For tenants, the requests beyond their intents; for components, those beyond the usual rate; for
    streams, all of them, since none would have ended; for resync lists, those before their period.
    """
    meter = storm.meter
    found = meter.offered_per_s(begin_s, end_s, TENANT) - meter.intents_per_s(begin_s, end_s)
    for kinds in ((RENEWAL,), (LEASE, SYSTEM)):
        usual = meter.offered_per_s(CALM_S, SLOW_S, *kinds)
        found += max(0.0, meter.offered_per_s(begin_s, end_s, *kinds) - usual)
    return found + meter.offered_per_s(begin_s, end_s, STREAM, EARLY_LIST)


def _sentences(storm: Storm) -> tuple[Sentence, ...]:
    return (
        *_about_precedence(storm),
        *_about_retries(storm),
        *_about_nodes(storm),
        *_about_recovery(storm),
    )


def _about_precedence(storm: Storm) -> tuple[Sentence, ...]:
    """The service before the storm, and the requests with precedence when it begins."""
    meter = storm.meter

    def normal(log: RunLog) -> str:
        served = meter.share(TENANT, SERVED, CALM_S, SLOW_S)
        renewed = meter.share(RENEWAL, SERVED, CALM_S, SLOW_S)
        least = storm.size.served_min
        demand(served >= least, f"only {served:.2%} of the tenants' requests are served")
        intents = meter.intent_success_share(CALM_S, SLOW_S - SETTLED_S)
        demand(intents >= 0.999, f"only {intents:.2%} of the tenants' intents succeed")
        demand(renewed >= 0.999, f"only {renewed:.2%} of the renewals are served")
        rate = meter.offered_per_s(CALM_S, SLOW_S)
        p99 = meter.intent_latency_ms(0.99, CALM_S, SLOW_S)
        return f"{rate:.0f} requests/s, {served:.1%} served, 99 % of intents within {p99} ms"

    def leases(log: RunLog) -> str:
        worst = min(
            (meter.share(kind, SERVED, SLOW_S + 1, REFUSES_S - 3), kind)
            for kind in (RENEWAL, LEASE)
        )
        demand(worst[0] >= 0.999, f"only {worst[0]:.1%} of {worst[1]} requests were served")
        p99 = meter.latency_ms(RENEWAL, 0.99, SLOW_S + 1, REFUSES_S - 3)
        demand(p99 <= TIMING.ack_window_ms, f"renewals took {p99} ms")
        refused = meter.share(TENANT, REFUSED, SLOW_S + 1, REFUSES_S - 3)
        usual_ms = meter.latency_ms(TENANT, 0.5, CALM_S, SLOW_S)
        slow_ms = meter.latency_ms(TENANT, 0.5, SLOW_S + 1, REFUSES_S - 3)
        is_overload = refused > 0 or slow_ms >= OVERLOAD_FACTOR * usual_ms
        demand(is_overload, f"tenants wait {slow_ms} ms instead of {usual_ms}: no overload")
        tenants = f"{refused:.0%} are refused, the median latency is {slow_ms} ms instead of"
        return f"all renewals and leases, 99 % within {p99} ms; of tenants {tenants} {usual_ms}"

    return (
        Sentence("sc14.normal", "Before the storm, every intent succeeds.", normal),
        Sentence("sc14.leases", "While the store is slow, renewals and leases come first.", leases),
    )


def _about_retries(storm: Storm) -> tuple[Sentence, ...]:
    """How many requests are retries while the store is slow, and while it refuses."""

    def first_round(log: RunLog) -> str:
        usual = storm.meter.offered_per_s(CALM_S, SLOW_S)
        more = max(
            _retries_per_s(storm, at_s, at_s + FIRST_ROUND_S) for at_s in (SLOW_S, REFUSES_S)
        )
        demand(more <= usual, f"{more:.0f} retries/s, and the usual load is {usual:.0f} requests/s")
        return f"retries were {more / usual:.0%} of the usual {usual:.0f} requests/s"

    def retries(log: RunLog) -> str:
        usual = storm.meter.offered_per_s(CALM_S, SLOW_S)
        windows = [
            at_s
            for begin_s, end_s in ((SLOW_S, REFUSES_S), (REFUSES_S, BACK_S))
            for at_s in range(begin_s + FIRST_ROUND_S, end_s - RENEW_S + 1)
        ]
        worst, at_s = max((_retries_per_s(storm, at, at + RENEW_S), at) for at in windows)
        demand(
            worst < 0.10 * usual,
            f"retries were {worst / usual:.0%} of the usual load from second {at_s} on",
        )
        return f"at most {worst / usual:.1%} of the usual load in any {RENEW_S} s"

    return (
        Sentence(
            "sc14.first-round", "In the first round no client retries more than once.", first_round
        ),
        Sentence(
            "sc14.retries",
            "Beyond the first round, retries stay below 10 % of the normal load.",
            retries,
        ),
    )


def _about_nodes(storm: Storm) -> tuple[Sentence, ...]:
    """What happens to nodes whose heartbeats the servers could not handle."""

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
        Sentence(
            "sc14.unfenced", "No node is fenced because the servers were overloaded.", unfenced
        ),
        Sentence(
            "sc14.spread",
            "Clients that lose their streams at once do not reconnect at once.",
            spread,
        ),
    )


def _about_recovery(storm: Storm) -> tuple[Sentence, ...]:
    """The recovery after the store's return."""
    meter = storm.meter

    def recovered(log: RunLog) -> str:
        late = {at: why for at, why in meter.problems.items() if at >= BACK_S + WITHIN_S}
        demand(not late, f"{len(late)} s with problems, such as {next(iter(late.items()), None)}")
        last = max(meter.problems, default=BACK_S)
        return (
            f"the plane is as before {last + 1 - BACK_S} s after the store's return, and stays so"
        )

    def stable(log: RunLog) -> str:
        usual = meter.offered_per_s(CALM_S, SLOW_S)
        after = (BACK_S + WITHIN_S, END_S - 5)
        more = _retries_per_s(storm, *after)
        demand(more < 0.05 * usual, f"there are still {more:.1f} retries/s")
        before_ms = meter.intent_latency_ms(0.99, CALM_S, SLOW_S)
        after_ms = meter.intent_latency_ms(0.99, *after)
        demand(after_ms <= 2 * before_ms + 50, f"intents take {after_ms} ms instead of {before_ms}")
        return f"retries are {more / usual:.1%}; intents take {after_ms} ms, {before_ms} ms before"

    return (
        Sentence(
            "sc14.recovered", "The plane recovers within 60 s of the store's return.", recovered
        ),
        Sentence(
            "sc14.stable", "There is no metastable state: the plane stays as it was before.", stable
        ),
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
    world.check(SentenceChecks(storm.log, _sentences(storm)))


SCENARIO = _scenario("SCENARIO", StormSize(5_000, store_us=120))
SMALL = _scenario("SMALL", StormSize(100, store_us=84, served_min=0.99))
