"""Whether a demand fits a node: the one answer for proposal, commit, explain and the checkers.

`demand_of` computes a demand from a template. `claim` chooses devices and returns the allocation,
or refuses with a reason. `take_allocation` and `return_allocation` are the only functions that
change the sums of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from holdfast.model.errors import RecordsDisagree, agree
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.template import DeviceRequest, Port, Resources, Template
from holdfast.model.placement.matching import MatchRequest, match
from holdfast.model.quantity import MILLI, Resource, demand, render
from holdfast.model.quota.ledger import Amounts, DeviceSlot, NodeLedger, add, subtract
from holdfast.model.refusal import Reason, Refusal

Change = Callable[[Amounts, Amounts], Amounts]


class DeviceDemand(msgspec.Struct, frozen=True):
    """A demand for devices of one class: `count` whole ones, or `milli` of a single one."""

    device_class: str
    count: int
    milli: int
    models: tuple[str, ...] = ()
    memory: int = 0
    same_numa: bool = False

    @property
    def total(self) -> int:
        return self.count * self.milli


class Demand(msgspec.Struct, frozen=True):
    """What a replica needs of a node and of its tenant's quota, in internal units."""

    amounts: Amounts
    devices: tuple[DeviceDemand, ...] = ()
    ports: tuple[str, ...] = ()


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """What is taken of a node: sums, devices and ports.

    A binding and a claim of a reservation carry it. `tenant` is its owner in the scheduler's
    snapshot; the commit takes the tenant from the object that carries the allocation.
    """

    charge: Amounts
    devices: tuple[DeviceShare, ...] = ()
    ports: tuple[str, ...] = ()
    tenant: str = ""


def _device_demand(request: DeviceRequest) -> DeviceDemand:
    whole = request.share is None
    return DeviceDemand(
        device_class=request.device_class,
        count=request.count if whole else 1,
        milli=MILLI if request.share is None else demand(request.device_class, request.share),
        models=request.models,
        memory=demand(Resource.MEMORY, request.memory),
        same_numa=request.same_numa,
    )


def demand_of(template: Template) -> Demand:
    """The demand of one replica of this template.

    Device classes count towards quota like any resource.
    """
    return _demand(template.resources, template.devices, template.ports)


# Thousands of replicas share a template, and every bind comes here.
@lru_cache(maxsize=4096)
def _demand(
    wanted: Resources, requests: tuple[DeviceRequest, ...], listed: tuple[Port, ...]
) -> Demand:
    amounts = {Resource.REPLICAS.value: 1}
    for resource, value in (
        (Resource.CPU, wanted.cpu),
        (Resource.MEMORY, wanted.memory),
        (Resource.DISK, wanted.disk),
    ):
        units = demand(resource, value)
        if units:
            amounts[resource.value] = units
    devices = tuple(_device_demand(request) for request in requests)
    for device in devices:
        amounts[device.device_class] = amounts.get(device.device_class, 0) + device.total
    ports = tuple(f"{p.protocol.value}/{p.port}" for p in listed if p.port)
    return Demand(amounts=amounts, devices=devices, ports=ports)


def shortage(ledger: NodeLedger, wanted: Demand, holder: str = "") -> Refusal | None:
    """Refuses the first plain resource or port that is short; None if none is.

    Devices are chosen later.
    """
    devices = {device.device_class for device in wanted.devices}
    for resource, units in wanted.amounts.items():
        free = ledger.free(resource, holder)
        if resource in devices or not units or units <= free:
            continue
        lacking = render(resource, units), render(resource, max(0, free))
        return Refusal(
            Reason.NODE_FULL,
            f"needs {lacking[0]} {resource}, {lacking[1]} is free",
            {"resource": resource, "needed": lacking[0], "free": lacking[1]},
        )
    for port in wanted.ports:
        if not ledger.offers(port):
            return Refusal(
                Reason.PORT_NOT_OFFERED,
                f"port {port} belongs to another node of this machine; port 0 takes any free port",
                {"port": port},
            )
        owner = ledger.ports.get(port) or ledger.promised_ports.get(port, holder)
        if port in ledger.ports or owner != holder:
            return Refusal(
                Reason.PORT_TAKEN, f"port {port} is taken", {"port": port, "owner": owner}
            )
    return None


def suits(slot: DeviceSlot, wanted: DeviceDemand) -> bool:
    """Whether this device has the right properties, whether it is free or not."""
    return (
        slot.device_class == wanted.device_class
        and (not wanted.models or slot.model in wanted.models)
        and slot.memory >= wanted.memory
    )


