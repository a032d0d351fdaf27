"""Checks of each commit that compare it with the records it rests on.

The checkers read what the commit changed from a `StoreCopy`.

    NodeMarks          INV2, as far as the store shows it: no work is declared gone that may still
                       run, none returns under a mark, and an agent reports only work of its own
                       incarnation of the node
    FreshEvidence      STALE: a late request about a node changes nothing
    ReservationClaims  C6.8, INV12: only the owner takes what is reserved, and in time
    OperationMemory    INV3: an accepted operation is kept for as long as it must be
"""

from __future__ import annotations

from datetime import timedelta

from holdfast.commit.context import PlaneSettings
from holdfast.commit.record_encoding import Epoch
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.kinds.node import Mark, Node, NodePhase
from holdfast.model.kinds.replica import Binding, Replica, TransitionRecord
from holdfast.model.kinds.reservation import Intent, Reservation, ReservationPhase
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import Actor, State
from holdfast.model.meta import Operation
from holdfast.model.quota.ledger import NodeLedger
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy, accepted_in
from holdfast.sim.planes.checkers.permitted_changes import same, steps_of
from holdfast.sim.planes.shared_names import LIFE
from holdfast.sim.world import World

_FENCED = (NodePhase.FENCED, NodePhase.LOST)
_OUT = (NodePhase.UNKNOWN, *_FENCED)


def _registration_of(node: Node) -> tuple[int, ...]:
    """The registration that a node shows: the life of its agent, and its number in that life."""
    return tuple(int(part) for part in node.status.agent_version.split(".") if part)


class NodeMarks(Checker):
    """Marks, fences and incarnations of nodes, and what they permit with the work on them."""

    invariants = ("INV2", "INV7")

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.store_copy.changed("objects/replicas/"):
            if same(old, new) and new.status.binding is not None:
                for record in steps_of(old, new):
                    self._check_transition(new, new.status.binding, record)
        for _, old, new in self.store_copy.changed("objects/nodes/"):
            if old is not None and new is not None and old.metadata.uid == new.metadata.uid:
                self._check_node(old, new)

    def _check_transition(
        self, replica: Replica, binding: Binding, record: TransitionRecord
    ) -> None:
        nodes: list[Node] = self.store_copy.versions(f"objects/nodes/{binding.node}")
        what = f"{record.by} made {replica.name} {record.to.value}"
        actors = acts_as(Identity(name=record.by))
        if Actor.REPAIR in actors and nodes:
            keeps = replica.spec.template.on_disconnect is OnDisconnect.KEEP
            if not any(_is_gone(node, binding, record.to, keeps=keeps) for node in nodes):
                self.violated("INV2", f"{what} on {nodes[-1].status.phase.value}")
        if Actor.AGENT in actors:
            life = int(record.evidence.removeprefix(LIFE))
            later = record.to is State.RELEASED and life > binding.node_incarnation
            if life != binding.node_incarnation and not later:
                self.violated("INV2", f"{what} in incarnation {life} of {binding.node}")
            back = record.from_state is State.UNKNOWN
            if back and all(node.status.mark is not None for node in nodes):
                self.violated("INV2", f"{what} under a mark")
        if Actor.NODES in actors and all(node.status.mark is None for node in nodes):
            self.violated("INV2", f"{what} without a mark")

    def _check_node(self, old: Node, new: Node) -> None:
        mark = new.status.mark
        if mark is not None and mark != old.status.mark:
            self._check_mark_epoch(new, mark)
        self._check_mark_number(old, new)
        lives = new.status.incarnation - old.status.incarnation
        if lives not in (0, 1) or (lives and old.status.phase not in _OUT):
            self.violated("INV2", f"{new.name} gained {lives} incarnations from {old.status.phase}")
        if old.status.phase in _FENCED and new.status.phase not in _FENCED and not lives:
            self.violated("INV2", f"{new.name} returned from its fence in the same incarnation")

    def _check_mark_number(self, old: Node, new: Node) -> None:
        """A Fence or Clear applies to the mark that its operation id names."""
        marks = [n.status.mark.number for n in (old, new) if n.status.mark is not None]
        for operation in accepted_in(old, new):
            what, _, number = operation.id.rpartition("/")[2].partition("-")
            if what in ("Fence", "Clear") and int(number) not in marks:
                self.violated("INV2", f"{new.name}: {what} of mark {number}, it had {marks}")

    def _check_mark_epoch(self, node: Node, mark: Mark) -> None:
        epochs: list[Epoch] = self.store_copy.versions(keys.epoch("controller:nodes"))
        if not any((e.epoch, e.holder) == (mark.epoch, mark.by) for e in epochs):
            self.violated("INV7", f"{mark.by} marked {node.name} under {mark.epoch}, {epochs}")


def _is_gone(node: Node, binding: Binding, to: State, *, keeps: bool) -> bool:
    """Whether the state of the node permits repair to treat this work as gone."""
    later = node.status.incarnation > binding.node_incarnation
    if keeps:
        return later and to is State.FAILED
    return later or node.status.phase in _FENCED


# A request about a node rests on the node as it is now: a late request changes nothing.
#
# Scripted clients state in their requests what they rest on: a judgement of controller:nodes the
# revision of its snapshot, a registration its number among those of its agent.

_NODES = "objects/nodes/"
_JUDGE = f"{who.controller('nodes').name}/"


