"""Gangs among other work, on few nodes: most do not fit at the same time.

    python -m holdfast.sim run holdfast.sim.worlds.placing.gang_worlds:GANGS --seeds 0-99

The plane and the faults are those of the placing world. In `LARGE_GANGS` any gang of more than two
members is bound by a reservation. `CONTENDED_GANGS` is the contended world with gangs of all
classes, rigid and elastic, some within one zone or region: they preempt and are preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from holdfast.model.kinds.tenant import Quota
from holdfast.model.meta import Object
from holdfast.sim.check import Settles
from holdfast.sim.plan import Act
from holdfast.sim.planes.checkers.liveness import PlaceableReplicas
from holdfast.sim.planes.initial_objects import defaults
from holdfast.sim.planes.simulated_plane import SimulatedPlane
from holdfast.sim.randomness import pick
from holdfast.sim.worlds.placing import contended
from holdfast.sim.worlds.placing.gang_checks import GangsProceed, WholeGangs
from holdfast.sim.worlds.placing.gang_preemption_checks import PreemptedGangs, StuckGangs
from holdfast.sim.worlds.placing.scenario import (
    LENT_SETTLE_MS,
    SCENARIO,
    WELL_WITHIN_MS,
    competing,
    placing,
    script,
)

NODES = 8
PLACED_WITHIN_MS = 20_000
LENT_QUIET = contended.LENT_QUIET


def whole_gangs(plane: SimulatedPlane) -> None:
    """Gangs start as a whole, and proceed after the faults."""
    store_copy = plane.store_copy
    gangs = GangsProceed(store_copy, PlaceableReplicas(store_copy))
    plane.world.check(WholeGangs(store_copy))
    plane.world.check(
        Settles("V2", gangs.waiting, within_ms=PLACED_WITHIN_MS),
        Settles("GANG", gangs.left, within_ms=WELL_WITHIN_MS),
        Settles("GANG-BLOCK", gangs.mutual_block, within_ms=PLACED_WITHIN_MS),
    )


def gang_script(rng: Random) -> Sequence[Act]:
    """The acts of the placing world, with gangs: some rigid, some that go on with fewer members."""
    acts = []
    for act in script(rng, NODES):
        body = act.body
        if body["do"] == "create" and pick(rng, (True, True, False)):
            body = {**body, "gang": True, "spare": pick(rng, (0, 0, 2)), "gpu": "", "port": 0}
        acts.append(msgspec.structs.replace(act, body=body))
    return acts


def objects() -> tuple[Object, ...]:
    """Those of the placing world, with a shorter notice before what was lent is taken back."""
    found = []
    for it in defaults(cpu=str(NODES)):
        if isinstance(it, Quota):
            spec = msgspec.structs.replace(it.spec, lending=contended.LENDING)
            it = msgspec.structs.replace(it, spec=spec)
        found.append(it)
    return tuple(found)


GANGS = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.placing.gang_worlds:GANGS",
    build=placing(NODES, competing(), whole_gangs, objects=objects(), quiet=LENT_QUIET),
    settle_ms=LENT_SETTLE_MS,
    script=gang_script,
)

LARGE_GANGS = msgspec.structs.replace(
    GANGS,
    name="holdfast.sim.worlds.placing.gang_worlds:LARGE_GANGS",
    build=placing(
        NODES,
        competing(gang_together_max=2),
        whole_gangs,
        objects=objects(),
        quiet=LENT_QUIET,
    ),
)


def contending_gangs(plane: SimulatedPlane) -> None:
    """Gangs preempt and are preempted as a whole, or as far as they can spare members."""
    store_copy = plane.store_copy
    stuck = StuckGangs(store_copy, PlaceableReplicas(store_copy))
    plane.world.check(
        PreemptedGangs(store_copy), Settles("V6", stuck.missing, within_ms=WELL_WITHIN_MS)
    )


def contended_script(rng: Random) -> Sequence[Act]:
    """The acts of the contended world, of which half create gangs."""
    acts = []
    for act in contended.script(rng):
        body = act.body
        if body["do"] == "create" and pick(rng, (True, False)):
            more = {
                "gang": True,
                "class": pick(rng, ("urgent", "high", "batch", "spot", "spot")),
                "spare": pick(rng, (0, 0, 1, 2)),
                "within": pick(rng, ("", "", "zone", "region")),
                "within_required": pick(rng, (True, True, False)),
                "gpu": "",
                "port": 0,
            }
            body = {**body, **more}
        acts.append(msgspec.structs.replace(act, body=body))
    return acts


CONTENDED_GANGS = msgspec.structs.replace(
    contended.CONTENDED,
    name="holdfast.sim.worlds.placing.gang_worlds:CONTENDED_GANGS",
    build=placing(
        contended.NODES,
        competing(),
        *contended.LAWS,
        whole_gangs,
        contending_gangs,
        objects=contended.objects(),
        quiet=LENT_QUIET,
    ),
    script=contended_script,
)