def _wishes(
    ledger: NodeLedger, wanted: Demand, room: Callable[[DeviceSlot], int]
) -> list[MatchRequest]:
    """For each request the suitable devices with room, the best first.

    Whole devices are ordered by name; for a share the fullest device with room comes first, so that
    others stay whole.
    """
    named = sorted(ledger.devices.items())
    by_room = sorted(named, key=lambda entry: room(entry[1]))
    return [
        MatchRequest(
            request.count,
            tuple(
                name
                for name, slot in (by_room if request.milli < MILLI else named)
                if suits(slot, request) and room(slot) >= request.milli
            ),
            request.same_numa,
        )
        for request in wanted.devices
    ]


def _numa(ledger: NodeLedger) -> dict[str, int]:
    return {name: slot.numa for name, slot in ledger.devices.items()}


def choose_devices(
    ledger: NodeLedger, wanted: Demand, holder: str = ""
) -> tuple[DeviceShare, ...] | Refusal:
    """The default choice of devices, or a refusal. A scheduler may propose a better one."""
    if not wanted.devices:
        return ()
    wishes = _wishes(ledger, wanted, lambda slot: slot.free(holder))
    given = match(wishes, _numa(ledger))
    if given is None:
        return _no_device(ledger, wanted, wishes)
    return tuple(
        DeviceShare(device=name, device_class=request.device_class, milli=request.milli)
        for request, names in zip(wanted.devices, given, strict=True)
        for name in names
    )


def _first_unmet(ledger: NodeLedger, wishes: list[MatchRequest]) -> int | None:
    """The first request that cannot be met together with those before it."""
    numa = _numa(ledger)
    counts = range(1, len(wishes) + 1)
    return next((n - 1 for n in counts if match(wishes[:n], numa) is None), None)


def _no_device(ledger: NodeLedger, wanted: Demand, wishes: list[MatchRequest]) -> Refusal:
    """Refuses because other work uses the devices, or because the node lacks them."""
    empty = _wishes(ledger, wanted, lambda slot: 0 if slot.absent else MILLI)
    unmet, lacking = _first_unmet(ledger, empty), True
    if unmet is None:
        unmet, lacking = _first_unmet(ledger, wishes) or 0, False
    request, suitable = wanted.devices[unmet], len(empty[unmet].candidates)
    what = (
        f"{request.count} {request.device_class}"
        if request.milli == MILLI
        else f"{request.milli}m of a {request.device_class}"
    )
    if not lacking:
        why = "they are in use"
    elif suitable < request.count:
        why = f"the node has {suitable} suitable"
    else:
        why = f"the node's {suitable} suitable ones cannot satisfy all requests together"
    return Refusal(
        Reason.DEVICE_MISSING if lacking else Reason.DEVICE_TAKEN,
        f"needs {what}, {why}",
        {"deviceClass": request.device_class, "suitable": str(suitable)},
    )


def _judge_share(
    ledger: NodeLedger, wanted: Demand, share: DeviceShare, holder: str
) -> Refusal | None:
    """Refuses a proposed device that matches no request or is not free."""
    slot = ledger.devices.get(share.device)
    if slot is None or not any(_answers(share, slot, request) for request in wanted.devices):
        return Refusal(
            Reason.DEVICE_MISSING,
            f"device {share.device} does not match the request",
            {"device": share.device},
        )
    if slot.free(holder) < share.milli:
        return Refusal(
            Reason.DEVICE_TAKEN,
            f"device {share.device} has {slot.free(holder)}m left, {share.milli}m are needed",
            {"device": share.device, "owner": ",".join(sorted(slot.owners))},
        )
    return None


def _answers(share: DeviceShare, slot: DeviceSlot, request: DeviceDemand) -> bool:
    return (
        share.device_class == request.device_class
        and share.milli == request.milli
        and suits(slot, request)
    )


def judge_devices(
    ledger: NodeLedger, wanted: Demand, proposed: Iterable[DeviceShare], holder: str = ""
) -> Refusal | None:
    """Refuses devices that do not match the demand exactly, or are not free, in any order.

    The commit calls this.
    """
    shares = list(proposed)
    if len({s.device for s in shares}) != len(shares):
        return Refusal(Reason.DEVICE_TAKEN, "the proposal names a device twice")
    for share in shares:
        refusal = _judge_share(ledger, wanted, share, holder)
        if refusal is not None:
            return refusal
    needed = sum(request.count for request in wanted.devices)
    if len(shares) != needed:
        return Refusal(
            Reason.DEVICE_MISSING, f"the proposal names {len(shares)} devices, {needed} are needed"
        )
    wishes = [
        MatchRequest(
            request.count,
            tuple(s.device for s in shares if _answers(s, ledger.devices[s.device], request)),
            request.same_numa,
        )
        for request in wanted.devices
    ]
    if match(wishes, _numa(ledger)) is None:
        return Refusal(
            Reason.DEVICE_MISSING, "the proposed devices cannot satisfy all requests together"
        )
    return None


