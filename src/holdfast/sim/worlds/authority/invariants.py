"""Who did what: the lifecycle's law, epochs, places and fields, at every commit.

Many requests are committed at once. Where a commit changes both a decision and what it rested on,
the decision may have come first; it is wrong only if neither version allows it.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.record_encoding import Epoch
from holdfast.model import keys
from holdfast.model.access.identity import ADMINS, Identity, acts_as
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.replica import Binding, Replica, TransitionRecord
from holdfast.model.kinds.workload import Workload, WorkloadStatus
from holdfast.model.lifecycle import CHARGED, State, transition
from holdfast.model.no_effect import NO_EFFECT
from holdfast.model.placement.vacancy import vacates
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.ledger_oracle import ACTIVE, StoreCopy

_OPERATORS_FIELDS = ("cordoned", "drain", "taints", "protected_for", "pool", "region", "zone")


# What is promised, said here once more: an agent that does not say promises nothing.
STRENGTH = {None: 0, Isolation.NONE: 0, Isolation.USER: 1, Isolation.CONTAINER: 2}


def same(old: Replica | None, new: Replica | None) -> bool:
    """Whether both are there and the same object."""
    return old is not None and new is not None and old.metadata.uid == new.metadata.uid


def steps_of(old: Replica | None, new: Replica) -> tuple[TransitionRecord, ...]:
    """The transitions that the last commit added."""
    number = old.status.transition_number if old is not None else 0
    made = new.status.transition_number - number + (0 if old is not None else 1)
    return new.status.transitions[len(new.status.transitions) - made :] if made else ()


class LawfulTransitions(Checker):
    """INV5, INV6, INV7 and one effect per transition, for every replica that changed.

    No replica of a workload is born under a name that one had before it, and none at a place that
    another one has not left.
    """

    invariants = ("INV2", "INV3", "INV5", "INV6", "INV7")

    def __init__(self, books: StoreCopy) -> None:
        self.books = books
        # All that were ever born, and the last at each place, by the workload's uid.
        self._names: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, int], str] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.books.changed("objects/replicas/"):
            if new is not None:
                if not same(old, new):
                    self._arrives(new)
                self._moved(old if same(old, new) else None, new)
        for _, old, new in self.books.changed("epochs/"):
            if new is None or (old is not None and new.epoch <= old.epoch):
                self.violated("INV7", f"an epoch went from {old} to {new}")

    def _arrives(self, new: Replica) -> None:
        uid, place = new.spec.workload_uid, new.spec.ordinal
        if (uid, new.name) in self._names:
            self.violated("INV3", f"{new.name} was born a second time")
        last = self._last.get((uid, place), "")
        key = f"objects/replicas/{new.namespace}/{last}"
        # One that is gone with this commit was released in it, by a request of the same group.
        before = self.books.versions(key) if last and key in self.books.now else []
        mine = [it for it in before if it.spec.workload_uid == uid]
        if mine and not any(vacates(it) for it in mine):
            self.violated("INV2", f"{new.name} was born while {last} had its place")
        self._names.add((uid, new.name))
        self._last[uid, place] = new.name

    def _moved(self, old: Replica | None, new: Replica) -> None:
        number = old.status.transition_number if old is not None else -1
        made = new.status.transition_number - number
        if old is not None and made == 0 and old.status.state is not new.status.state:
            self.violated("INV3", f"{new.name} changed its state without a transition")
        if made < 0 or len(new.status.transitions) < made:
            self.violated("INV3", f"{new.name} went from transition {number} by {made}")
        state = old.status.state if old is not None else None
        for record in steps_of(old, new):
            if record.from_state is not state:
                self.violated("INV3", f"{new.name} was {state} and left {record.from_state}")
            state = record.to
            self._lawful(new, record)
            if record.to is State.BOUND:
                self._bound(new, new.status.binding)
        if old is None:
            self._born(new)

    def _lawful(self, replica: Replica, record: TransitionRecord) -> None:
        groups = () if record.by.startswith("system:") else (ADMINS,)
        who = Identity(name=record.by, groups=groups)
        if not any(transition(record.from_state, record.to, a) for a in acts_as(who)):
            what = f"{replica.name} {record.from_state} -> {record.to}"
            self.violated("INV6", f"{record.by} moved {what}")
        binding = replica.status.binding
        if who.node is not None and (binding is None or binding.node != who.node):
            self.violated("INV6", f"{record.by} moved {replica.name}, which is not on it")

    def _born(self, replica: Replica) -> None:
        """A replica comes into being for a workload that is there and stays."""
        spec = replica.spec
        found = self.books.versions(f"objects/workloads/{replica.namespace}/{spec.workload}")
        alive = [w for w in found if w.metadata.uid == spec.workload_uid]
        if not any(w.metadata.deletion_timestamp is None for w in alive):
            self.violated("INV6", f"{replica.name} was born for a workload that is gone or going")

    def _bound(self, replica: Replica, binding: Binding | None) -> None:
        if binding is None:
            self.violated("INV3", f"{replica.name} was bound without a binding")
        epochs: list[Epoch] = self.books.versions(keys.epoch(binding.scope))
        if not any((e.epoch, e.holder) == (binding.epoch, binding.by) for e in epochs):
            by = f"{binding.by} bound {replica.name} under {binding.epoch}"
            self.violated("INV7", f"{by}, now {epochs}")
        nodes: list[Node] = self.books.versions(f"objects/nodes/{binding.node}")
        if not any(self._takes(node, replica, binding) for node in nodes):
            why = f"{replica.name} was bound to {binding.node}, which may not take it"
            self.violated("INV5", why)
        tenants = self.books.versions(f"objects/tenants/{replica.namespace}")
        if all(tenant.spec.suspended for tenant in tenants):
            self.violated("INV5", f"{replica.name} was bound for a tenant that is suspended")

    def _takes(self, node: Node, replica: Replica, binding: Binding) -> bool:
        if (node.metadata.uid, node.status.incarnation) != (
            binding.node_uid,
            binding.node_incarnation,
        ):
            return False
        shut = node.spec.cordoned or node.spec.drain is not None or node.spec.taints
        if shut or node.status.phase is not NodePhase.READY:
            return False
        if STRENGTH[replica.spec.template.isolation] > STRENGTH[node.status.isolation]:
            return False
        if node.status.isolation is Isolation.NONE and not self._is_alone(replica, node.name):
            return False
        residency = replica.spec.template.placement.residency
        region = self.books.now.get(f"objects/regions/{node.spec.region}")
        return not residency or (region is not None and residency in region.spec.jurisdictions)

    def _is_alone(self, replica: Replica, node: str) -> bool:
        """Whether nothing of another tenant is bound there, as the replicas themselves say.

        Of one that has gone again within the same commit the books do not know who was there.
        """
        return replica.status.state not in CHARGED or not any(
            other.namespace != replica.namespace
            and other.status.state in CHARGED
            and other.status.binding is not None
            and other.status.binding.node == node
            for other in self.books.all("objects/replicas/")
        )


class FieldOwnership(Checker):
    """INV6 beyond replicas, and one reservation per intent."""

    invariants = ("INV6", "C6.9")

    def __init__(self, books: StoreCopy, *, status: bool = False) -> None:
        """`status` says that controllers of this world own parts of a workload's status."""
        self.books = books
        self._status = status

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.books.changed("objects/nodes/"):
            self._node(old, new)
        for _, old, new in self.books.changed("objects/workloads/"):
            self._workload(new)
            if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
                self._orphans(old)
        if any(self.books.changed("objects/reservations/")):
            self._reserved()

    def _node(self, old: Node | None, new: Node | None) -> None:
        """What belongs to the operator changes only together with his note of having changed it."""
        if old is None or new is None or old.metadata.uid != new.metadata.uid:
            return
        differs = [f for f in _OPERATORS_FIELDS if getattr(old.spec, f) != getattr(new.spec, f)]
        if differs and old.metadata.managed_fields == new.metadata.managed_fields:
            self.violated("INV6", f"{new.name}: {differs} changed, and not by its operator")

    def _workload(self, workload: Workload | None) -> None:
        """Where no controller owns a part of it, whoever writes there trespasses."""
        if workload is None or self._status:
            return
        # The authority itself says which fields have no effect.
        others = tuple(it for it in workload.status.conditions if it.type != NO_EFFECT)
        if msgspec.structs.replace(workload.status, conditions=others) != WorkloadStatus():
            self.violated("INV6", f"{workload.name} has status {workload.status}")

    def _orphans(self, workload: Workload) -> None:
        """Nothing outlives its owner."""
        for replica in self.books.all("objects/replicas/"):
            if replica.spec.workload_uid == workload.metadata.uid:
                self.violated("INV6", f"{workload.name} is gone, and {replica.name} is there")

    def _reserved(self) -> None:
        """C6.9: at most one active reservation for an owner, its generation and an intent."""
        seen: dict[tuple[str, int, str], str] = {}
        for held in self.books.all("objects/reservations/"):
            owner = held.spec.owner
            name = (owner.uid, owner.generation, held.spec.intent.value)
            if held.status.phase not in ACTIVE:
                continue
            if name in seen:
                self.violated("C6.9", f"{held.name} and {seen[name]} are both for {owner.name}")
            seen[name] = held.name
