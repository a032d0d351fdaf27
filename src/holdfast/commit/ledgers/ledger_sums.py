"""Ledger sums, computed from the objects alone.

`recount.py` compares the ledgers with these. They share no arithmetic with the rules that change
the ledgers: an error in those must not repeat itself here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from holdfast.commit.record_encoding import decode_or_none
from holdfast.model import keys
from holdfast.model.kinds.replica import Binding, DeviceShare, Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import Object
from holdfast.model.quota.charging import is_active
from holdfast.model.quota.ledger import Amounts
from holdfast.model.transaction import Record

SomeObject = TypeVar("SomeObject", bound=Object)


class StoreContents:
    """Everything that a store holds, decoded, except unreadable records."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.values: dict[str, Any] = {}
        self.unreadable: list[str] = []
        self._objects: dict[type[Object], list[Any]] = {}
        for record in records:
            if record.key.startswith((keys.ENCRYPTION, keys.TRUST)):
                # Servers announce their keys and trust there; these are no records of the commit.
                continue
            value = decode_or_none(record)
            if value is None:
                self.unreadable.append(record.key)
                continue
            self.values[record.key] = value
            if record.key.startswith(keys.OBJECTS):
                self._objects.setdefault(type(value), []).append(value)

    def of(self, struct: type[SomeObject]) -> list[SomeObject]:
        """All objects of a kind."""
        return self._objects.get(struct, [])

    def kinds(self) -> Iterator[tuple[type[Object], list[Any]]]:
        return iter(self._objects.items())

    def under(self, prefix: str) -> dict[str, Any]:
        """The ledgers of one type, by what follows their prefix."""
        return {
            key.removeprefix(prefix): value
            for key, value in self.values.items()
            if key.startswith(prefix)
        }


class CapacityHolding(msgspec.Struct, frozen=True):
    """What one replica or reservation holds: on a node, of its tenant's quota, or both."""

    owner: str
    tenant: str
    node: str
    charge: Amounts
    devices: tuple[DeviceShare, ...] = ()
    ports: tuple[str, ...] = ()
    # The charged class of quota; empty if none is charged.
    capacity_class: str = ""
    # The priority class whose budget is charged; empty if none is.
    priority_class: str = ""
    # Whether a recovery reservation holds it.
    recovery: bool = False

    @property
    def sums(self) -> Amounts:
        """The amounts that are sums on the node: all except devices, which have individual
        owners.
        """
        owned = {share.device_class for share in self.devices}
        return {what: units for what, units in self.charge.items() if what not in owned}


def binding_of(replica: Replica) -> Binding | None:
    """The binding that still holds something. A released replica keeps its binding as history."""
    return None if replica.status.state is State.RELEASED else replica.status.binding


def _of_binding(replica: Replica, binding: Binding) -> CapacityHolding:
    return CapacityHolding(
        owner=replica.metadata.uid,
        tenant=replica.namespace,
        node=binding.node,
        charge=binding.charge,
        devices=binding.devices,
        ports=binding.ports,
        capacity_class=binding.capacity_class,
        priority_class=binding.priority_class,
    )


def _of_claim(reservation: Reservation, claim: Claim) -> CapacityHolding:
    spec = reservation.spec
    return CapacityHolding(
        owner=reservation.metadata.uid,
        tenant=reservation.namespace,
        node=claim.node,
        charge=claim.charge,
        devices=claim.devices,
        ports=claim.ports,
        capacity_class=spec.capacity_class.value if spec.quota else "",
        priority_class=spec.priority_class if spec.quota else "",
        recovery=spec.intent is Intent.RECOVERY,
    )


def open_claims(reservation: Reservation) -> tuple[Claim, ...]:
    """The claims of an active reservation that no binding has replaced."""
    if not is_active(reservation):
        return ()
    return tuple(claim for claim in reservation.status.claims if not claim.consumed)


def holdings(contents: StoreContents) -> list[CapacityHolding]:
    """Everything that is charged to nodes and tenants."""
    found = []
    for replica in contents.of(Replica):
        binding = binding_of(replica)
        if binding is not None:
            found.append(_of_binding(replica, binding))
    for reservation in contents.of(Reservation):
        if reservation.spec.intent is not Intent.PREEMPTION:
            found += [_of_claim(reservation, claim) for claim in open_claims(reservation)]
    return found


def tenant_holdings(contents: StoreContents) -> list[CapacityHolding]:
    """Everything that is charged to tenants: a promised place may be, before its node is."""
    return [*holdings(contents), *promised_holdings(contents)]


def promised_holdings(contents: StoreContents) -> list[CapacityHolding]:
    """Everything that is promised to preemptions while their victims still hold it."""
    return [
        _of_claim(reservation, claim)
        for reservation in contents.of(Reservation)
        if reservation.spec.intent is Intent.PREEMPTION
        for claim in open_claims(reservation)
    ]


def victim_holdings(contents: StoreContents, *causes: Cause) -> list[CapacityHolding]:
    """Everything that work which is stopped for one of these causes still holds."""
    found = []
    for replica in contents.of(Replica):
        binding = binding_of(replica)
        if binding is not None and replica.status.cause in causes:
            found.append(_of_binding(replica, binding))
    return found


def places_pages(contents: StoreContents) -> dict[str, tuple[int, ...]]:
    """The pages of each workload's places ledger, by namespace/name."""
    found: dict[str, list[int]] = {}
    prefix = f"{keys.LEDGERS}places/"
    # An unreadable one exists as well, and has to be deleted with its workload.
    for key in (*contents.values, *contents.unreadable):
        if key.startswith(prefix):
            workload, _, page = key.removeprefix(prefix).rpartition("/")
            found.setdefault(workload, []).append(int(page))
    return {workload: tuple(sorted(pages)) for workload, pages in found.items()}


def total(amounts: Iterable[Amounts]) -> Amounts:
    """The sum of all amounts, without zero entries."""
    sums: Amounts = {}
    for each in amounts:
        for what, units in each.items():
            sums[what] = sums.get(what, 0) + units
    return nonzero(sums)


def nonzero(amounts: Amounts) -> Amounts:
    return {what: units for what, units in amounts.items() if units}


def discrepancies(whose: str, what: str, ledger: Any, objects: Any) -> Iterator[str]:
    """The sentence for one discrepancy, if there is one."""
    if ledger != objects:
        yield f"{whose}: the ledger says {what} {ledger}, the objects add up to {objects}"