def claim(
    ledger: NodeLedger,
    wanted: Demand,
    proposed: tuple[DeviceShare, ...] | None = None,
    holder: str = "",
) -> Allocation | Refusal:
    """The allocation for a demand, or a refusal if it does not fit.

    Without a proposal, devices are chosen here. `holder` is the reservation whose promised share
    may be used.
    """
    refusal = shortage(ledger, wanted, holder)
    if refusal is not None:
        return refusal
    if proposed is None:
        devices = choose_devices(ledger, wanted, holder)
    else:
        devices = judge_devices(ledger, wanted, proposed, holder) or proposed
    if isinstance(devices, Refusal):
        return devices
    return Allocation(charge=wanted.amounts, devices=devices, ports=wanted.ports)


def _misstated(held: Allocation) -> Refusal | None:
    """Refuses a stated charge that contradicts itself.

    The quota is charged by the amounts and the node by the devices, so a charge that states less
    than its devices would get them without a charge.
    """
    owned: Amounts = {}
    for share in held.devices:
        owned[share.device_class] = owned.get(share.device_class, 0) + share.milli
    if len({share.device for share in held.devices}) != len(held.devices):
        return Refusal(Reason.DEVICE_TAKEN, "the charge names a device twice")
    if any(not 0 < share.milli <= MILLI for share in held.devices):
        return Refusal(Reason.NOT_ALLOWED, f"a share of a device is 1 to {MILLI} thousandths")
    wrong = [r for r, units in owned.items() if held.charge.get(r, 0) != units]
    wrong += [r for r, units in held.charge.items() if units < 0]
    if wrong:
        return Refusal(
            Reason.NOT_ALLOWED,
            f"the charge of {wrong[0]} does not match its devices, or is negative",
            {"resource": wrong[0]},
        )
    return None


def recovery_shortage(ledger: NodeLedger, wanted: Amounts) -> Refusal | None:
    """Refuses a recovery reservation that would count overcommitted room.

    What is held for recovery is not overcommitted, so it needs more of what is allocatable than its
    own amount: judged on the ledger as it would be afterwards.
    """
    if not ledger.firm:
        return None
    held = Allocation({r: units for r, units in wanted.items() if r in ledger.firm})
    after = take_allocation(ledger, held, "", recovery=True)
    for resource, units in held.charge.items():
        lacking = -after.free(resource)
        if units and lacking > 0:
            there = render(resource, ledger.firm[resource])
            return Refusal(
                Reason.NODE_FULL,
                f"{render(resource, units)} {resource} would be reserved for recovery, which never "
                f"counts overcommitted room: the node has {there}, and "
                f"{render(resource, lacking)} too little of it is left",
                {"resource": resource, "lacking": render(resource, lacking)},
            )
    return None


def judge_held(ledger: NodeLedger, held: Allocation, *, recovery: bool = False) -> Refusal | None:
    """Refuses a stated charge that is inconsistent or not free; for capacity held in advance."""
    refusal = _misstated(held) or shortage(ledger, Demand(sums_of(held), ports=held.ports))
    if refusal is None and recovery:
        refusal = recovery_shortage(ledger, sums_of(held))
    if refusal is not None:
        return refusal
    for share in held.devices:
        slot = ledger.devices.get(share.device)
        if slot is None or slot.device_class != share.device_class:
            return Refusal(
                Reason.DEVICE_MISSING, f"device {share.device} does not exist on the node"
            )
        if slot.free() < share.milli:
            return Refusal(Reason.DEVICE_TAKEN, f"device {share.device} is taken")
    return None


def sums_of(held: Allocation) -> Amounts:
    """The part of a charge that counts in the sums of a node; devices have owners instead."""
    if not held.devices:
        return held.charge
    owned = [share.device_class for share in held.devices]
    return {r: units for r, units in held.charge.items() if r not in owned}


