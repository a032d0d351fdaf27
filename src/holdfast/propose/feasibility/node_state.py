"""One node as the scheduler sees it: what it has, who holds which part of it, and what is left.

`fleet.py` keeps these up to date, and the sums in columns beside them. The ledger itself, which
names owners, is built on demand: for devices, and to explain a refusal.

Nodes, replicas and reservations arrive on different streams, so the state may be inconsistent for a
moment: a claim and the binding that consumed it both hold the same device. Such a state errs
towards "taken", which costs at most a wait. That is also why allocations are added up here without
the checks that the commit makes on its own records.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.model.encoding.resource_versions import last_written
from holdfast.model.errors import unreachable
from holdfast.model.kinds.node import Node
from holdfast.model.placement.fit import Allocation, sums_of
from holdfast.model.quota.ledger import NodeLedger, add, mirror_node
from holdfast.model.refusal import Refusal


class NodeState:
    """One node, and everything that is known to hold a part of it."""

    def __init__(self, name: str, row: int) -> None:
        self.name, self.row = name, row
        self.node: Node | None = None
        self.held: dict[str, Allocation] = {}
        self.recovery: dict[str, Allocation] = {}
        self.promised: dict[str, Allocation] = {}
        self.leaving: dict[str, Allocation] = {}
        self.assumed: dict[str, Allocation] = {}
        self.shunned: Refusal | None = None
        self.shunned_until_ms = 0
        self._empty: NodeLedger | None = None
        self._settled: NodeLedger | None = None
        self._ledger: NodeLedger | None = None

    def copy(self) -> NodeState:
        """The same state, to be changed by itself."""
        made = copy.copy(self)
        made.held, made.promised = dict(self.held), dict(self.promised)
        made.recovery = dict(self.recovery)
        made.leaving, made.assumed = dict(self.leaving), dict(self.assumed)
        return made

    @property
    def uid(self) -> str:
        return self.node.metadata.uid if self.node is not None else ""

    @property
    def revision(self) -> int:
        """The last write of the node that is known here."""
        return last_written(self.node.metadata.resource_version) if self.node is not None else 0

    @property
    def empty(self) -> NodeLedger:
        """The ledger of the node if nothing were on it."""
        if self._empty is None:
            if self.node is None:
                unreachable(f"node {self.name} is not registered, so nothing can be placed on it")
            self._empty = mirror_node(self.node, None)
        return self._empty

    @property
    def ledger(self) -> NodeLedger:
        """Its ledger as far as is known here, assumed placements included."""
        if self._ledger is None:
            self._ledger = _with(self.settled, self.assumed) if self.assumed else self.settled
        return self._ledger

    @property
    def settled(self) -> NodeLedger:
        """The same without what is only assumed."""
        if self._settled is None:
            ledger = _with(self.empty, self.held)
            if self.recovery:
                ledger = self._with_recovery(ledger)
            self._settled = self._with_promises(ledger) if self.promised else ledger
        return self._settled

    def without(self, owners: Iterable[str]) -> NodeLedger:
        """Its ledger if these owners held nothing here any more, and were not leaving either."""
        gone = frozenset(owners)
        made = self.copy()
        made.changed()
        made.held, made.leaving, made.assumed = (
            {who: it for who, it in table.items() if who not in gone}
            for table in (self.held, self.leaving, self.assumed)
        )
        return made.ledger

    def place(self, node: Node | None) -> None:
        """Set the node object, or None if it is not registered."""
        self.node = node
        self._empty = None
        self.changed()

    def changed(self) -> None:
        """Note that its allocations changed, so that an earlier refusal may not hold any more."""
        self._settled = self._ledger = None
        self.shunned = None

    def assume(self, uid: str, held: Allocation | None) -> None:
        """Count a placement of ours that is not seen yet; None stops counting it."""
        if held is None:
            self.assumed.pop(uid, None)
        else:
            self.assumed[uid] = held
        self._ledger = None

    def is_bare(self) -> bool:
        """Whether nothing at all is on it."""
        return not (self.held or self.recovery or self.promised or self.assumed)

    @property
    def is_bent(self) -> bool:
        """Whether what is free is not simply what is allocatable less what is held: there are
        promises, or recovery reservations on an overcommitted node.
        """
        if self.node is None:
            return False
        return bool(self.promised or (self.recovery and self.empty.firm))

    def is_idle(self) -> bool:
        return self.node is None and self.is_bare()

    def _with_recovery(self, ledger: NodeLedger) -> NodeLedger:
        """The ledger with what recovery reservations hold, which is never diluted."""
        sums: dict[str, int] = {}
        for held in self.recovery.values():
            sums = add(sums, sums_of(held))
        return msgspec.structs.replace(_with(ledger, self.recovery), recovery=sums)

    def _with_promises(self, ledger: NodeLedger) -> NodeLedger:
        """The ledger with what is promised to preemptions, less what their victims still hold."""
        devices, ports = dict(ledger.devices), dict(ledger.promised_ports)
        for owner, held in self.promised.items():
            ports |= dict.fromkeys(held.ports, owner)
            for share in held.devices:
                if share.device in devices:
                    slot = devices[share.device]
                    devices[share.device] = msgspec.structs.replace(slot, promised=owner)
        leaving: dict[str, int] = {}
        for held in self.leaving.values():
            leaving = add(leaving, sums_of(held))
        return msgspec.structs.replace(
            ledger,
            devices=devices,
            promised={owner: sums_of(held) for owner, held in self.promised.items()},
            promised_ports=ports,
            leaving=leaving,
        )


def _with(ledger: NodeLedger, holdings: Mapping[str, Allocation]) -> NodeLedger:
    """The ledger with all of these allocations, by owner."""
    owners = {name: dict(slot.owners) for name, slot in ledger.devices.items()}
    used, ports, tenants = ledger.used, dict(ledger.ports), ledger.tenants
    for owner, held in holdings.items():
        tenants = add(tenants, {held.tenant: 1})
        used = add(used, sums_of(held))
        ports |= dict.fromkeys(held.ports, owner)
        for share in held.devices:
            # A device that the node does not list (any more) cannot be assigned.
            if share.device in owners:
                slot = owners[share.device]
                slot[owner] = slot.get(owner, 0) + share.milli
    devices = {
        name: msgspec.structs.replace(slot, owners=owners[name])
        for name, slot in ledger.devices.items()
    }
    return msgspec.structs.replace(ledger, used=used, devices=devices, ports=ports, tenants=tenants)
