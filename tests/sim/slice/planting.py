"""How bugs are planted in the slice, and where they are looked for."""

from __future__ import annotations

from holdfast.sim.mutants import Mutant, Plant, swap

_WORLD = "holdfast.sim.worlds.slice.scenario:"
WHOLE, QUICK, CALM = f"{_WORLD}SCENARIO", f"{_WORLD}QUICK", f"{_WORLD}CALM"
_TIGHT = "holdfast.sim.worlds.slice.tight:"
TIGHT, ZONE, SKEWED = f"{_TIGHT}TIGHT", f"{_TIGHT}ZONE", f"{_TIGHT}SKEWED"
TAKEOVER = f"{_TIGHT}TAKEOVER"
_CROWDED = "holdfast.sim.worlds.slice.crowded:"
CROWDED, LOSSY = f"{_CROWDED}CROWDED", f"{_CROWDED}LOSSY"
HUNG = "holdfast.sim.worlds.slice.hung:HUNG"
_NAMES = "holdfast.sim.worlds.slice.names:"
REUSED, TWO_MACHINES = f"{_NAMES}REUSED", f"{_NAMES}TWO_MACHINES"
RETIMED = "holdfast.sim.worlds.slice.timings:RETIMED"
LOWERED = "holdfast.sim.worlds.slice.timings:LOWERED"
ONE = "holdfast.sim.worlds.slice.one_address:ONE"

AGENT = "holdfast.agent."
COMMIT = "holdfast.commit."
CORRECT = "holdfast.correct."
MODEL = "holdfast.model."
OBSERVE = "holdfast.observe."
PROPOSE = "holdfast.propose."
SHIM = "holdfast.sim.worlds.slice.processes:Processes."

# A mark comes long after the last renewal, which hides mistakes about the end of work. Safety must
# not rest on that, so some bugs are looked for where marks come early; alone that does no harm.
MARKED_EARLY = swap(CORRECT + "nodes:MARK_AFTER_HALF_PERIODS", 3)


def bug(name: str, mistake: str, *plants: Plant, world: str = QUICK) -> Mutant:
    return Mutant(name, mistake, world, plants)


def benign(name: str, change: str, *plants: Plant, world: str = QUICK) -> Mutant:
    return Mutant(name, change, world, plants, benign=True)
