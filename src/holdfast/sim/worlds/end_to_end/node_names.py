"""The end-to-end world where a node's name is taken over by another machine while the first one
runs on.

    python -m holdfast.sim run holdfast.sim.worlds.end_to_end.node_names:REUSED --seeds 0-99
    python -m holdfast.sim run holdfast.sim.worlds.end_to_end.node_names:TWO_MACHINES --seeds 0-99

The fault `name_reused` cuts a node off and switches on a spare machine whose agent has the same
node name and another installation: an operator has replaced a machine, or started its agent over
an empty directory. The first machine is reachable again while the spare still holds the name, and
gets the name back when the spare is switched off. Half of the work is `keep` work, so that most of
what the first machine runs outlives its fence: only that machine can prove that it has stopped. In
`TWO_MACHINES` nothing else goes wrong, and both are in contact for a long time: work that was given
up must stop on the first machine while the second one has the name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.node_facts import NodeFacts
from holdfast.agent.runtime_protocol import Attempt
from holdfast.commit.context import PlaneSettings
from holdfast.model.lifecycle import State
from holdfast.model.meta import Quantity
from holdfast.model.nodes.installations import keeps
from holdfast.model.placement.vacancy import NODE_RETURNED
from holdfast.sim.cell import Host, Seat
from holdfast.sim.check import Checker
from holdfast.sim.faults import HOST, FaultKind, Heal
from holdfast.sim.plan import SELDOM_LATE, Act, Fault, Hazard, calendar_steps
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.component_taps import tap_component
from holdfast.sim.planes.process_table import THING, Processes
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import SimulatedPlane, Trait, world_of
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.virtual_network import PathFault
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.observers import check_every
from holdfast.sim.worlds.end_to_end.scenario import LAWS, WELL_WITHIN_MS, parts
from holdfast.sim.worlds.end_to_end.tight import timing

NODES = 3
# Each node is a zone of its own, so that no disruption limit holds back marks and fences.
ZONES = "abc"
FAULTS_MS = 240_000
SETTLE_MS = WELL_WITHIN_MS + 30_000
# Long enough for a mark, a fence, a registration, and a return while the spare holds the name.
_REUSED_MS = (25_000, 90_000)

# Work that was given up ends within this time on a machine that is in contact: the agent's next
# look may be that far away, and then come a read, a grace and a kill.
STOPPED_WITHIN_MS = 60_000
_GIVEN_UP = (State.FAILED, State.RELEASED)
# The key of how often a spare was given an empty disk, among the things of its host.
DISK = "disk"

_HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    # The amount is the part of that time, in per cent, after which the first machine is reachable.
    Hazard("name_reused", 120, for_ms=_REUSED_MS, amount=(30, 95), only="agent", share=1),
    Hazard("partition", 60, for_ms=(10_000, 40_000), only="agent", share=0.6),
    Hazard("crash", 90, for_ms=(0, 10_000), amount=(0, 6), only="agent", share=0.6),
    Hazard("crash", 60, for_ms=(0, 10_000), amount=(0, 6), only="spare", share=0.6),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="controllers", share=0.4),
    Hazard("crash", 60, for_ms=(0, 3_000), amount=(0, 6), only="server", share=0.4),
    Hazard("reboot", 20, for_ms=(1_000, 20_000), only="agent", share=0.4),
    Hazard("work_exit", 60, amount=(0, 2), only="agent", share=0.4),
    Hazard("loss", 60, for_ms=(1_000, 20_000), amount=(50, 400), share=0.4),
    Hazard("store_mute", 60, for_ms=(1_000, 20_000), amount=(100, 900), share=0.4),
)

# The first machine is in contact for longer than its agent may take to look.
_QUIET_HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("name_reused", 60, for_ms=(110_000, 150_000), amount=(25, 35), only="agent", share=1),
)


class Spares:
    """A second machine for each node's name. Create it once per world, after its checkers.

    The end of its `keep` work, too, must be reported by that machine itself. So it is switched on
    once more when the first machine has the name again: it finds and reports what ended with its
    power.
    """

    def __init__(self, plane: SimulatedPlane, nodes: Sequence[str]) -> None:
        world, self._store_copy = plane.world, plane.store_copy
        # The first machines that are cut off at present.
        self.cut: dict[str, None] = {}
        for node in nodes:
            identity = f"system:node:{node}"
            make = tap_component(identity, _agent_of(world, node))
            cell = world.add(spare_of(node), make, identity=identity)
            world.shut_down(cell.host)
        world.faults.add("name_reused", FaultKind(HOST, self._strike))

    def _strike(self, world: World, fault: Fault) -> Heal | None:
        """Another machine takes the node's name; the first one is cut off for the first part."""
        spare = world.hosts[spare_of(fault.target)]
        if spare.up:
            return None
        registered = self._store_copy.now.get(f"objects/nodes/{fault.target}")
        has_name = registered is not None and registered.status.installation == _installation(spare)
        if not has_name and not self._left_by(spare):
            # No record refers to it any more: its directory is empty, as that of a new machine.
            spare.things.pop(THING, None)
            spare.things[DISK] = spare.things.get(DISK, 0) + 1
        world.boot(spare)
        here = frozenset((fault.target,))
        self.cut[fault.target] = None
        lifts = [world.network.lay(PathFault("cut", here, None))]
        lifts.append(world.network.lay(PathFault("cut", None, here)))

        def reconnect(*_: Any) -> None:
            self.cut.pop(fault.target, None)
            while lifts:
                lifts.pop()()

        after_us = fault.for_ms * fault.amount * 10
        world.post(world.now_us + after_us, reconnect, None, None)

        def heal() -> None:
            reconnect()
            world.shut_down(spare)
            self._see_off_later(world, fault.target)

        return heal

    def _see_off_later(self, world: World, node: str) -> None:
        world.post(world.now_us + 1_000_000, self._see_off, world, node)

    def _see_off(self, _number: int, world: World, node: str) -> None:
        """Let a spare report how its work ended, and never let it keep the name."""
        spare, registered = (
            world.hosts[spare_of(node)],
            self._store_copy.now.get(f"objects/nodes/{node}"),
        )
        is_back = registered is not None and registered.status.installation == node
        is_left = self._left_by(spare)
        if spare.up and not (is_back and is_left):
            world.shut_down(spare)
        elif not spare.up and is_back and is_left:
            world.boot(spare)
        if is_left or not is_back:
            # Until the first machine is back, work may still be bound to the spare.
            self._see_off_later(world, node)

    def _left_by(self, spare: Host) -> bool:
        """Whether a replica is bound to the installation on its disk and not yet released."""
        mine = _installation(spare)
        held = (
            it for it in self._store_copy.all("objects/replicas/") if it.status.binding is not None
        )
        return any(
            it.status.binding.installation == mine and it.status.state is not State.RELEASED
            for it in held
        )


