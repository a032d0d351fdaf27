"""How far tenants are from their fair part one window after fairness was suspended.

In virtual time, with the whole scheduler. Four tenants of different weights keep work waiting on a
full plane. For a window fairness is suspended, and one tenant takes most of the plane with work
that runs for long. The gap of a waiting tenant is what is missing of its entitlement, in per cent
of that; the figure is the largest of any tenant one window after the end. Each gap is a mean over
the last tenth of the window, so that one replica more or less does not count. The peer is the gap
at the end of the suspension.
"""

from __future__ import annotations

import random
from datetime import timedelta

from bench.harness import figure
from holdfast.model.kinds.schedulerpolicy import FairnessRules, Suspension
from holdfast.model.kinds.tenant import FairShare
from holdfast.model.time import timestamp
from tests.contended import ContendedPlane

WINDOW_S = 1_800
NODES, CPUS = 5, 16
SEEDS = (1,)
STEP_MS = 5_000
# Weight, cpus of a replica, how long it runs, and how many wait.
TENANTS = {
    "long": (1, "1", 240_000, 48),
    "even": (1, "1", 60_000, 48),
    "twice": (2, "1", 60_000, 48),
    "short": (1, "1", 20_000, 48),
}


def contended(seed: int) -> ContendedPlane:
    rng = random.Random(seed)
    plane = ContendedPlane(NODES, CPUS, FairnessRules(WINDOW_S // 4, WINDOW_S), seed)
    for name, (weight, cpu, life_ms, waiting) in TENANTS.items():

        def keep(
            name: str = name, cpu: str = cpu, life_ms: int = life_ms, waiting: int = waiting
        ) -> None:
            plane.keep_waiting(name, waiting, cpu, rng.randint(life_ms // 2, life_ms * 3 // 2))

        plane.tenant(name, keep, fairness=FairShare(weight=weight))
    return plane


def gaps(plane: ContendedPlane, ms: int) -> dict[str, float]:
    """The mean gap of each tenant, in per cent of its mean entitlement."""
    shares: dict[str, float] = {}
    entitled: dict[str, float] = {}
    for _ in range(ms // STEP_MS):
        plane.run(STEP_MS)
        for name, it in plane.standings().items():
            shares[name] = shares.get(name, 0.0) + it.share
            entitled[name] = entitled.get(name, 0.0) + it.entitlement
    return {it: max(0.0, 100 * (1 - shares[it] / whole)) for it, whole in entitled.items() if whole}


def lapse(seed: int) -> tuple[float, float]:
    """The largest gap at the end of a suspension, and one window later."""
    plane = contended(seed)
    plane.run(WINDOW_S * 100)
    now = timestamp(plane.rig.now.wall_ms)
    until = now + timedelta(seconds=WINDOW_S)
    rules = FairnessRules(WINDOW_S // 4, WINDOW_S, Suspension(now, until, "a benchmark"))
    plane.set_rules(rules)
    tenth_ms = WINDOW_S * 100
    plane.run(WINDOW_S * 1_000 - tenth_ms)
    during = gaps(plane, tenth_ms)
    plane.run(WINDOW_S * 1_000 - tenth_ms)
    after = gaps(plane, tenth_ms)
    return max(during.values()), max(after.values())


def main() -> None:
    found = [lapse(seed) for seed in SEEDS]
    figure(
        "fairness.max_debt_after_window",
        max(after for _, after in found),
        "%",
        peer="at the end of the suspension",
        peer_value=min(during for during, _ in found),
        goal="<= 5",
        window_s=WINDOW_S,
        half_life_s=WINDOW_S // 4,
        lapse_s=WINDOW_S,
        seeds=len(SEEDS),
    )


if __name__ == "__main__":
    main()
