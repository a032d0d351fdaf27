"""Servers of two versions over one store, until an operator raises the plane's format.

    python -m holdfast.sim run holdfast.sim.worlds.versions.raised:RAISED --seeds 0-99

For the first half it is the world of `mixed`. Then the format is raised to one that only the next
version knows, while servers of this version run and have transactions in flight. From that revision
on none of them writes anything. They are replaced a while later, and the invariants of the
end-to-end world hold all the time.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.commit.record_encoding import encode
from holdfast.model import keys
from holdfast.model.plane_format import PlaneFormat
from holdfast.model.transaction import Put, Transaction
from holdfast.sim.cell import Seat
from holdfast.sim.check import Checker, Commit
from holdfast.sim.plan import Hazard
from holdfast.sim.planes import invariants
from holdfast.sim.planes.simulated_plane import world_of
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.scenario import SERVER_NAMES
from holdfast.sim.worlds.versions.mixed import MIXED, MixedServer, two_versions
from holdfast.sim.worlds.versions.newer import NEXT_FORMAT

RAISED_MS = 60_000
# This long after it the operator has replaced the servers that are too old.
REPLACED_MS = 15_000

HAZARDS = (
    *(hazard for hazard in MIXED.hazards if hazard.kind != "newer_type"),
    Hazard("store_late", 120, for_ms=(1_000, 20_000), amount=(50, 600), share=0.6),
    Hazard("pause", 120, for_ms=(1_000, 20_000), amount=(0, 8), only="server", share=0.6),
)


class FormatRaise(Checker):
    """FORMAT: once the format is raised, no server writes that does not know it."""

    invariants = ("FORMAT",)

    def __init__(self, world: World) -> None:
        self.is_raised = False
        world.post(RAISED_MS * 1000, lambda *_: self._raise(world), None, None)
        world.post((RAISED_MS + REPLACED_MS) * 1000, lambda *_: self._replace(world), None, None)

    def server(self, seat: Seat, settings: PlaneSettings) -> MixedServer:
        """A life of a server: of either version at first, and then only of the next one."""
        return MixedServer(seat, settings, is_newer=True if self.is_raised else None)

    def _raise(self, world: World) -> None:
        put = Put(keys.plane_format(), encode(PlaneFormat(NEXT_FORMAT)))
        world.storage.write(world.stores["store"], Transaction((), (put,)), "the operator")
        self.is_raised = True

    def _replace(self, world: World) -> None:
        for name in SERVER_NAMES:
            if self._is_too_old(world, name):
                world.crash(world.cells[name], 0)

    def on_commit(self, world: World, commit: Commit) -> None:
        if self.is_raised and self._is_too_old(world, commit.author):
            what = [change.key for change in commit.changes]
            self.violated("FORMAT", f"{commit.author} is too old for the plane and wrote {what}")

    @staticmethod
    def _is_too_old(world: World, name: str) -> bool:
        machine = world.cells[name].machine if name in world.cells else None
        return isinstance(machine, MixedServer) and not machine.is_newer


def build(world: World) -> None:
    """Servers of two versions until the format is raised."""
    raising = FormatRaise(world)
    world_of(*two_versions(raising.server), invariants.checked(lambda _plane: raising))(world)


RAISED = msgspec.structs.replace(
    MIXED, name="holdfast.sim.worlds.versions.raised:RAISED", build=build, hazards=HAZARDS
)
