"""Traits for the parts of a plane: store, servers, schedulers, controllers, nodes and people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.agent.agent import Agent
from holdfast.agent.node_facts import NodeFacts
from holdfast.commit.context import PlaneSettings
from holdfast.correct.all_controllers import all_controllers
from holdfast.correct.controller_runner import ControllerRunner
from holdfast.model.access.identity import Identity
from holdfast.model.meta import Object
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.requests import Create
from holdfast.propose.scheduler import Scheduler
from holdfast.sim.cell import Cell, Factory, Seat, SimulatedMachine
from holdfast.sim.planes.checkers.witness import FOLLOWER, WatchFollower
from holdfast.sim.planes.component_taps import tap_component
from holdfast.sim.planes.hollow_node import HollowNode
from holdfast.sim.planes.initial_objects import apply_requests
from holdfast.sim.planes.node_health_taps import HeartbeatFilter
from holdfast.sim.planes.process_table import Processes
from holdfast.sim.planes.scheduler_taps import Stall, tap_scheduler
from holdfast.sim.planes.shared_names import ADMIN
from holdfast.sim.planes.simulated_plane import ServerFactory, SimulatedPlane, Trait
from holdfast.sim.planes.simulated_server import SimServer
from holdfast.sim.world import World
from holdfast.store.memory import Keyspace

OPERATOR = "operator"

Processing = Callable[[World, FenceTiming], Processes]
# Given an identity and how its machine is made: how to make a machine that also observes that one.
Tap = Callable[[str, Factory], Factory]


# The store and the servers ------------------------------------------------------------------------


def store(*objects: Object, tokens_max: int | None = None) -> Trait:
    """A store that holds these objects, and nothing else, when the run begins."""

    def add(plane: SimulatedPlane) -> None:
        if tokens_max is not None:
            plane.keyspace = Keyspace(tokens_max=tokens_max)
        fill(plane, objects, "furnish")
        plane.world.add_store(plane.plane.store, keyspace=plane.keyspace)

    return add


def objects(*more: Object) -> Trait:
    """More objects that exist when the run begins."""
    return lambda plane: fill(plane, more, "more")


def fill(plane: SimulatedPlane, given: Sequence[Object], purpose: str) -> None:
    """Create objects before the run begins. `purpose` names the random stream of their uids."""
    requests = [Create(obj) for obj in given]
    apply_requests(plane.keyspace, plane.world.rng(purpose), requests)


def servers(make: ServerFactory | None = None) -> Trait:
    """The plane's servers; `make` makes each life of one, with its settings."""

    def add(plane: SimulatedPlane) -> None:
        plane.add_servers(make or SimServer)

    return add


def configured(settings_of: Callable[[str], PlaneSettings]) -> Trait:
    """The settings with which each life of a server starts. It comes before the servers."""

    def choose(plane: SimulatedPlane) -> None:
        plane.settings_of = settings_of

    return choose


def clients(component: Callable[[Factory], Factory]) -> Trait:
    """How all clients of the servers are made. It comes before them."""

    def choose(plane: SimulatedPlane) -> None:
        plane.component = component

    return choose


# Schedulers and controllers -----------------------------------------------------------------------


def scheduler(plane: SimulatedPlane) -> None:
    """The scheduler `main`."""
    add_scheduler(plane, "main", "scheduler")


def add_scheduler(
    plane: SimulatedPlane,
    name: str,
    cell: str,
    *,
    is_observed: bool = False,
    stall: tuple[int, Stall] | None = None,
    tap: Tap = tap_component,
    **options: Any,
) -> Cell:
    """Add a scheduler at once; `options` are those of `Scheduler`.

    `tap` observes it by its identity. Of one that is observed, every request and answer is a fact;
    `stall` as in `SchedulerTap`.
    """

    def make(seat: Seat) -> SimulatedMachine:
        return Scheduler(name, seat.rng, **options)

    identity = f"system:scheduler:{name}"
    tapped = tap(identity, tap_scheduler(name, make, stall) if is_observed else make)
    return plane.add(cell, tapped, identity)


