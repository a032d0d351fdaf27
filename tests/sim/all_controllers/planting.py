"""How bugs are planted in the controllers, and in which worlds the search runs."""

from __future__ import annotations

from holdfast.sim.mutants import Mutant, Plant

_WORLD = "holdfast.sim.worlds.all_controllers.scenario:"
WHOLE, CALM = f"{_WORLD}SCENARIO", f"{_WORLD}CALM"
CALENDARS = "holdfast.sim.worlds.all_controllers.calendars:CALENDARS"
DARK = "holdfast.sim.worlds.all_controllers.dark_zones:DARK"
MEMORIES = "holdfast.sim.worlds.all_controllers.memories:MEMORIES"
ROLLING = "holdfast.sim.worlds.all_controllers.rollouts_under_faults:ROLLING"

COMMIT = "holdfast.commit."
CORRECT = "holdfast.correct."
MODEL = "holdfast.model."


def bug(name: str, mistake: str, *plants: Plant, world: str = WHOLE) -> Mutant:
    return Mutant(name, mistake, world, plants)


def benign(name: str, change: str, *plants: Plant, world: str = WHOLE) -> Mutant:
    return Mutant(name, change, world, plants, benign=True)
