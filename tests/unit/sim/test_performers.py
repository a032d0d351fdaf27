"""What a simulated world performs: everything that its machines may want.

The shells of `host/` are held to the unions by mypy. A world looks its performers up in a table,
which is searched once for each effect of a run, so it is compared with the unions here.
"""

from __future__ import annotations

from typing import get_args

from holdfast.agent.runtime_protocol import RuntimeEffect
from holdfast.model.audit.journal_protocol import JournalEffect
from holdfast.model.machine import Effect
from holdfast.model.nodes.fence import FenceTiming
from holdfast.sim.planes.process_table import Processes
from holdfast.sim.world import World
from holdfast.sim.worlds.audit.scenario import SimulatedJournals


def test_a_world_performs_each_effect_of_all_machines() -> None:
    """One that is forgotten would break each run in which a machine wants it. [N6]"""
    assert set(World(0).performers) == set(get_args(Effect))


def test_the_worlds_with_nodes_and_disks_perform_what_these_add() -> None:
    """[N6]"""
    world = World(0)
    own = set(world.performers)
    Processes(world, FenceTiming())
    assert set(world.performers) - own == set(get_args(RuntimeEffect))
    own = set(world.performers)
    SimulatedJournals(world)
    assert set(world.performers) - own == set(get_args(JournalEffect))