def _moved(
    ledger: NodeLedger, held: Allocation, owner: str, change: Change, *, recovery: bool
) -> NodeLedger:
    """The ledger with the devices and sums changed for one owner. The caller changes ports."""
    devices = ledger.devices
    if held.devices:
        devices = dict(devices)
        for share in held.devices:
            slot = devices.get(share.device)
            if slot is None:
                raise RecordsDisagree(f"{owner} has {share.device}, which the node lacks")
            owners = change(slot.owners, {owner: share.milli})
            devices[share.device] = msgspec.structs.replace(slot, owners=owners)
    sums = sums_of(held)
    used = change(ledger.used, sums)
    lane = change(ledger.recovery, sums) if recovery else ledger.recovery
    return msgspec.structs.replace(ledger, used=used, devices=devices, recovery=lane)


def take_allocation(
    ledger: NodeLedger, held: Allocation, owner: str, *, recovery: bool = False
) -> NodeLedger:
    """The ledger after `owner` took this. Taking what is not free is a bug.

    Sums are not checked here: an accepted charge stays, even if the node shrinks. `recovery` says
    that a recovery reservation takes it.
    """
    after = _moved(ledger, held, owner, add, recovery=recovery)
    agree(min(held.charge.values(), default=0) >= 0, f"{owner} took less than nothing")
    for share in held.devices:
        left = after.devices[share.device].left
        agree(left >= 0, f"{owner} took {share.device}, of which others own a part")
    for key in held.ports:
        agree(key not in ledger.ports, f"{owner} took port {key}, which is taken")
    if not held.ports:
        return after
    ports = {**ledger.ports, **dict.fromkeys(held.ports, owner)}
    return msgspec.structs.replace(after, ports=ports)


def return_allocation(
    ledger: NodeLedger, held: Allocation, owner: str, *, recovery: bool = False
) -> NodeLedger:
    """The ledger after `owner` returned this. Returning what was never taken is a bug."""
    after = _moved(ledger, held, owner, subtract, recovery=recovery)
    for key in held.ports:
        agree(ledger.ports.get(key) == owner, f"{owner} returned port {key}, which it does not own")
    slots = [after.devices[share.device].owners for share in held.devices]
    negative = any(units < 0 for owners in (after.used, *slots) for units in owners.values())
    agree(not negative, f"{owner} returned more than the node's ledger holds")
    if not held.ports:
        return after
    ports = {key: who for key, who in ledger.ports.items() if key not in held.ports}
    return msgspec.structs.replace(after, ports=ports)


def promise_allocation(ledger: NodeLedger, held: Allocation, reservation: str) -> NodeLedger:
    """The ledger after promising this to a reservation while other work still holds it."""
    devices = dict(ledger.devices)
    for share in held.devices:
        slot = devices.get(share.device)
        if slot is None or slot.promised not in ("", reservation):
            raise RecordsDisagree(f"{share.device} cannot be promised to {reservation}")
        devices[share.device] = msgspec.structs.replace(slot, promised=reservation)
    before = ledger.promised.get(reservation, {})
    promises = {**ledger.promised, reservation: add(before, sums_of(held))}
    for key in held.ports:
        other = ledger.promised_ports.get(key, reservation)
        agree(other == reservation, f"port {key} is promised to {other}")
    ports = {**ledger.promised_ports, **dict.fromkeys(held.ports, reservation)}
    return msgspec.structs.replace(ledger, devices=devices, promised=promises, promised_ports=ports)


def withdraw_promise(ledger: NodeLedger, reservation: str) -> NodeLedger:
    """The ledger after the promise was fulfilled or withdrawn."""
    devices = {
        name: msgspec.structs.replace(slot, promised="") if slot.promised == reservation else slot
        for name, slot in ledger.devices.items()
    }
    promises = {who: amounts for who, amounts in ledger.promised.items() if who != reservation}
    ports = {key: who for key, who in ledger.promised_ports.items() if who != reservation}
    return msgspec.structs.replace(ledger, devices=devices, promised=promises, promised_ports=ports)


def begin_departure(ledger: NodeLedger, held: Allocation) -> NodeLedger:
    """The ledger after the holder of this was evicted for a preemption."""
    return msgspec.structs.replace(ledger, leaving=add(ledger.leaving, sums_of(held)))


def finish_departure(ledger: NodeLedger, held: Allocation) -> NodeLedger:
    """The ledger after the victim of a preemption stopped; its charge is returned separately."""
    leaving = subtract(ledger.leaving, sums_of(held))
    agree(all(u >= 0 for u in leaving.values()), "more departed than was evicted")
    return msgspec.structs.replace(ledger, leaving=leaving)
