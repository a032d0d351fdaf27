"""INV4 on overcommitted nodes, and that firm and reclaimable capacity are never mixed.

What is there is computed here from the node objects, and what recovery holds from the reservations.
Except for decoding, none of the rules under test is called.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Intent
from holdfast.model.lifecycle import State
from holdfast.model.quantity import exact
from holdfast.model.quota.ledger import NodeLedger
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import ACTIVE, StoreCopy
from holdfast.sim.planes.checkers.permitted_changes import same
from holdfast.sim.world import World

RESOURCES = {"cpu": 1000, "memory": 1}
_HEADROOM = Fraction(1, 10)


class OvercommittedRoom(Checker):
    """A charge grows only within what the node's own object allows at that revision.

    What recovery reservations hold counts in full: the overcommit multiplies the rest.
    """

    invariants = ("INV4",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # How often a node held more than is there: a world without that would show nothing.
        self.seen = 0

    def on_commit(self, world: World, commit: Commit) -> None:
        for key, old, new in self._store_copy.changed("ledgers/node/"):
            if new is not None and self._store_copy.is_sound(key):
                self._check(key.removeprefix("ledgers/node/"), old, new)

    def _check(self, name: str, old: NodeLedger | None, new: NodeLedger) -> None:
        nodes: list[Node] = self._store_copy.versions(f"objects/nodes/{name}")
        for resource in RESOURCES:
            used, lane = new.used.get(resource, 0), self._held_for_recovery(name, resource)
            if old is not None and used <= old.used.get(resource, 0):
                continue
            rooms = [_room(node, resource, lane) for node in nodes]
            self.seen += any(used > _there(node, resource) for node in nodes)
            if used - lane > max(rooms, default=0):
                self.violated(
                    "INV4",
                    f"{name} has {used} {resource} charged, {lane} of it for recovery; its node "
                    f"allows {rooms} beside that",
                )

    def _held_for_recovery(self, name: str, resource: str) -> int:
        return sum(
            claim.charge.get(resource, 0)
            for held in self._store_copy.all("objects/reservations/")
            if held.status.phase in ACTIVE and held.spec.intent is Intent.RECOVERY
            for claim in held.status.claims
            if claim.node == name and not claim.consumed
        )


def _there(node: Node, resource: str) -> int:
    kept = exact(node.spec.reserved.get(resource, 0)) * RESOURCES[resource]
    return max(0, floor(exact(node.spec.capacity.get(resource, 0)) * RESOURCES[resource] - kept))


def _room(node: Node, resource: str, lane: int) -> int:
    """What others may have beside a recovery lane of this size."""
    there, percent = _there(node, resource), node.spec.overcommit.get(resource, 100)
    if percent <= 100:
        return there * percent // 100 - lane
    headroom = ceil(there * _HEADROOM) if resource == "memory" else 0
    allocatable = max(there, (there - headroom) * percent // 100)
    return floor(Fraction((there - lane) * allocatable, max(1, there)))


class CapacityClasses(Checker):
    """D3: a charge belongs to the capacity class of its priority class, and to no other."""

    invariants = ("D3",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        self.seen: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            was_bound = same(old, new) and old.status.state is State.BOUND
            if isinstance(new, Replica) and new.status.state is State.BOUND and not was_bound:
                self._check(new)

    def _check(self, new: Replica) -> None:
        name, binding = new.spec.template.priority_class, new.status.binding
        found = self._store_copy.now.get(f"objects/priorityclasses/{name}")
        wanted = found.spec.capacity_class.value if found is not None else "hard"
        charged = binding.capacity_class if binding is not None else ""
        self.seen[charged] = self.seen.get(charged, 0) + 1
        if charged != wanted:
            self.violated("D3", f"{new.name} of class {name} is {wanted} and charged as {charged}")