class FreshEvidence(Checker):
    """STALE: no judgement of a node that has changed since, and no facts older than the stored."""

    invariants = ("STALE",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # The revision at which each node was last written.
        self._written: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for key, old, new in self._store_copy.changed(_NODES):
            if old is not None and new is not None and old.metadata.uid == new.metadata.uid:
                self._check_node(old, new, self._written.get(key, 0))
                if _registration_of(new) < _registration_of(old):
                    step = f"{old.status.agent_version} to {new.status.agent_version}"
                    self.violated("STALE", f"the facts of {new.name} went back from {step}")
            self._written[key] = commit.revision

    def _check_node(self, old: Node, new: Node, written: int) -> None:
        for operation in accepted_in(old, new):
            if not operation.id.startswith(_JUDGE):
                continue
            looked = int(operation.id.split("/")[-2])
            if looked < written:
                what = f"{operation.id} read at {looked}, {new.name} was written at {written}"
                self.violated("STALE", f"a judgement took effect on stale evidence: {what}")


# C6.8 and INV12: only its owner takes what is held or promised, and before the deadline.

_READY = (ReservationPhase.COMMITTED, ReservationPhase.CONSUMED)


class ReservationClaims(Checker):
    """Bindings that consume reservations, and capacity promised to preemptions."""

    invariants = ("INV1", "INV4", "INV12", "C6.8", "GANG")

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.store_copy.changed("objects/replicas/"):
            if new is None or new.status.binding is None or not new.status.binding.reservation:
                continue
            moves = steps_of(old if same(old, new) else None, new)
            if any(record.to is State.BOUND for record in moves):
                self._check_consumed(new, new.status.binding)
        for key, old, new in self.store_copy.changed("ledgers/node/"):
            if old is not None and new is not None and self.store_copy.is_sound(key):
                self._check_promised(old, new)

    def _check_consumed(self, replica: Replica, binding: Binding) -> None:
        name = binding.reservation
        key = f"objects/reservations/{replica.namespace}/{name}"
        found: list[Reservation] = self.store_copy.versions(key)
        mine = (replica.metadata.uid, replica.spec.workload_uid)
        owned = [held for held in found if held.spec.owner.uid in mine]
        if not owned:
            self.violated("C6.8", f"{replica.name} was bound from {name}, which it does not own")
        early = timedelta(milliseconds=PlaneSettings().skew_ms)
        at = binding.at
        if at is not None and all(at > held.spec.deadline - early for held in owned):
            self.violated("INV12", f"{replica.name} was bound from {name} after its deadline")
        gang = owned[-1].spec.intent is Intent.GANG
        if gang and not any(held.status.phase in _READY for held in owned):
            self.violated("GANG", f"{replica.name} was bound before its gang was complete")

    def _check_promised(self, old: NodeLedger, new: NodeLedger) -> None:
        """Capacity that victims free for one replica goes to no other."""
        for resource, used in new.used.items():
            promised = sum(amounts.get(resource, 0) for amounts in new.promised.values())
            open_ = max(0, promised - new.leaving.get(resource, 0))
            if used > old.used.get(resource, 0) and open_:
                room = max(ledger.allocatable.get(resource, 0) for ledger in (old, new))
                if used + open_ > room:
                    what = f"{used} {resource} taken, {open_} promised of {room}"
                    self.violated("C6.8", f"{new.gate.uid}: {what}")
        for device, slot in new.devices.items():
            before = old.devices.get(device)
            if before is None or not slot.promised or before.promised != slot.promised:
                continue
            if any(share > before.owners.get(who, 0) for who, share in slot.owners.items()):
                self.violated("C6.8", f"{device} is promised to {slot.promised}, but was taken")


# INV3: an accepted operation is kept for as long as it must be, by true time.

# For the rate error of clocks, and because a decision is written a moment after it was made.
TOLERANCE = 0.98


class OperationMemory(Checker):
    """An operation that is removed too early could take effect a second time."""

    invariants = ("INV3",)

    def __init__(self, store_copy: StoreCopy, settings: PlaneSettings) -> None:
        self._store_copy, self._settings = store_copy, settings
        # The true time at which each operation was first seen on a record.
        self._since_ms: dict[tuple[str, str], int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        now_ms = world.now_us // 1000
        for key, old, new in self._store_copy.changed(keys.OBJECTS):
            before = old.metadata.operations if old is not None else ()
            after = new.metadata.operations if new is not None else ()
            if before == after:
                continue
            for operation in after:
                self._since_ms.setdefault((key, operation.id), now_ms)
            is_same = old is not None and new is not None and old.metadata.uid == new.metadata.uid
            if is_same and len(after) < self._settings.operations_max:
                self._check_removed(key, before, after, now_ms)
        for key, old, new in self._store_copy.changed(keys.OPERATIONS):
            if new is not None:
                self._since_ms.setdefault((key, new.operation.id), now_ms)
            elif old is not None:
                self._check_removed(key, (old.operation,), (), now_ms)

    def _check_removed(
        self,
        key: str,
        before: tuple[Operation, ...],
        after: tuple[Operation, ...],
        now_ms: int,
    ) -> None:
        kept = {it.id for it in after}
        for operation in before:
            if operation.id in kept:
                continue
            for_ms = now_ms - self._since_ms.get((key, operation.id), 0)
            if for_ms < self._settings.operations_kept_ms * TOLERANCE:
                self.violated("INV3", f"{operation.id} was removed from {key} after {for_ms} ms")
