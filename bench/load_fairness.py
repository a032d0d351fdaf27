"""Fairness in `bench/load`: the share of one tenant that sends fifty times as much."""

from __future__ import annotations

from bench.harness import figure
from bench.load_pictures import PLOTS
from bench.load_plane import (
    AFTER_S,
    CALM_S,
    SETTLE_S,
    STEADY,
    STORM_S,
    TENANTS,
    Plane,
    costs,
    streams,
)
from bench.load_plot import Curve, Panel, Span, draw

GREED = 50.0


def fair_share(total: float, demands: dict[str, float], whose: str) -> float:
    """The max-min fair share: a client gets less than another one only if it wants no more."""
    left, waiting = total, dict(sorted(demands.items(), key=lambda it: it[1]))
    while waiting:
        level = left / len(waiting)
        name, demand = next(iter(waiting.items()))
        got = min(demand, level)
        if name == whose:
            return got
        left -= got
        del waiting[name]
    return 0.0


async def fairness(plane: Plane, most: float) -> None:
    """One tenant sends fifty times as much as each of the others."""
    begin, end = CALM_S, CALM_S + STORM_S
    whole = end + AFTER_S
    usual = most / len(TENANTS)
    greedy = TENANTS[0]

    def rates(tenant: str) -> tuple[tuple[float, float], ...]:
        calm = STEADY * usual
        if tenant != greedy:
            return ((0.0, calm), (begin, usual), (end, calm))
        return ((0.0, calm), (begin, GREED * usual), (end, calm))

    seen, spent = await plane.run(streams(plane, rates), whole)
    got = {
        tenant: seen.rate(seen.good & seen.stream(tenant), begin + SETTLE_S, end)
        for tenant in TENANTS
    }
    demands = dict.fromkeys(TENANTS, usual) | {greedy: GREED * usual}
    share = fair_share(sum(got.values()), demands, greedy)
    figure(
        "load.fairness_excess_pct",
        100 * (got[greedy] - share) / share,
        "% of its share",
        peer="its share of all that was served, requests/s",
        peer_value=share,
        ratio=got[greedy] / share,
        goal="<= 10",
        greed=GREED,
        greedy_per_s=round(got[greedy], 1),
        others_per_s=round(sum(got.values()) / len(got), 1),
        poorest_per_s=round(min(got.values()), 1),
        usual_per_s=round(usual, 1),
        codes_of_others=seen.codes(seen.stream(*TENANTS[1:]) & seen.between(begin, end)),
        **costs(seen, spent),
    )
    curves = [
        Curve(
            f"{tenant}{', greedy' if tenant == greedy else ''}",
            *seen.per_second(seen.good & seen.stream(tenant), whole, step_s=1.0),
        )
        for tenant in TENANTS[:6]
    ]
    offered = Curve(
        "offered by the greedy", *seen.per_second(seen.stream(greedy), whole, by_due=True)
    )
    draw(
        PLOTS / "fairness.svg",
        f"One of {len(TENANTS)} tenants at {GREED:g} times the others",
        (
            Panel("served, six of the tenants", "requests/s", curves),
            Panel("offered", "requests/s", (offered,)),
        ),
        whole,
        (Span(f"{GREED:g}x", begin, end),),
    )
