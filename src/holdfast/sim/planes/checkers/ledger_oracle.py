"""What the store holds, added up independently after every commit.

The checkers follow the changes of each revision. Except for decoding, they never call
the functions that made the changes. This module compares each ledger with the replicas and
reservations, and each accepted request with the limits of the same revision. `permitted_changes`
checks which actor changed what, `witness` what was acknowledged and watched, `liveness` what must
happen in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.commit.record_encoding import decode_or_none
from holdfast.model.kinds.replica import Binding
from holdfast.model.kinds.reservation import Claim, Intent, Reservation, ReservationPhase
from holdfast.model.lifecycle import CHARGED
from holdfast.model.meta import Object, Operation
from holdfast.model.quota.ledger import NodeLedger, QuotaLedger
from holdfast.model.transaction import Record
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World

# Spelled here once more on purpose: an oracle that called the rule under test would share its bugs.
ACTIVE = (ReservationPhase.HELD, ReservationPhase.COMMITTED)
WHOLE = 1000
LEASES = "objects/leases/"
UNLIMITED = float("inf")
# A commit that changes none of these moves no charge.
_CHARGES = (
    "objects/replicas/",
    "objects/reservations/",
    "ledgers/node/",
    "ledgers/quota/",
)


class StoreCopy(Checker):
    """A copy of all records by key, as of the last commit. The other checkers read it."""

    def __init__(self) -> None:
        self.now: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        # The same by the first two parts of the key: most checkers read one kind.
        self._by_kind: dict[str, dict[str, Any]] = {}
        # The number of commits that did more than renew a lease; only those are checked.
        self.version = 0
        # Ledgers that a hazard damaged and that are not repaired yet: wrong sums and charges in
        # them are not violations. `repaired` lists those that the last commit repaired.
        self.damaged: dict[str, None] = {}
        self.repaired: tuple[str, ...] = ()

    def learn(self, records: Iterable[Record]) -> None:
        """Add the records that existed before the run."""
        for record in records:
            value = decode_or_none(record)
            if value is not None:
                self._put(record.key, value)

    def on_commit(self, world: World, commit: Commit) -> None:
        if self.before:
            self.before = {}
        for change in commit.changes:
            if not change.key.startswith(LEASES):
                break
        else:
            # A renewal. If the holder had changed, its epoch would have changed in the same commit.
            return
        self.version += 1
        for change in commit.changes:
            key = change.key
            self.before[key] = self.now.get(key)
            if change.value is None:
                self.now.pop(key, None)
                self._kind_of_key(key).pop(key, None)
            else:
                # A record that cannot be decoded counts as unchanged.
                value = decode_or_none(Record(key, change.value, change.revision, change.revision))
                if value is not None:
                    self._put(key, value)

    def _put(self, key: str, value: Any) -> None:
        self.now[key] = self._kind_of_key(key)[key] = value

    def _kind_of_key(self, key: str) -> dict[str, Any]:
        room, kind, _ = f"{key}//".split("/", 2)
        return self._by_kind.setdefault(f"{room}/{kind}/", {})

    def changed(self, prefix: str) -> Iterable[tuple[str, Any, Any]]:
        """Keys under the prefix that the last commit changed, with the values before and after."""
        # Most commits only renew a lease, and a dozen checkers call this after each.
        if not self.before:
            return ()
        now = self.now
        return [
            (key, old, now.get(key)) for key, old in self.before.items() if key.startswith(prefix)
        ]

    def all(self, prefix: str) -> list[Any]:
        """All values of a kind, such as `objects/nodes/`."""
        return list(self._by_kind.get(prefix, {}).values())

    def keyed(self, prefix: str) -> dict[str, Any]:
        """All values of a kind, by key."""
        return self._by_kind.get(prefix, {})

    def is_sound(self, key: str) -> bool:
        """Whether only decisions changed a ledger since its last version."""
        return key not in self.damaged and key not in self.repaired

    def versions(self, key: str) -> list[Any]:
        """The values that a decision of the last commit may have read under a key.

        One commit holds many requests in order. Some read the value before the commit, others what
        requests ahead of them had written.
        """
        found = [self.before[key]] if key in self.before else []
        return [value for value in (*found, self.now.get(key)) if value is not None]


class LedgerTotals(Checker):
    """INV1, INV3, INV4: ledgers equal what replicas and reservations hold, within the limits."""

    invariants = ("INV1", "INV3", "INV4")

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy

    def on_commit(self, world: World, commit: Commit) -> None:
        for key, old, new in self.store_copy.changed("ledgers/node/"):
            if self.store_copy.is_sound(key):
                self._check_node_ledger(old, new)
        for key, old, new in self.store_copy.changed("ledgers/quota/"):
            if self.store_copy.is_sound(key):
                self._check_quota_ledger(key, old, new)
        if any(key.startswith(_CHARGES) for key in self.store_copy.before):
            self._recount()

    def _check_node_ledger(self, old: NodeLedger | None, new: NodeLedger | None) -> None:
        if new is None:
            return
        for resource, used in new.used.items():
            grown = old is None or used > old.used.get(resource, 0)
            room = max(each.allocatable.get(resource, 0) for each in (old or new, new))
            if grown and used > room:
                self.violated("INV4", f"{used} {resource} taken of {room} on {new.gate.uid}")
            if used < 0:
                self.violated("INV4", f"{used} {resource} taken on {new.gate.uid}")
        for device, slot in new.devices.items():
            if sum(slot.owners.values()) > WHOLE:
                self.violated("INV1", f"{device} has owners {slot.owners}")

    def _check_quota_ledger(
        self, key: str, old: QuotaLedger | None, new: QuotaLedger | None
    ) -> None:
        if new is None:
            return
        # A limit may have been lowered by the same commit, after the charge.
        limits = [ledger for ledger in (old, new) if ledger is not None]
        for tenant, use in new.used.items():
            before = old.used.get(tenant) if old is not None else None
            for resource, used in use.hard.items():
                if used <= (before.hard.get(resource, 0) if before is not None else 0):
                    continue
                most = max(_tenant_most(ledger, tenant, resource) for ledger in limits)
                if used > most:
                    self.violated("INV3", f"{tenant} took {used} {resource} of {most} ({key})")
                whole = max(_cohort_most(ledger, resource) for ledger in limits)
                total = sum(each.hard.get(resource, 0) for each in new.used.values())
                if total > whole:
                    self.violated("INV3", f"cohort {key} took {total} {resource} of {whole}")
            for name, sums in use.classes.items():
                had = before.classes.get(name, {}) if before is not None else {}
                for resource, used in sums.items():
                    most = max(_class_most(ledger, tenant, name, resource) for ledger in limits)
                    if used > most and used > had.get(resource, 0):
                        self.violated("INV3", f"{tenant} took {used} {resource} of {most} {name}")

    def _recount(self) -> None:
        """Adds up what replicas and reservations hold, and compares it with every ledger."""
        nodes: dict[str, dict[str, int]] = {}
        devices: dict[tuple[str, str], dict[str, int]] = {}
        tenants: dict[tuple[str, str], dict[str, int]] = {}
        for replica in self.store_copy.all("objects/replicas/"):
            binding = replica.status.binding
            if binding is None or replica.status.state not in CHARGED:
                continue
            self._add(nodes, devices, binding.node, binding, replica.metadata.uid)
            for of in (binding.capacity_class, _class_key(binding.priority_class)):
                _plus(tenants, (replica.namespace, of), binding.charge)
        for held in self.store_copy.all("objects/reservations/"):
            self._add_reservation(nodes, devices, tenants, held)
        self._compare_nodes(nodes, devices)
        self._compare_tenants(tenants)

    def _add_reservation(self, nodes: Any, devices: Any, tenants: Any, held: Reservation) -> None:
        if held.status.phase not in ACTIVE:
            return
        for claim in held.status.claims:
            if claim.consumed:
                continue
            # The victims of a preemption still hold its place.
            if claim.node and held.spec.intent is not Intent.PREEMPTION:
                self._add(nodes, devices, claim.node, claim, held.metadata.uid)
            if held.spec.quota:
                spec = held.spec
                for of in (spec.capacity_class.value, _class_key(spec.priority_class)):
                    _plus(tenants, (held.namespace, of), claim.charge)

    @staticmethod
    def _add(nodes: Any, devices: Any, node: str, held: Binding | Claim, owner: str) -> None:
        classes = [share.device_class for share in held.devices]
        plain = {r: units for r, units in held.charge.items() if r not in classes}
        _plus(nodes, node, plain)
        for share in held.devices:
            _plus(devices, (node, share.device), {owner: share.milli})

    def _compare_nodes(self, nodes: Any, devices: Any) -> None:
        for key, ledger in self.store_copy.keyed("ledgers/node/").items():
            node = key.removeprefix("ledgers/node/")
            if key in self.store_copy.damaged:
                continue
            if ledger.used != nodes.get(node, {}):
                self.violated("INV4", f"{node} says {ledger.used}, held: {nodes.get(node, {})}")
            for device, slot in ledger.devices.items():
                owners = devices.get((node, device), {})
                if slot.owners != owners:
                    self.violated("INV1", f"{node}/{device} says {slot.owners}, held: {owners}")

    def _compare_tenants(self, tenants: Any) -> None:
        for key, ledger in self.store_copy.keyed("ledgers/quota/").items():
            if key in self.store_copy.damaged:
                tenants = {it: held for it, held in tenants.items() if it[0] not in ledger.limits}
                continue
            for tenant, use in ledger.used.items():
                by_class = [(_class_key(name), sums) for name, sums in use.classes.items()]
                for name, sums in (
                    ("hard", use.hard),
                    ("reclaimable", use.reclaimable),
                    *by_class,
                ):
                    held = tenants.pop((tenant, name), {})
                    if sums != held:
                        self.violated("INV3", f"{tenant} {name} is charged {sums}, holds {held}")
        for (tenant, name), held in tenants.items():
            if any(held.values()):
                self.violated("INV3", f"{tenant} {name} holds {held} but is charged nothing")


def accepted_in(old: Object | None, new: Object | None) -> Iterator[Operation]:
    """The operations that an object records now and did not before.

    The revision of an operation is filled in later; nothing else of it changes.
    """
    known = {(it.id, it.at) for it in old.metadata.operations} if old is not None else ()
    for operation in new.metadata.operations if new is not None else ():
        if (operation.id, operation.at) not in known:
            yield operation


def _class_key(priority_class: str) -> str:
    """A key for a priority class that no capacity class has."""
    return f"priority class {priority_class}"


def _tenant_most(ledger: QuotaLedger, tenant: str, resource: str) -> float:
    limits = ledger.limits.get(tenant)
    if limits is None or resource not in limits.hard:
        return UNLIMITED
    return limits.hard[resource] + limits.borrowing.get(resource, 0)


def _class_most(ledger: QuotaLedger, tenant: str, name: str, resource: str) -> float:
    limits = ledger.limits.get(tenant)
    budget = limits.classes.get(name, {}) if limits is not None else {}
    return budget.get(resource, UNLIMITED)


def _cohort_most(ledger: QuotaLedger, resource: str) -> float:
    """All tenants of a world are limited in the same resources."""
    stated = [limits.hard[resource] for limits in ledger.limits.values() if resource in limits.hard]
    return sum(stated) if stated else UNLIMITED


def _plus(table: dict[Any, dict[str, int]], name: Any, amounts: dict[str, int]) -> None:
    sums = table.setdefault(name, {})
    for resource, units in amounts.items():
        sums[resource] = sums.get(resource, 0) + units
