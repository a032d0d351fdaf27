"""The checkers of this world: what the store holds, added up independently after every commit.

They follow the changes of each revision and never call the functions that made them, except to
decode. What a ledger says is compared with what replicas and reservations say; what is accepted is
compared with the limits of that very revision; who moved a replica, with the lifecycle table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.commit.records import Epoch, decode
from holdfast.commit.requests import Accepted
from holdfast.model import keys
from holdfast.model.identity import Identity, acts_as
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation, ReservationPhase
from holdfast.model.ledger import NodeLedger, QuotaLedger
from holdfast.model.lifecycle import CHARGED, Actor, State, transition
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.hands import Acknowledged
from holdfast.sim.worlds.authority.people import Trespass

ACTIVE = (ReservationPhase.HELD, ReservationPhase.COMMITTED)
WHOLE = 1000


class Books(Checker):
    """Keeps a copy of everything, by key, as of the last commit; the other checkers read it."""

    def __init__(self) -> None:
        self.now: dict[str, Any] = {}
        self.before: dict[str, Any] = {}

    def learn(self, key: str, value: bytes) -> None:
        """Take in what was there before the run."""
        self.now[key] = decode(key, value)

    def on_commit(self, world: World, commit: Commit) -> None:
        self.before = {}
        for change in commit.changes:
            self.before[change.key] = self.now.get(change.key)
            if change.value is None:
                self.now.pop(change.key, None)
            else:
                self.now[change.key] = decode(change.key, change.value)

    def changed(self, prefix: str) -> Iterable[tuple[str, Any, Any]]:
        """Keys under the prefix that the last commit changed: before, and now."""
        for key, old in self.before.items():
            if key.startswith(prefix):
                yield key, old, self.now.get(key)

    def all(self, prefix: str) -> Iterable[Any]:
        return [value for key, value in self.now.items() if key.startswith(prefix)]


class Held(Checker):
    """INV1, INV3, INV4: ledgers say what replicas and reservations hold, and never too much."""

    invariants = ("INV1", "INV3", "INV4")

    def __init__(self, books: Books) -> None:
        self.books = books

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.books.changed("ledgers/node/"):
            self._within(old, new)
        for key, old, new in self.books.changed("ledgers/quota/"):
            self._quota_within(key, old, new)
        if any(self._moves_charge(key) for key in self.books.before):
            self._recount()

    @staticmethod
    def _moves_charge(key: str) -> bool:
        return key.startswith(("objects/replicas/", "objects/reservations/", "ledgers/"))

    def _within(self, old: NodeLedger | None, new: NodeLedger | None) -> None:
        if new is None:
            return
        for resource, used in new.used.items():
            grown = old is None or used > old.used.get(resource, 0)
            if grown and used > new.allocatable.get(resource, 0):
                room = new.allocatable.get(resource, 0)
                self.violated("INV4", f"{used} {resource} taken of {room} on {new.gate.uid}")
            if used < 0:
                self.violated("INV4", f"{used} {resource} taken on {new.gate.uid}")
        for device, slot in new.devices.items():
            if sum(slot.owners.values()) > WHOLE:
                self.violated("INV1", f"{device} has owners {slot.owners}")

    def _quota_within(self, key: str, old: QuotaLedger | None, new: QuotaLedger | None) -> None:
        if new is None:
            return
        for tenant, use in new.used.items():
            limits = new.limits.get(tenant)
            before = old.used.get(tenant) if old is not None else None
            for resource, used in use.hard.items():
                grown = used > (before.hard.get(resource, 0) if before is not None else 0)
                if not grown or limits is None or resource not in limits.hard:
                    continue
                most = limits.hard[resource] + limits.borrowing.get(resource, 0)
                if used > most:
                    self.violated("INV3", f"{tenant} took {used} {resource} of {most} ({key})")
                self._cohort_within(key, new, resource)

    def _cohort_within(self, key: str, ledger: QuotaLedger, resource: str) -> None:
        limited = [t for t, limits in ledger.limits.items() if resource in limits.hard]
        whole = sum(ledger.limits[tenant].hard[resource] for tenant in limited)
        used = sum(use.hard.get(resource, 0) for t, use in ledger.used.items() if t in limited)
        if used > whole:
            self.violated("INV3", f"cohort {key} took {used} {resource} of {whole}")

    def _recount(self) -> None:
        """Add up what replicas and reservations hold, and compare with every ledger."""
        nodes: dict[str, dict[str, int]] = {}
        devices: dict[tuple[str, str], dict[str, int]] = {}
        tenants: dict[tuple[str, str], dict[str, int]] = {}
        for replica in self.books.all("objects/replicas/"):
            binding = replica.status.binding
            if binding is None or replica.status.state not in CHARGED:
                continue
            self._add(nodes, devices, binding.node, binding, replica.metadata.uid)
            _plus(tenants, (replica.namespace, binding.capacity_class), binding.charge)
        for held in self.books.all("objects/reservations/"):
            self._add_reservation(nodes, devices, tenants, held)
        self._compare_nodes(nodes, devices)
        self._compare_tenants(tenants)

    def _add_reservation(self, nodes: Any, devices: Any, tenants: Any, held: Reservation) -> None:
        if held.status.phase not in ACTIVE or held.spec.intent is Intent.PREEMPTION:
            return
        for claim in held.status.claims:
            if claim.consumed:
                continue
            if claim.node:
                self._add(nodes, devices, claim.node, claim, held.metadata.uid)
            if held.spec.quota:
                owner = (held.namespace, held.spec.capacity_class.value)
                _plus(tenants, owner, claim.charge)

    @staticmethod
    def _add(nodes: Any, devices: Any, node: str, held: Binding | Claim, owner: str) -> None:
        classes = [share.device_class for share in held.devices]
        plain = {r: units for r, units in held.charge.items() if r not in classes}
        _plus(nodes, node, plain)
        for share in held.devices:
            _plus(devices, (node, share.device), {owner: share.milli})

    def _compare_nodes(self, nodes: Any, devices: Any) -> None:
        for key, ledger in self.books.now.items():
            if not key.startswith("ledgers/node/"):
                continue
            node = key.removeprefix("ledgers/node/")
            if ledger.used != nodes.get(node, {}):
                self.violated("INV4", f"{node} says {ledger.used}, held is {nodes.get(node, {})}")
            for device, slot in ledger.devices.items():
                owners = devices.get((node, device), {})
                if slot.owners != owners:
                    self.violated("INV1", f"{node}/{device} says {slot.owners}, held is {owners}")

    def _compare_tenants(self, tenants: Any) -> None:
        for ledger in self.books.all("ledgers/quota/"):
            for tenant, use in ledger.used.items():
                for name, sums in (("hard", use.hard), ("reclaimable", use.reclaimable)):
                    held = tenants.pop((tenant, name), {})
                    if sums != held:
                        self.violated("INV3", f"{tenant} {name} is charged {sums}, holds {held}")
        for (tenant, name), held in tenants.items():
            if any(held.values()):
                self.violated("INV3", f"{tenant} {name} holds {held} and is charged nothing")


def _plus(table: dict[Any, dict[str, int]], name: Any, amounts: dict[str, int]) -> None:
    sums = table.setdefault(name, {})
    for resource, units in amounts.items():
        sums[resource] = sums.get(resource, 0) + units


class Lawful(Checker):
    """INV5, INV6, INV7 and one effect per transition, for every replica that changed."""

    invariants = ("INV3", "INV5", "INV6", "INV7")

    def __init__(self, books: Books) -> None:
        self.books = books

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.books.changed("objects/replicas/"):
            if new is not None:
                self._moved(old if old is not None and _same(old, new) else None, new)
        for _, old, new in self.books.changed("objects/nodes/"):
            self._judged(old, new)
        for _, old, new in self.books.changed("epochs/"):
            self._epoch(old, new)

    def _moved(self, old: Replica | None, new: Replica) -> None:
        number = old.status.transition_number if old is not None else 0
        steps = new.status.transition_number - number
        if old is not None and steps == 0 and old.status.state is not new.status.state:
            self.violated("INV3", f"{new.name} changed its state without a transition")
        if steps < 0 or len(new.status.transitions) < steps:
            self.violated("INV3", f"{new.name} went from transition {number} by {steps}")
        for record in new.status.transitions[len(new.status.transitions) - steps :]:
            actors = acts_as(Identity(name=record.by, groups=("system:masters",)))
            if not any(transition(record.from_state, record.to, actor) for actor in actors):
                self.violated(
                    "INV6", f"{record.by} moved {new.name} {record.from_state} -> {record.to}"
                )
            if record.to is State.BOUND:
                self._bound(new)

    def _bound(self, replica: Replica) -> None:
        binding = replica.status.binding
        if binding is None:
            self.violated("INV3", f"{replica.name} was bound without a binding")
        epoch: Epoch | None = self.books.now.get(keys.epoch(binding.scope))
        if epoch is None or (epoch.epoch, epoch.holder) != (binding.epoch, binding.by):
            self.violated(
                "INV7", f"{binding.by} bound {replica.name} under {binding.epoch}, now {epoch}"
            )
        node: Node | None = self.books.now.get(f"objects/nodes/{binding.node}")
        residency = replica.spec.template.placement.residency
        if node is None:
            self.violated("INV5", f"{replica.name} is bound to {binding.node}, which is not there")
        region: Region | None = self.books.now.get(f"objects/regions/{node.spec.region}")
        if residency and (region is None or residency not in region.spec.jurisdictions):
            self.violated("INV5", f"{replica.name} needs {residency}, is in {node.spec.region}")
        gated = node.spec.cordoned or node.spec.drain is not None or node.status.mark is not None
        if gated:
            self.violated("INV5", f"{replica.name} was bound to {node.name}, which takes no work")

    def _judged(self, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or new.status.mark is None:
            return
        mark = new.status.mark
        if old.status.mark == mark:
            return
        epoch: Epoch | None = self.books.now.get(keys.epoch("controller:nodes"))
        if epoch is None or (epoch.epoch, epoch.holder) != (mark.epoch, mark.by):
            self.violated("INV7", f"{mark.by} marked {new.name} under {mark.epoch}, now {epoch}")

    def _epoch(self, old: Epoch | None, new: Epoch | None) -> None:
        if new is None or (old is not None and new.epoch <= old.epoch):
            self.violated("INV7", f"an epoch went from {old} to {new}")


def _same(old: Replica, new: Replica) -> bool:
    return old.metadata.uid == new.metadata.uid


class Fenced(Checker):
    """C6.4 as far as the store knows it: nothing is declared gone that may still run."""

    invariants = ("INV2",)

    def __init__(self, books: Books) -> None:
        self.books = books

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.books.changed("objects/replicas/"):
            if old is None or new is None or not _same(old, new):
                continue
            last = new.status.transitions[-1]
            binding = old.status.binding
            repaired = Actor.REPAIR in acts_as(Identity(name=last.by))
            if old.status.state is new.status.state or not repaired or binding is None:
                continue
            node: Node | None = self.books.now.get(f"objects/nodes/{binding.node}")
            alive = node is not None and node.status.incarnation == binding.node_incarnation
            if alive and node is not None and node.status.phase.value not in ("Fenced", "Lost"):
                self.violated("INV2", f"{last.by} ended {new.name} on {node.status.phase.value}")


class Kept(Checker):
    """INV11: what was acknowledged is in the store's history; and the rogue got nothing."""

    invariants = ("INV6", "INV11")

    def __init__(self, books: Books) -> None:
        self.books = books
        self._written: dict[tuple[str, int], None] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            self._written[change.key, change.revision] = None

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, Trespass):
            self.violated("INV6", f"{fact.who} was allowed {fact.request}")
        if isinstance(fact, Acknowledged):
            self._acknowledged(fact.who, fact.answer)

    def _acknowledged(self, who: str, answer: Accepted) -> None:
        store_revision = answer.revision
        for obj in answer.objects:
            key = keys.key_of(obj)
            if (key, store_revision) not in self._written and not self._unchanged(key, obj):
                self.violated("INV11", f"{who} was told of {key} at {store_revision}")

    def _unchanged(self, key: str, obj: Any) -> bool:
        """A request that changed nothing is answered with what is there already."""
        now = self.books.now.get(key)
        return now is not None and now.metadata.uid == obj.metadata.uid
