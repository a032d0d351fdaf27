"""The part of the recount that is about nodes: sums, devices, ports and promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.commit.tally import (
    Contents,
    Holding,
    differs,
    holdings,
    leavers,
    nonzero,
    promises,
    total,
)
from holdfast.model import keys
from holdfast.model.kinds.node import Node
from holdfast.model.ledger import DeviceSlot, NodeLedger, allocatable_of, gate_of
from holdfast.model.quantity import MILLI


def _by_node(found: list[Holding]) -> dict[str, list[Holding]]:
    split: dict[str, list[Holding]] = {}
    for holding in found:
        split.setdefault(holding.node, []).append(holding)
    return split


def nodes(contents: Contents) -> Iterator[str]:
    """Where a node's ledger differs from the node, its replicas and its reservations."""
    registered = {node.name: node for node in contents.of(Node)}
    ledgers: dict[str, NodeLedger] = contents.under(f"{keys.LEDGERS}node/")
    held, promised, leaving = map(
        _by_node, (holdings(contents), promises(contents), leavers(contents))
    )
    for name in dict.fromkeys((*registered, *ledgers, *held, *promised)):
        if not name:
            # A claim on quota alone has no node.
            continue
        node, ledger = registered.get(name), ledgers.get(name)
        if node is None or ledger is None:
            lacks = "object" if node is None else "ledger"
            yield f"node {name} has no {lacks}, and {len(held.get(name, []))} holders"
            continue
        yield from _mirror(node, ledger)
        yield from _held(name, ledger, held.get(name, []))
        yield from _promised(name, ledger, promised.get(name, []))
        gone = total(holding.sums for holding in leaving.get(name, []))
        yield from differs(f"node {name}", "leaving", nonzero(ledger.leaving), gone)


def _mirror(node: Node, ledger: NodeLedger) -> Iterator[str]:
    whose = f"node {node.name}"
    yield from differs(whose, "gate", ledger.gate, gate_of(node))
    yield from differs(whose, "allocatable", ledger.allocatable, allocatable_of(node))
    yield from differs(whose, "port share", ledger.port_share, node.spec.port_share)
    listed = sorted(device.id for device in node.spec.devices)
    there = sorted(name for name, slot in ledger.devices.items() if not slot.absent)
    yield from differs(whose, "devices", there, listed)


def _held(name: str, ledger: NodeLedger, found: list[Holding]) -> Iterator[str]:
    whose = f"node {name}"
    sums = total(holding.sums for holding in found)
    yield from differs(whose, "used", nonzero(ledger.used), sums)
    tenants = dict(Counter(holding.tenant for holding in found))
    yield from differs(whose, "tenants", nonzero(ledger.tenants), tenants)
    owners: dict[str, dict[str, int]] = {}
    ports: dict[str, str] = {}
    for holding in found:
        for share in holding.devices:
            slot = owners.setdefault(share.device, {})
            slot[holding.owner] = slot.get(holding.owner, 0) + share.milli
        for port in holding.ports:
            if port in ports:
                yield f"{whose}: port {port} belongs to {ports[port]} and to {holding.owner}"
            ports[port] = holding.owner
    for device in dict.fromkeys((*ledger.devices, *owners)):
        mine, slot_ = owners.get(device, {}), ledger.devices.get(device)
        have = nonzero(slot_.owners) if slot_ is not None else None
        yield from differs(f"{whose}, device {device}", "owners", have, mine)
        if sum(mine.values()) > MILLI:
            yield f"{whose}: device {device} is owned more than whole: {mine}"
    yield from differs(whose, "ports", ledger.ports, ports)


def _promised(name: str, ledger: NodeLedger, found: list[Holding]) -> Iterator[str]:
    whose = f"node {name}"
    by_owner: dict[str, list[Holding]] = {}
    for holding in found:
        by_owner.setdefault(holding.owner, []).append(holding)
    sums = {owner: total(h.sums for h in mine) for owner, mine in by_owner.items()}
    have = {owner: nonzero(amounts) for owner, amounts in ledger.promised.items()}
    yield from differs(whose, "promised", have, sums)
    ports = {port: holding.owner for holding in found for port in holding.ports}
    yield from differs(whose, "promised ports", ledger.promised_ports, ports)
    devices = {share.device: h.owner for h in found for share in h.devices}
    slots: dict[str, DeviceSlot] = ledger.devices
    listed = {device: slot.promised for device, slot in slots.items() if slot.promised}
    # A device that the node lists no longer keeps no promise.
    kept = {device: owner for device, owner in devices.items() if device in slots}
    yield from differs(whose, "promised devices", listed, kept)
