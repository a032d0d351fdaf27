"""How bugs are planted in the end-to-end world, and in which worlds the search runs."""

from __future__ import annotations

from holdfast.sim.mutants import Mutant, Plant, swap

_WORLD = "holdfast.sim.worlds.end_to_end.scenario:"
WHOLE, QUICK, CALM = f"{_WORLD}SCENARIO", f"{_WORLD}QUICK", f"{_WORLD}CALM"
_TIGHT = "holdfast.sim.worlds.end_to_end.tight:"
TIGHT, ZONE, SKEWED = f"{_TIGHT}TIGHT", f"{_TIGHT}ZONE", f"{_TIGHT}SKEWED"
TAKEOVER = f"{_TIGHT}TAKEOVER"
_CROWDED = "holdfast.sim.worlds.end_to_end.crowded:"
CROWDED, LOSSY = f"{_CROWDED}CROWDED", f"{_CROWDED}LOSSY"
HUNG = "holdfast.sim.worlds.end_to_end.hung_servers:HUNG"
_NAMES = "holdfast.sim.worlds.end_to_end.node_names:"
REUSED, TWO_MACHINES = f"{_NAMES}REUSED", f"{_NAMES}TWO_MACHINES"
RETIMED = "holdfast.sim.worlds.end_to_end.fence_timings:RETIMED"
LOWERED = "holdfast.sim.worlds.end_to_end.fence_timings:LOWERED"
ONE = "holdfast.sim.worlds.end_to_end.one_address:ONE"

AGENT = "holdfast.agent."
COMMIT = "holdfast.commit."
CORRECT = "holdfast.correct."
MODEL = "holdfast.model."
OBSERVE = "holdfast.observe."
PROPOSE = "holdfast.propose."
SHIM = "holdfast.sim.planes.process_table:Processes."

# A mark comes long after the last renewal, which hides mistakes about the end of work. Safety must
# not rest on that, so the search for some bugs uses early marks; alone they do no harm.
MARKED_EARLY = swap(CORRECT + "nodes.controller:MARK_AFTER_HALF_PERIODS", 3)


def bug(name: str, mistake: str, *plants: Plant, world: str = QUICK) -> Mutant:
    return Mutant(name, mistake, world, plants)


def benign(name: str, change: str, *plants: Plant, world: str = QUICK) -> Mutant:
    return Mutant(name, change, world, plants, benign=True)
