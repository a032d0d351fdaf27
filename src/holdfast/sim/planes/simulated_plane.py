"""A simulated plane while it is built, and what its parts share.

A *trait* adds one part to it: a store with its first objects, servers, a scheduler, controllers,
nodes, people, faults, checkers. A world is a list of traits, which are applied in their order:

    build = world_of(store(defaults()), process_tables(), servers(), scheduler(), controllers(), …)

A world of several planes has a list for each (`join`). Every plane then sees its own machines,
stores and commits under their plain names, so that the same traits work in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.model.access.identity import Identity
from holdfast.model.errors import unreachable
from holdfast.model.plane import Plane
from holdfast.observe.watch_events import SERVERS
from holdfast.sim.cell import Cell, Factory, Seat, SimulatedMachine
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.facts import StateFact
from holdfast.sim.planes.node_health_taps import HeartbeatFilter
from holdfast.sim.planes.plane_scope import AcrossPlanes, scoped
from holdfast.sim.planes.process_table import Processes
from holdfast.sim.planes.shared_names import CLIENT_SERVERS
from holdfast.sim.world import World
from holdfast.store.memory import Keyspace

# The only plane of a world, unless the world names its planes.
TWO_SERVERS = Plane(servers=("server-1", "server-2"))

P = TypeVar("P", bound=Processes)
ServerFactory = Callable[[Seat, PlaneSettings], SimulatedMachine]


class SimulatedPlane:
    """See the module's docstring."""

    def __init__(
        self,
        world: World,
        plane: Plane = TWO_SERVERS,
        settings: PlaneSettings | None = None,
        *,
        whole: World | None = None,
    ) -> None:
        """`world` is what this plane sees of the `whole` world."""
        self.world, self.plane, self.whole = world, plane, whole or world
        self.settings = msgspec.structs.replace(settings or PlaneSettings(), plane=plane)
        self.keyspace = Keyspace()
        # What checkers know of the store, and the first of them.
        self.store_copy = StoreCopy()
        # The zone of each node, and the nodes' processes.
        self.zones: dict[str, str] = {}
        self._processes: Processes | None = None
        # What the controllers learn about heartbeats, in worlds with faults that hide them.
        self.heartbeats: HeartbeatFilter | None = None
        # With which settings each life of a server starts, and how the servers' clients are made.
        self.settings_of: Callable[[str], PlaneSettings] = lambda _name: self.settings
        self.component: Callable[[Factory], Factory] = lambda make: make
        world.perform(StateFact, lambda _cell, effect: world.fact(effect.fact))

    @property
    def processes(self) -> Processes:
        """The process tables of its nodes, for the traits that come after them."""
        return self.tables(Processes)

    @processes.setter
    def processes(self, processes: Processes) -> None:
        self._processes = processes

    def tables(self, kind: type[P]) -> P:
        """The process tables, for traits that need those of a kind."""
        if not isinstance(self._processes, kind):
            unreachable(f"this trait needs {kind.__name__} before it")
        return self._processes

    def add_servers(self, make: ServerFactory) -> None:
        """Add its servers, behind the addresses that components and scripted clients ask."""
        for name in self.plane.servers:
            self.world.add(
                name,
                lambda seat: make(seat, self._server_settings(seat.name)),
                store=self.plane.store,
                identity=f"system:server:{name}",
            )
        for address in (SERVERS, CLIENT_SERVERS):
            self.world.balance(address, self.plane.servers)

    def _server_settings(self, name: str) -> PlaneSettings:
        return msgspec.structs.replace(self.settings_of(name), plane=self.plane)

    def add(
        self,
        name: str,
        make: Factory,
        identity: str | Identity = "",
        *,
        reads_store: bool = False,
        abroad: Mapping[str, str | Identity] | None = None,
    ) -> Cell:
        """Add a client of the servers. Scripted ones read the store directly.

        `abroad` says who it is to the servers of other planes, by the name of the plane. A plane
        that is not in it refuses the client.
        """
        store = self.plane.store if reads_store else None
        cell = self.world.add(name, self.component(make), identity=identity or name, store=store)
        cell.abroad.update(abroad or {})
        return cell


Trait = Callable[[SimulatedPlane], None]


def world_of(
    *traits: Trait, plane: Plane = TWO_SERVERS, settings: PlaneSettings | None = None
) -> Callable[[World], None]:
    """How to build a world of one plane."""

    def build(world: World) -> None:
        build_plane(SimulatedPlane(world, plane, settings), traits)

    return build


Across = Callable[[Sequence[SimulatedPlane]], AcrossPlanes]


def join(
    planes: Mapping[Plane, Sequence[Trait]],
    *,
    settings: Mapping[Plane, PlaneSettings] | None = None,
    regions: Mapping[Plane, str] | None = None,
    across: Sequence[Across] = (),
) -> Callable[[World], None]:
    """How to build a world of several planes with a network between them.

    Each plane has its own `settings`. The computers of a plane are in its region, or where
    `regions` says: a global plane has none, and is by itself if nothing is said. Messages between
    regions take longer, `region_cut` cuts the link between two regions, and `partition` all links
    of a computer. A machine asks the servers of another plane at `NAME/servers`, as whom its
    `abroad` says. The checkers `across` see all planes.
    """

    def build(world: World) -> None:
        made = []
        for plane, traits in planes.items():
            where = (regions or {}).get(plane) or plane.region or plane.name
            own, of_plane = scoped(world, plane.name, where), (settings or {}).get(plane)
            made.append(SimulatedPlane(own, plane, of_plane, whole=world))
            build_plane(made[-1], traits)
        world.check(*(make(made) for make in across))

    return build


def build_plane(plane: SimulatedPlane, traits: Sequence[Trait]) -> None:
    """Apply traits in their order."""
    for trait in traits:
        trait(plane)