class KeepWorkUndisturbed(Checker):
    """H8: work that keeps running when cut off is not stopped when its machine returns."""

    invariants = ("H8",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        self.adopted = 0

    def on_commit(self, world: World, commit: Any) -> None:
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            before = old.status.binding if old is not None else None
            after = new.status.binding if new is not None else None
            if before is not None and after is not None:
                self.adopted += before.node_incarnation != after.node_incarnation
            is_failed = new is not None and new.status.state is State.FAILED
            if is_failed and keeps(new) and new.status.transitions[-1].reason == NODE_RETURNED:
                self.violated("H8", f"{new.name} is stopped because its machine returned")


class GivenUpWorkStops(Checker):
    """C7.6: a machine in contact stops given-up work, whichever machine has its node's name."""

    invariants = ("C7.6",)

    def __init__(
        self, world: World, store_copy: StoreCopy, processes: Processes, spares: Spares
    ) -> None:
        self._store_copy, self._processes, self._spares = store_copy, processes, spares
        # Since when each process has run on a machine that is in contact and was given up.
        self._since_us: dict[tuple[str, Attempt], int] = {}
        check_every(world, 1_000, self._look)

    def _look(self, world: World) -> None:
        since_us = {}
        for host, held in self._processes.running():
            attempt = held.launch.attempt
            replica = self._store_copy.now.get(
                f"objects/replicas/{held.launch.namespace}/{held.launch.name}"
            )
            is_wanted = (
                replica is not None
                and replica.metadata.uid == attempt.uid
                and replica.status.state not in _GIVEN_UP
            )
            if is_wanted or host.name in self._spares.cut or not world.cells[host.name].ready:
                continue
            key = (host.name, attempt)
            since_us[key] = self._since_us.get(key, world.now_us)
            if world.now_us - since_us[key] > STOPPED_WITHIN_MS * 1000:
                what = f"{held.launch.name} was given up and still runs on {host.name}"
                self.violated("C7.6", f"{what}, in contact for more than {STOPPED_WITHIN_MS} ms")
        self._since_us = since_us


def spare_of(node: str) -> str:
    """The machine that takes this node's name."""
    return f"spare-{node}"


def _installation(spare: Host) -> str:
    return f"{spare.name}/{spare.things.get(DISK, 0)}"


def _agent_of(world: World, node: str) -> Callable[[Seat], Agent]:
    def make(seat: Seat) -> Agent:
        mine = _installation(world.hosts[seat.name])
        capacity: dict[str, Quantity] = {"cpu": "4", "memory": "16Gi"}
        facts = NodeFacts(region="eu", zone="eu-spare", capacity=capacity, installation=mine)
        return Agent(node, facts, seat.rng)

    return make


def spares(*, quiet: bool = False) -> Trait:
    """A spare machine for each node, that may take its name."""

    def add(plane: SimulatedPlane) -> None:
        world, store_copy = plane.world, plane.store_copy
        spares = Spares(plane, [f"agent-{number}" for number in range(NODES)])
        world.check(KeepWorkUndisturbed(store_copy))
        if quiet:
            world.check(GivenUpWorkStops(world, store_copy, plane.processes, spares))

    return add


_USUAL = (*parts(NODES, zones=ZONES, faults_ms=FAULTS_MS), *LAWS)
_SETTINGS = PlaneSettings(fence=timing())


def script(rng: Random) -> Sequence[Act]:
    """A few services, and an operator who scales and kills now and then."""
    acts = [Act(500 + 100 * i, "operator", _service(rng, i)) for i in range(3)]
    acts += [
        Act(between(rng, 5_000, FAULTS_MS - 20_000), "operator", _act(rng))
        for _ in range(between(rng, 2, 8))
    ]
    return sorted(acts, key=lambda act: act.at_ms)


def _act(rng: Random) -> dict[str, Any]:
    some = between(rng, 0, 99)
    return pick(
        rng,
        (
            {"do": "scale", "some": some, "replicas": between(rng, 0, 4)},
            {"do": "kill", "some": some},
        ),
    )


def _service(rng: Random, number: int) -> dict[str, Any]:
    keep = number % 2 == 0
    return {
        "do": "create",
        "name": f"w{number}",
        "tenant": pick(rng, TENANTS),
        "replicas": between(rng, 2, 3),
        "cpu": "500m",
        "gpu": "",
        "urgent": False,
        "gang": False,
        "eu": False,
        "keep": keep,
        "replace_after": pick(rng, (None, 10)) if keep else None,
        "budget": None,
        "port": 0,
        "grace": pick(rng, (1, 10)),
    }


REUSED = Scenario(
    name="holdfast.sim.worlds.end_to_end.node_names:REUSED",
    build=world_of(*_USUAL, spares(), settings=_SETTINGS),
    hazards=_HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)

TWO_MACHINES = msgspec.structs.replace(
    REUSED,
    name="holdfast.sim.worlds.end_to_end.node_names:TWO_MACHINES",
    build=world_of(*_USUAL, spares(quiet=True), settings=_SETTINGS),
    hazards=_QUIET_HAZARDS,
)
