"""The placing world with less room than work: classes of different value compete, and some preempt.

    python -m holdfast.sim run holdfast.sim.worlds.placing.contended:CONTENDED --seeds 0-99

Two tenants lend each other quota. Most work is reclaimable or borrows, so that important work is
placed by stopping other work, under the same faults as in the placing world. `preemption_checks`
says what must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.tenant import (
    CapacityClass,
    Lending,
    PriorityClass,
    PriorityClassSpec,
    Quota,
    QuotaSpec,
    Tenant,
)
from holdfast.model.meta import Object, ObjectMeta
from holdfast.sim.check import Settles
from holdfast.sim.plan import Act
from holdfast.sim.planes import invariants
from holdfast.sim.planes.checkers.commit_checks import ReservationClaims
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import Trait
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.worlds.placing.preemption_checks import (
    HeldPromises,
    PreemptedWork,
    StuckPreemptors,
)
from holdfast.sim.worlds.placing.scenario import (
    FAULTS_MS,
    HAZARDS,
    LENT_QUIET_MS,
    LENT_SETTLE_MS,
    WELL_WITHIN_MS,
    competing,
    placing,
)

NODES = 4
# Name, value, how it is charged, and whether it preempts.
CLASSES = (
    ("urgent", 100, CapacityClass.HARD, True),
    ("high", 50, CapacityClass.HARD, True),
    ("batch", 10, CapacityClass.RECLAIMABLE, False),
    ("spot", -10, CapacityClass.RECLAIMABLE, False),
)
# The world comes to rest in two minutes, and a reclaim may follow from another.
LENDING = Lending(notice_seconds=10)
NAMES = ("urgent", "urgent", "high", "high", "batch", "spot", "spot", "", "")


def objects() -> tuple[Object, ...]:
    """What exists before the run: two tenants of one cohort, which lend each other quota."""
    cohort = QuotaSpec(
        cohort="house",
        hard={"cpu": "6"},
        reclaimable={"cpu": "40"},
        borrowing={"cpu": "12"},
        lending=LENDING,
    )
    return (
        Region(ObjectMeta(name="eu"), spec=RegionSpec(jurisdictions=("eu",))),
        Region(ObjectMeta(name="us"), spec=RegionSpec(jurisdictions=("us",))),
        *(
            PriorityClass(
                ObjectMeta(name=name),
                spec=PriorityClassSpec(value=value, capacity_class=of, preempts=preempts),
            )
            for name, value, of, preempts in CLASSES
        ),
        *(Tenant(ObjectMeta(name=tenant)) for tenant in TENANTS),
        *(Quota(ObjectMeta(name="default", namespace=t), spec=cohort) for t in TENANTS),
    )


LENT_QUIET = invariants.quiet_after(LENT_QUIET_MS)

LAWS: tuple[Trait, ...] = (
    invariants.checked(lambda plane: ReservationClaims(plane.store_copy)),
    invariants.checked(lambda plane: PreemptedWork(plane.store_copy)),
    invariants.checked(
        lambda plane: Settles(
            "V6", StuckPreemptors(plane.store_copy).missing, within_ms=WELL_WITHIN_MS
        )
    ),
    invariants.checked(
        lambda plane: Settles("V7", HeldPromises(plane.store_copy).missing, within_ms=20_000)
    ),
)


def script(rng: Random) -> Sequence[Act]:
    """Low work first, so that the fleet is full; then work of all classes comes and goes."""
    acts = [Act(500 + 100 * i, "operator", _workload(rng, i, "spot")) for i in range(8)]
    acts += [
        Act(between(rng, 8_000, FAULTS_MS - 20_000), "operator", _act(rng, number))
        for number in range(8, 8 + between(rng, 40, 70))
    ]
    return sorted(acts, key=lambda act: act.at_ms)


def _act(rng: Random, number: int) -> dict[str, Any]:
    some, node = between(rng, 0, 99), f"node-{between(rng, 0, NODES - 1)}"
    work = _workload(rng, number, pick(rng, NAMES))
    return pick(
        rng,
        (
            work,
            work,
            work,
            {"do": "scale", "some": some, "replicas": between(rng, 0, 6)},
            {"do": "delete", "some": some | 1},
            {"do": "kill", "some": some},
            {"do": "cordon", "node": node, "on": bool(some % 2)},
            {"do": "taint", "node": node, "on": bool(some % 2)},
            {"do": "drain", "node": node, "on": bool(some % 2)},
            {"do": "quota", "tenant": pick(rng, TENANTS), "cpu": between(rng, 3, 9)},
        ),
    )


def _workload(rng: Random, number: int, of: str) -> dict[str, Any]:
    return {
        "do": "create",
        "name": f"w{number}",
        "tenant": pick(rng, TENANTS),
        "replicas": between(rng, 1, 4),
        "cpu": pick(rng, ("500m", "1", "2", "3")),
        "gpu": pick(rng, ("", "", "", "", "1")),
        "class": of,
        "urgent": False,
        "gang": False,
        "eu": False,
        "keep": False,
        "budget": pick(rng, (None, None, 1)),
        "port": pick(rng, (0, 0, 0, 8080)),
        "grace": 1,
    }


CONTENDED = Scenario(
    name="holdfast.sim.worlds.placing.contended:CONTENDED",
    build=placing(NODES, competing(), *LAWS, objects=objects(), quiet=LENT_QUIET),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=LENT_SETTLE_MS,
    script=script,
)
