"""Permitted changes: the lifecycle table, epochs, ordinals and field owners, at every commit.

One commit holds many requests. Where it changes both a decision and what the decision rested on,
the decision may have come first. It is wrong only if neither version permits it.
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
from holdfast.sim.planes.checkers.ledger_oracle import ACTIVE, StoreCopy
from holdfast.sim.world import World

_OPERATORS_FIELDS = ("cordoned", "drain", "taints", "protected_for", "pool", "region", "zone")


# Stated here independently of the product. An agent that reports no isolation promises none.
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

    No replica of a workload is created under a name that an earlier one had, and none at an ordinal
    that another one still holds.
    """

    invariants = ("INV2", "INV3", "INV5", "INV6", "INV7")

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy
        # All names ever created, and the last name at each ordinal, by the workload's uid.
        self._names: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, int], str] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.store_copy.changed("objects/replicas/"):
            if new is not None:
                if not same(old, new):
                    self._check_creation(new)
                self._check_transitions(old if same(old, new) else None, new)
        for _, old, new in self.store_copy.changed("epochs/"):
            if new is None or (old is not None and new.epoch <= old.epoch):
                self.violated("INV7", f"an epoch went from {old} to {new}")

    def _check_creation(self, new: Replica) -> None:
        uid, place = new.spec.workload_uid, new.spec.ordinal
        if (uid, new.name) in self._names:
            self.violated("INV3", f"{new.name} was created a second time")
        last = self._last.get((uid, place), "")
        key = f"objects/replicas/{new.namespace}/{last}"
        # If this commit removed it, an earlier request of the same group released it.
        before = self.store_copy.versions(key) if last and key in self.store_copy.now else []
        mine = [it for it in before if it.spec.workload_uid == uid]
        if mine and not any(vacates(it) for it in mine):
            self.violated("INV2", f"{new.name} was created while {last} held its ordinal")
        self._names.add((uid, new.name))
        self._last[uid, place] = new.name

    def _check_transitions(self, old: Replica | None, new: Replica) -> None:
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
            self._check_actor(new, record)
            if record.to is State.BOUND:
                self._check_binding(new, new.status.binding)
        if old is None:
            self._check_workload_of(new)

    def _check_actor(self, replica: Replica, record: TransitionRecord) -> None:
        groups = () if record.by.startswith("system:") else (ADMINS,)
        who = Identity(name=record.by, groups=groups)
        if not any(transition(record.from_state, record.to, a) for a in acts_as(who)):
            what = f"{replica.name} {record.from_state} -> {record.to}"
            self.violated("INV6", f"{record.by} moved {what}")
        binding = replica.status.binding
        if who.node is not None and (binding is None or binding.node != who.node):
            self.violated("INV6", f"{record.by} moved {replica.name}, which is not on it")

    def _check_workload_of(self, replica: Replica) -> None:
        """A replica is created only for a workload that exists and is not under deletion."""
        spec = replica.spec
        found = self.store_copy.versions(f"objects/workloads/{replica.namespace}/{spec.workload}")
        alive = [w for w in found if w.metadata.uid == spec.workload_uid]
        if not any(w.metadata.deletion_timestamp is None for w in alive):
            self.violated("INV6", f"{replica.name} was created for a missing or deleted workload")

    def _check_binding(self, replica: Replica, binding: Binding | None) -> None:
        if binding is None:
            self.violated("INV3", f"{replica.name} was bound without a binding")
        epochs: list[Epoch] = self.store_copy.versions(keys.epoch(binding.scope))
        if not any((e.epoch, e.holder) == (binding.epoch, binding.by) for e in epochs):
            by = f"{binding.by} bound {replica.name} under {binding.epoch}"
            self.violated("INV7", f"{by}, now {epochs}")
        nodes: list[Node] = self.store_copy.versions(f"objects/nodes/{binding.node}")
        if not any(self._accepts(node, replica, binding) for node in nodes):
            why = f"{replica.name} was bound to {binding.node}, which must not take it"
            self.violated("INV5", why)
        tenants = self.store_copy.versions(f"objects/tenants/{replica.namespace}")
        if all(tenant.spec.suspended for tenant in tenants):
            self.violated("INV5", f"{replica.name} was bound for a tenant that is suspended")

    def _accepts(self, node: Node, replica: Replica, binding: Binding) -> bool:
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
        region = self.store_copy.now.get(f"objects/regions/{node.spec.region}")
        return not residency or (region is not None and residency in region.spec.jurisdictions)

    def _is_alone(self, replica: Replica, node: str) -> bool:
        """Whether no work of another tenant is bound there, by the status of the replicas.

        For a replica that was released within the same commit, the copy does not show which others
        were there.
        """
        return replica.status.state not in CHARGED or not any(
            other.namespace != replica.namespace
            and other.status.state in CHARGED
            and other.status.binding is not None
            and other.status.binding.node == node
            for other in self.store_copy.all("objects/replicas/")
        )


class FieldOwnership(Checker):
    """INV6 beyond replicas, and one reservation per intent."""

    invariants = ("INV6", "C6.9")

    def __init__(self, store_copy: StoreCopy, *, status: bool = False) -> None:
        """`status` means that controllers of the world own parts of a workload's status."""
        self.store_copy = store_copy
        self._status = status

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.store_copy.changed("objects/nodes/"):
            self._check_node(old, new)
        for _, old, new in self.store_copy.changed("objects/workloads/"):
            self._check_status(new)
            if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
                self._check_orphans(old)
        if any(self.store_copy.changed("objects/reservations/")):
            self._check_reservations()

    def _check_node(self, old: Node | None, new: Node | None) -> None:
        """The operator's fields change only together with `managedFields`."""
        if old is None or new is None or old.metadata.uid != new.metadata.uid:
            return
        differs = [f for f in _OPERATORS_FIELDS if getattr(old.spec, f) != getattr(new.spec, f)]
        if differs and old.metadata.managed_fields == new.metadata.managed_fields:
            self.violated("INV6", f"{new.name}: {differs} changed, but not by its operator")

    def _check_status(self, workload: Workload | None) -> None:
        """Where no controller owns a part of the status, no write to it is permitted."""
        if workload is None or self._status:
            return
        # The authority itself writes which fields have no effect.
        others = tuple(it for it in workload.status.conditions if it.type != NO_EFFECT)
        if msgspec.structs.replace(workload.status, conditions=others) != WorkloadStatus():
            self.violated("INV6", f"{workload.name} has status {workload.status}")

    def _check_orphans(self, workload: Workload) -> None:
        """No replica outlives its workload."""
        for replica in self.store_copy.all("objects/replicas/"):
            if replica.spec.workload_uid == workload.metadata.uid:
                self.violated("INV6", f"{workload.name} is gone, but {replica.name} still exists")

    def _check_reservations(self) -> None:
        """C6.9: at most one active reservation for an owner, its generation and an intent."""
        seen: dict[tuple[str, int, str], str] = {}
        for held in self.store_copy.all("objects/reservations/"):
            owner = held.spec.owner
            name = (owner.uid, owner.generation, held.spec.intent.value)
            if held.status.phase not in ACTIVE:
                continue
            if name in seen:
                self.violated("C6.9", f"{held.name} and {seen[name]} are both for {owner.name}")
            seen[name] = held.name