def controllers(*cells: str, asked: tuple[str, ...] = (), tap: Tap = tap_component) -> Trait:
    """Runners of all controllers, of which one leads each controller. `tap` observes them.

    `asked` are the addresses at which they ask for heartbeat reports; usually those of the servers.
    """

    def add(plane: SimulatedPlane) -> None:
        servers = asked or plane.plane.servers

        def team(seat: Seat) -> ControllerRunner:
            return ControllerRunner(all_controllers(), seat.rng, name=seat.name, servers=servers)

        make: Factory = team if plane.heartbeats is None else plane.heartbeats.around(team)
        for cell in cells:
            plane.add(cell, tap("", make), "system:controllers")

    return add


def hidden_heartbeats(plane: SimulatedPlane) -> None:
    """Faults that hide heartbeats from the controllers, which come after this trait."""
    plane.heartbeats = HeartbeatFilter(plane.world, plane.zones, plane.settings.fence)


# Nodes --------------------------------------------------------------------------------------------


def process_tables(make: Processing | None = None) -> Trait:
    """What runs on the nodes, by the shims that hold it: the ground truth, and its faults."""

    def add(plane: SimulatedPlane) -> None:
        plane.processes = (make or Processes)(plane.world, plane.settings.fence)

    return add


# Where the nodes are of a plane that is not of a region.
REGION = "eu"


def equal_nodes(
    count: int, *, zones: str = "abc", has_installation: bool = False, tap: Tap = tap_component
) -> Trait:
    """Equal nodes with real agents, which start processes, in these zones of the plane's region.

    `tap` observes them by their identity.
    """

    def add(plane: SimulatedPlane) -> None:
        region = plane.plane.region or REGION
        for number in range(count):
            name = f"agent-{number}"
            facts = NodeFacts(
                region=region,
                zone=f"{region}-{zones[number % len(zones)]}",
                capacity={"cpu": "4", "memory": "16Gi"},
                installation=name if has_installation else "",
            )
            add_node(plane, name, facts, tap=tap)

    return add


def add_node(
    plane: SimulatedPlane, name: str, facts: NodeFacts, *, tap: Tap = tap_component
) -> Cell:
    """Add a node with a real agent at once."""

    def make(seat: Seat) -> SimulatedMachine:
        return Agent(name, facts, seat.rng)

    return _add_node(plane, name, facts, tap(f"system:node:{name}", make))


def hollow_nodes(facts: Mapping[str, NodeFacts]) -> Trait:
    """Nodes that only report: what is bound to them runs at once, without processes."""

    def add_one(plane: SimulatedPlane, name: str, of_node: NodeFacts) -> None:
        def make(seat: Seat) -> SimulatedMachine:
            return HollowNode(name, of_node, seat.rng)

        _add_node(plane, name, of_node, tap_component(f"system:node:{name}", make))

    def add(plane: SimulatedPlane) -> None:
        for name, of_node in facts.items():
            add_one(plane, name, of_node)

    return add


def _add_node(plane: SimulatedPlane, name: str, facts: NodeFacts, make: Factory) -> Cell:
    plane.zones[name] = facts.zone
    return plane.add(name, make, f"system:node:{name}")


# People -------------------------------------------------------------------------------------------

Scripted = Callable[[Seat, str], SimulatedMachine]


def person(cell: str, make: Scripted, identity: str | Identity = ADMIN) -> Trait:
    """A scripted client, who reads the store and asks the servers under this identity."""
    name = identity if isinstance(identity, str) else identity.name
    return lambda plane: _add_reader(plane, cell, lambda seat: make(seat, name), identity)


def operator(make: Scripted) -> Trait:
    """The operator, who does what the script of the world says."""
    return person(OPERATOR, make)


def follower(prefix: str) -> Trait:
    """A watcher of the store that keeps a copy of everything below this prefix (see `watches`)."""

    def add(plane: SimulatedPlane) -> None:
        plane.world.add(FOLLOWER, lambda seat: WatchFollower(seat, prefix), store=plane.plane.store)

    return add


def _add_reader(plane: SimulatedPlane, cell: str, make: Factory, who: str | Identity) -> None:
    plane.add(cell, make, who, reads_store=True)
